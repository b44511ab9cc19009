// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// AVX2 with FMA and half-precision conversions. Operations as in isa_scalar.hpp.
#pragma once

#include <immintrin.h>

#include "math/dtype.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

struct F32 {
  using Scalar = float;
  using Reg = __m256;
  using Mask = __m256;  // all bits of a lane, or none
  static constexpr int kLanes = 8;

  static PERSEID_INLINE Reg zero() { return _mm256_setzero_ps(); }
  static PERSEID_INLINE Reg set1(float x) { return _mm256_set1_ps(x); }
  static PERSEID_INLINE Reg load(const float* p) { return _mm256_loadu_ps(p); }
  static PERSEID_INLINE Reg load(const bf16* p) {
    return widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static PERSEID_INLINE Reg load(const f16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static PERSEID_INLINE Reg load_partial(const float* p, int n) {
    return _mm256_maskload_ps(p, _mm256_castps_si256(first(n)));
  }
  static PERSEID_INLINE Reg load_partial(const bf16* p, int n) {
    return widen_bf16(load_halves(p, n));
  }
  static PERSEID_INLINE Reg load_partial(const f16* p, int n) {
    return _mm256_cvtph_ps(load_halves(p, n));
  }
  static PERSEID_INLINE void store(float* p, Reg a) { _mm256_storeu_ps(p, a); }
  static PERSEID_INLINE void store(bf16* p, Reg a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_bf16(a));
  }
  static PERSEID_INLINE void store(f16* p, Reg a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_f16(a));
  }
  static PERSEID_INLINE void store_partial(float* p, Reg a, int n) {
    _mm256_maskstore_ps(p, _mm256_castps_si256(first(n)), a);
  }
  static PERSEID_INLINE void store_partial(bf16* p, Reg a, int n) {
    store_halves(p, narrow_bf16(a), n);
  }
  static PERSEID_INLINE void store_partial(f16* p, Reg a, int n) {
    store_halves(p, narrow_f16(a), n);
  }
  static PERSEID_INLINE void stream(float* p, Reg a) { _mm256_stream_ps(p, a); }
  static PERSEID_INLINE void stream(bf16* p, Reg a) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), narrow_bf16(a));
  }
  static PERSEID_INLINE void stream(f16* p, Reg a) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), narrow_f16(a));
  }
  static PERSEID_INLINE void fence() { _mm_sfence(); }

  static PERSEID_INLINE Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static PERSEID_INLINE Reg sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static PERSEID_INLINE Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static PERSEID_INLINE Reg div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  static PERSEID_INLINE Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static PERSEID_INLINE Reg fms(Reg a, Reg b, Reg c) { return _mm256_fmsub_ps(a, b, c); }
  static PERSEID_INLINE Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
  static PERSEID_INLINE Reg min(Reg a, Reg b) { return _mm256_min_ps(a, b); }
  // The floor of -200 keeps -inf - -inf out; scale_by_power makes 0 of it.
  static PERSEID_INLINE Reg fraction(Reg a) {
    a = max(_mm256_set1_ps(-200.0f), a);
    return sub(a, _mm256_floor_ps(a));
  }
  // In two steps of half the power: each is in range where the result is, and a result below the
  // normal numbers is rounded by the second.
  static PERSEID_INLINE Reg scale_by_power(Reg a, Reg n) {
    const __m256i power = _mm256_cvtps_epi32(_mm256_floor_ps(
        _mm256_max_ps(_mm256_set1_ps(-252.0f), _mm256_min_ps(_mm256_set1_ps(254.0f), n))));
    const __m256i half = _mm256_srai_epi32(power, 1);
    return mul(mul(a, power_of_two(half)), power_of_two(_mm256_sub_epi32(power, half)));
  }
  static PERSEID_INLINE Mask less(Reg a, Reg b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static PERSEID_INLINE Mask is_nan(Reg a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
  static PERSEID_INLINE Mask either(Mask a, Mask b) { return _mm256_or_ps(a, b); }
  static PERSEID_INLINE bool any(Mask m) { return _mm256_movemask_ps(m) != 0; }
  static PERSEID_INLINE Mask first(int n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane));
  }
  static PERSEID_INLINE Mask nonzero_bytes(const uint8_t* p) {
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(wide, _mm256_setzero_si256()));
  }
  static PERSEID_INLINE Reg select(Mask m, Reg a, Reg b) { return _mm256_blendv_ps(b, a, m); }
  static PERSEID_INLINE float reduce_add(Reg a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static PERSEID_INLINE float reduce_max(Reg a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }

  static PERSEID_INLINE void transpose(Reg (&r)[kLanes]) {
    Reg t[kLanes];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
      r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
      t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) r[i] = t[i];
  }

 private:
  static PERSEID_INLINE Reg power_of_two(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  static PERSEID_INLINE Reg widen_bf16(__m128i a) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(a), 16));
  }
  static PERSEID_INLINE __m128i narrow_f16(Reg a) {
    return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static PERSEID_INLINE __m128i narrow_bf16(Reg a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i result = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(is_nan(a)));
    return _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
  }
  // There are no masked moves of 16-bit elements: they go through memory.
  template <class T>
  static PERSEID_INLINE __m128i load_halves(const T* p, int n) {
    alignas(16) T part[kLanes] = {};
    for (int i = 0; i < n; ++i) part[i] = p[i];
    return _mm_load_si128(reinterpret_cast<const __m128i*>(part));
  }
  template <class T>
  static PERSEID_INLINE void store_halves(T* p, __m128i a, int n) {
    alignas(16) T part[kLanes];
    _mm_store_si128(reinterpret_cast<__m128i*>(part), a);
    for (int i = 0; i < n; ++i) p[i] = part[i];
  }
};

