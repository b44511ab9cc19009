// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// AVX-512 (F, BW, DQ, VL), and its bf16 dot product where the translation unit is compiled with it.
// Operations as in isa_scalar.hpp.
#pragma once

#include <immintrin.h>

#include "math/dtype.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

struct F32 {
  using Scalar = float;
  using Reg = __m512;
  using Mask = __mmask16;
  static constexpr int kLanes = 16;

  static PERSEID_INLINE Reg zero() { return _mm512_setzero_ps(); }
  static PERSEID_INLINE Reg set1(float x) { return _mm512_set1_ps(x); }
  static PERSEID_INLINE Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static PERSEID_INLINE Reg load(const bf16* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static PERSEID_INLINE Reg load(const f16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static PERSEID_INLINE Reg load_partial(const float* p, int n) {
    return _mm512_maskz_loadu_ps(first(n), p);
  }
  static PERSEID_INLINE Reg load_partial(const bf16* p, int n) {
    return widen(_mm256_maskz_loadu_epi16(first(n), p));
  }
  static PERSEID_INLINE Reg load_partial(const f16* p, int n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p));
  }
  static PERSEID_INLINE void store(float* p, Reg a) { _mm512_storeu_ps(p, a); }
  static PERSEID_INLINE void store(bf16* p, Reg a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(a));
  }
  static PERSEID_INLINE void store(f16* p, Reg a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_f16(a));
  }
  static PERSEID_INLINE void store_partial(float* p, Reg a, int n) {
    _mm512_mask_storeu_ps(p, first(n), a);
  }
  static PERSEID_INLINE void store_partial(bf16* p, Reg a, int n) {
    _mm256_mask_storeu_epi16(p, first(n), narrow_bf16(a));
  }
  static PERSEID_INLINE void store_partial(f16* p, Reg a, int n) {
    _mm256_mask_storeu_epi16(p, first(n), narrow_f16(a));
  }
  // Past the caches, where the array is too large to be read again from them. p is aligned to the
  // vector.
  static PERSEID_INLINE void stream(float* p, Reg a) { _mm512_stream_ps(p, a); }
  static PERSEID_INLINE void stream(bf16* p, Reg a) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(a));
  }
  static PERSEID_INLINE void stream(f16* p, Reg a) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow_f16(a));
  }
  static PERSEID_INLINE void fence() { _mm_sfence(); }
#if defined(__AVX512BF16__)
  // Two vectors side by side, in half the time of one after the other.
  static PERSEID_INLINE void store_pair(bf16* p, Reg a, Reg b) {
    _mm512_storeu_si512(p, narrow_bf16(a, b));
  }
  static PERSEID_INLINE void stream_pair(bf16* p, Reg a, Reg b) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), narrow_bf16(a, b));
  }
#endif

  static PERSEID_INLINE Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static PERSEID_INLINE Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static PERSEID_INLINE Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static PERSEID_INLINE Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static PERSEID_INLINE Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static PERSEID_INLINE Reg fms(Reg a, Reg b, Reg c) { return _mm512_fmsub_ps(a, b, c); }
  static PERSEID_INLINE Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static PERSEID_INLINE Reg min(Reg a, Reg b) { return _mm512_min_ps(a, b); }
  static PERSEID_INLINE Reg fraction(Reg a) {
    return _mm512_reduce_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  }
  static PERSEID_INLINE Reg scale_by_power(Reg a, Reg n) { return _mm512_scalef_ps(a, n); }
  static PERSEID_INLINE Mask less(Reg a, Reg b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static PERSEID_INLINE Mask is_nan(Reg a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
  static PERSEID_INLINE Mask either(Mask a, Mask b) { return static_cast<Mask>(a | b); }
  static PERSEID_INLINE bool any(Mask m) { return m != 0; }
  static PERSEID_INLINE Mask first(int n) { return static_cast<Mask>((1u << n) - 1u); }
  static PERSEID_INLINE Mask nonzero_bytes(const uint8_t* p) {
    return _mm_test_epi8_mask(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)),
                              _mm_set1_epi8(-1));
  }
  static PERSEID_INLINE Reg select(Mask m, Reg a, Reg b) { return _mm512_mask_blend_ps(m, b, a); }
  static PERSEID_INLINE float reduce_add(Reg a) { return _mm512_reduce_add_ps(a); }
  static PERSEID_INLINE float reduce_max(Reg a) { return _mm512_reduce_max_ps(a); }

  // In place: row i, lane j becomes row j, lane i. Also moves pairs of bf16, which are only bits
  // here.
  static PERSEID_INLINE void transpose(Reg (&r)[kLanes]) {
    Reg t[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
      r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
      r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
      t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
      t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
      t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
      r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    }
  }

 private:
  static PERSEID_INLINE Reg widen(__m256i a) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(a), 16));
  }
  static PERSEID_INLINE __m256i narrow_f16(Reg a) {
    return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static PERSEID_INLINE __m256i narrow_bf16(Reg a) {
    // By integer arithmetic: the bf16 instruction flushes subnormals, math/dtype.hpp does not.
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(is_nan(a), rounded, quiet));
  }