struct F64 {
  using Scalar = double;
  using Reg = __m256d;
  using Mask = __m256d;
  static constexpr int kLanes = 4;

  static PERSEID_INLINE Reg zero() { return _mm256_setzero_pd(); }
  static PERSEID_INLINE Reg set1(double x) { return _mm256_set1_pd(x); }
  static PERSEID_INLINE Reg load(const double* p) { return _mm256_loadu_pd(p); }
  static PERSEID_INLINE Reg load_partial(const double* p, int n) {
    return _mm256_maskload_pd(p, _mm256_castpd_si256(first(n)));
  }
  static PERSEID_INLINE void store(double* p, Reg a) { _mm256_storeu_pd(p, a); }
  static PERSEID_INLINE void store_partial(double* p, Reg a, int n) {
    _mm256_maskstore_pd(p, _mm256_castpd_si256(first(n)), a);
  }
  static PERSEID_INLINE void stream(double* p, Reg a) { _mm256_stream_pd(p, a); }

  static PERSEID_INLINE Reg add(Reg a, Reg b) { return _mm256_add_pd(a, b); }
  static PERSEID_INLINE Reg sub(Reg a, Reg b) { return _mm256_sub_pd(a, b); }
  static PERSEID_INLINE Reg mul(Reg a, Reg b) { return _mm256_mul_pd(a, b); }
  static PERSEID_INLINE Reg div(Reg a, Reg b) { return _mm256_div_pd(a, b); }
  static PERSEID_INLINE Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_pd(a, b, c); }
  static PERSEID_INLINE Reg fms(Reg a, Reg b, Reg c) { return _mm256_fmsub_pd(a, b, c); }
  static PERSEID_INLINE Reg max(Reg a, Reg b) { return _mm256_max_pd(a, b); }
  static PERSEID_INLINE Reg min(Reg a, Reg b) { return _mm256_min_pd(a, b); }
  static PERSEID_INLINE Reg fraction(Reg a) {
    a = max(_mm256_set1_pd(-1200.0), a);
    return sub(a, _mm256_floor_pd(a));
  }
  static PERSEID_INLINE Reg scale_by_power(Reg a, Reg n) {
    const __m128i power = _mm256_cvtpd_epi32(_mm256_floor_pd(
        _mm256_max_pd(_mm256_set1_pd(-2044.0), _mm256_min_pd(_mm256_set1_pd(2046.0), n))));
    const __m128i half = _mm_srai_epi32(power, 1);
    return mul(mul(a, power_of_two(half)), power_of_two(_mm_sub_epi32(power, half)));
  }
  static PERSEID_INLINE Mask less(Reg a, Reg b) { return _mm256_cmp_pd(a, b, _CMP_LT_OQ); }
  static PERSEID_INLINE Mask is_nan(Reg a) { return _mm256_cmp_pd(a, a, _CMP_UNORD_Q); }
  static PERSEID_INLINE Mask either(Mask a, Mask b) { return _mm256_or_pd(a, b); }
  static PERSEID_INLINE bool any(Mask m) { return _mm256_movemask_pd(m) != 0; }
  static PERSEID_INLINE Mask first(int n) {
    const __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3);
    return _mm256_castsi256_pd(_mm256_cmpgt_epi64(_mm256_set1_epi64x(n), lane));
  }
  static PERSEID_INLINE Mask nonzero_bytes(const uint8_t* p) {
    int bytes;
    __builtin_memcpy(&bytes, p, sizeof bytes);
    const __m256i wide = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(bytes));
    return _mm256_castsi256_pd(_mm256_cmpgt_epi64(wide, _mm256_setzero_si256()));
  }
  static PERSEID_INLINE Reg select(Mask m, Reg a, Reg b) { return _mm256_blendv_pd(b, a, m); }
  static PERSEID_INLINE double reduce_add(Reg a) {
    const __m128d s = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
  }
  static PERSEID_INLINE double reduce_max(Reg a) {
    const __m128d s = _mm_max_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_max_sd(s, _mm_unpackhi_pd(s, s)));
  }

  static PERSEID_INLINE void transpose(Reg (&r)[kLanes]) {
    const Reg t0 = _mm256_unpacklo_pd(r[0], r[1]), t1 = _mm256_unpackhi_pd(r[0], r[1]);
    const Reg t2 = _mm256_unpacklo_pd(r[2], r[3]), t3 = _mm256_unpackhi_pd(r[2], r[3]);
    r[0] = _mm256_permute2f128_pd(t0, t2, 0x20);
    r[1] = _mm256_permute2f128_pd(t1, t3, 0x20);
    r[2] = _mm256_permute2f128_pd(t0, t2, 0x31);
    r[3] = _mm256_permute2f128_pd(t1, t3, 0x31);
  }

 private:
  static PERSEID_INLINE Reg power_of_two(__m128i n) {
    return _mm256_castsi256_pd(_mm256_slli_epi64(
        _mm256_add_epi64(_mm256_cvtepi32_epi64(n), _mm256_set1_epi64x(1023)), 52));
  }
};