#if defined(__AVX512BF16__)
  static PERSEID_INLINE __m512i narrow_bf16(Reg a, Reg b) {
    constexpr int kSubnormal = 0x20;
    if ((_mm512_fpclass_ps_mask(a, kSubnormal) | _mm512_fpclass_ps_mask(b, kSubnormal)) != 0)
        [[unlikely]]
      return _mm512_inserti64x4(_mm512_castsi256_si512(narrow_bf16(a)), narrow_bf16(b), 1);
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
  }
#endif
};

struct F64 {
  using Scalar = double;
  using Reg = __m512d;
  using Mask = __mmask8;
  static constexpr int kLanes = 8;

  static PERSEID_INLINE Reg zero() { return _mm512_setzero_pd(); }
  static PERSEID_INLINE Reg set1(double x) { return _mm512_set1_pd(x); }
  static PERSEID_INLINE Reg load(const double* p) { return _mm512_loadu_pd(p); }
  static PERSEID_INLINE Reg load_partial(const double* p, int n) {
    return _mm512_maskz_loadu_pd(first(n), p);
  }
  static PERSEID_INLINE void store(double* p, Reg a) { _mm512_storeu_pd(p, a); }
  static PERSEID_INLINE void store_partial(double* p, Reg a, int n) {
    _mm512_mask_storeu_pd(p, first(n), a);
  }
  static PERSEID_INLINE void stream(double* p, Reg a) { _mm512_stream_pd(p, a); }

  static PERSEID_INLINE Reg add(Reg a, Reg b) { return _mm512_add_pd(a, b); }
  static PERSEID_INLINE Reg sub(Reg a, Reg b) { return _mm512_sub_pd(a, b); }
  static PERSEID_INLINE Reg mul(Reg a, Reg b) { return _mm512_mul_pd(a, b); }
  static PERSEID_INLINE Reg div(Reg a, Reg b) { return _mm512_div_pd(a, b); }
  static PERSEID_INLINE Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_pd(a, b, c); }
  static PERSEID_INLINE Reg fms(Reg a, Reg b, Reg c) { return _mm512_fmsub_pd(a, b, c); }
  static PERSEID_INLINE Reg max(Reg a, Reg b) { return _mm512_max_pd(a, b); }
  static PERSEID_INLINE Reg min(Reg a, Reg b) { return _mm512_min_pd(a, b); }
  static PERSEID_INLINE Reg fraction(Reg a) {
    return _mm512_reduce_pd(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  }
  static PERSEID_INLINE Reg scale_by_power(Reg a, Reg n) { return _mm512_scalef_pd(a, n); }
  static PERSEID_INLINE Mask less(Reg a, Reg b) { return _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ); }
  static PERSEID_INLINE Mask is_nan(Reg a) { return _mm512_cmp_pd_mask(a, a, _CMP_UNORD_Q); }
  static PERSEID_INLINE Mask either(Mask a, Mask b) { return static_cast<Mask>(a | b); }
  static PERSEID_INLINE bool any(Mask m) { return m != 0; }
  static PERSEID_INLINE Mask first(int n) { return static_cast<Mask>((1u << n) - 1u); }
  static PERSEID_INLINE Mask nonzero_bytes(const uint8_t* p) {
    return static_cast<Mask>(_mm_test_epi8_mask(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), _mm_set1_epi8(-1)));
  }
  static PERSEID_INLINE Reg select(Mask m, Reg a, Reg b) { return _mm512_mask_blend_pd(m, b, a); }
  static PERSEID_INLINE double reduce_add(Reg a) { return _mm512_reduce_add_pd(a); }
  static PERSEID_INLINE double reduce_max(Reg a) { return _mm512_reduce_max_pd(a); }

  static PERSEID_INLINE void transpose(Reg (&r)[kLanes]) {
    Reg t[kLanes];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm512_unpacklo_pd(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_pd(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      r[i] = _mm512_shuffle_f64x2(t[i], t[i + 2], 0x88);
      r[i + 2] = _mm512_shuffle_f64x2(t[i], t[i + 2], 0xdd);
      r[i + 4] = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0x88);
      r[i + 6] = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm512_shuffle_f64x2(r[i], r[i + 4], 0x88);
      t[i + 4] = _mm512_shuffle_f64x2(r[i], r[i + 4], 0xdd);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) r[i] = t[i];
  }
};