struct U64 {
  using Reg = __m256i;
  static constexpr int kLanes = 4;
  static PERSEID_INLINE Reg load(const uint64_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static PERSEID_INLINE void store(uint64_t* p, Reg a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a);
  }
  static PERSEID_INLINE Reg set1(uint64_t x) { return _mm256_set1_epi64x(static_cast<int64_t>(x)); }
  static PERSEID_INLINE Reg multiply_low(Reg a, Reg b) { return _mm256_mul_epu32(a, b); }
  static PERSEID_INLINE Reg high(Reg a) { return _mm256_srli_epi64(a, 32); }
  static PERSEID_INLINE Reg exclusive_or(Reg a, Reg b) { return _mm256_xor_si256(a, b); }
};

// 12 accumulators, 2 vectors of B and a broadcast of A: 15 of 16 registers.
struct F32Dot {
  using Vector = F32;
  using Element = float;
  static constexpr int kDepth = 1;
  static constexpr int kRows = 6;
  static constexpr int kVectors = 2;
  static PERSEID_INLINE F32::Reg broadcast(const float* a) { return _mm256_broadcast_ss(a); }
  static PERSEID_INLINE F32::Reg load(const float* b) { return _mm256_loadu_ps(b); }
  static PERSEID_INLINE F32::Reg multiply_add(F32::Reg a, F32::Reg b, F32::Reg c) {
    return _mm256_fmadd_ps(a, b, c);
  }
};

struct F64Dot {
  using Vector = F64;
  using Element = double;
  static constexpr int kDepth = 1;
  static constexpr int kRows = 6;
  static constexpr int kVectors = 2;
  static PERSEID_INLINE F64::Reg broadcast(const double* a) { return _mm256_broadcast_sd(a); }
  static PERSEID_INLINE F64::Reg load(const double* b) { return _mm256_loadu_pd(b); }
  static PERSEID_INLINE F64::Reg multiply_add(F64::Reg a, F64::Reg b, F64::Reg c) {
    return _mm256_fmadd_pd(a, b, c);
  }
};

inline constexpr bool kHasBf16Dot = false;
using DotOfBf16 = F32Dot;

}  // namespace perseid::internal::cpu::PERSEID_ISA