struct U64 {
  using Reg = __m512i;
  static constexpr int kLanes = 8;
  static PERSEID_INLINE Reg load(const uint64_t* p) { return _mm512_loadu_si512(p); }
  static PERSEID_INLINE void store(uint64_t* p, Reg a) { _mm512_storeu_si512(p, a); }
  static PERSEID_INLINE Reg set1(uint64_t x) { return _mm512_set1_epi64(static_cast<int64_t>(x)); }
  static PERSEID_INLINE Reg multiply_low(Reg a, Reg b) { return _mm512_mul_epu32(a, b); }
  static PERSEID_INLINE Reg high(Reg a) { return _mm512_srli_epi64(a, 32); }
  static PERSEID_INLINE Reg exclusive_or(Reg a, Reg b) { return _mm512_xor_si512(a, b); }
};

// 24 accumulators, 4 vectors of B and a broadcast of A: 29 of 32 registers.
struct F32Dot {
  using Vector = F32;
  using Element = float;
  static constexpr int kDepth = 1;
  static constexpr int kRows = 6;
  static constexpr int kVectors = 4;
  static PERSEID_INLINE F32::Reg broadcast(const float* a) { return _mm512_set1_ps(*a); }
  static PERSEID_INLINE F32::Reg load(const float* b) { return _mm512_loadu_ps(b); }
  static PERSEID_INLINE F32::Reg multiply_add(F32::Reg a, F32::Reg b, F32::Reg c) {
    return _mm512_fmadd_ps(a, b, c);
  }
};

struct F64Dot {
  using Vector = F64;
  using Element = double;
  static constexpr int kDepth = 1;
  static constexpr int kRows = 6;
  static constexpr int kVectors = 4;
  static PERSEID_INLINE F64::Reg broadcast(const double* a) { return _mm512_set1_pd(*a); }
  static PERSEID_INLINE F64::Reg load(const double* b) { return _mm512_loadu_pd(b); }
  static PERSEID_INLINE F64::Reg multiply_add(F64::Reg a, F64::Reg b, F64::Reg c) {
    return _mm512_fmadd_pd(a, b, c);
  }
};

#if defined(__AVX512BF16__)
inline constexpr bool kHasBf16Dot = true;

// An element is two bf16 that are neighbours along the depth; one instruction multiplies and adds
// 32 of them.
struct Bf16Dot {
  using Vector = F32;
  using Element = uint32_t;
  static constexpr int kDepth = 2;
  static constexpr int kRows = 6;
  static constexpr int kVectors = 4;
  static PERSEID_INLINE __m512i broadcast(const uint32_t* a) {
    return _mm512_set1_epi32(static_cast<int>(*a));
  }
  static PERSEID_INLINE __m512i load(const uint32_t* b) { return _mm512_loadu_si512(b); }
  static PERSEID_INLINE F32::Reg multiply_add(__m512i a, __m512i b, F32::Reg c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  // Lane i of the result: {low[i], high[i]} rounded to bf16, low in the low half. Two rows become
  // pairs along the rows; subnormals flush to 0, as the dot product itself does.
  static PERSEID_INLINE void store_interleaved(uint32_t* p, F32::Reg low, F32::Reg high) {
    const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                        21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                        11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    _mm512_storeu_si512(p, _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), both));
  }
  // 2 * kLanes neighbours of one row, rounded: kLanes pairs along the columns.
  static PERSEID_INLINE void store_row(uint32_t* p, F32::Reg first, F32::Reg second) {
    _mm512_storeu_si512(p, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
  }
};
using DotOfBf16 = Bf16Dot;
#else
inline constexpr bool kHasBf16Dot = false;
using DotOfBf16 = F32Dot;
#endif

}  // namespace perseid::internal::cpu::PERSEID_ISA
