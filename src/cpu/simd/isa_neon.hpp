// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// 64-bit Arm: the vectors that every such CPU has. Operations as in isa_scalar.hpp.
#pragma once

#include <arm_neon.h>

#include "math/dtype.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

struct F32 {
  using Scalar = float;
  using Reg = float32x4_t;
  using Mask = uint32x4_t;  // all bits of a lane, or none
  static constexpr int kLanes = 4;

  static PERSEID_INLINE Reg zero() { return vdupq_n_f32(0); }
  static PERSEID_INLINE Reg set1(float x) { return vdupq_n_f32(x); }
  static PERSEID_INLINE Reg load(const float* p) { return vld1q_f32(p); }
  static PERSEID_INLINE Reg load(const bf16* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(load_halves(p), 16));
  }
  static PERSEID_INLINE Reg load(const f16* p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(load_halves(p)));
  }
  template <class From>
  static PERSEID_INLINE Reg load_partial(const From* p, int n) {
    From part[kLanes] = {};
    for (int i = 0; i < n; ++i) part[i] = p[i];
    return load(part);
  }
  static PERSEID_INLINE void store(float* p, Reg a) { vst1q_f32(p, a); }
  static PERSEID_INLINE void store(bf16* p, Reg a) {
    const uint32x4_t bits = vreinterpretq_u32_f32(a);
    const uint32x4_t high = vshrq_n_u32(bits, 16);
    const uint32x4_t odd = vandq_u32(high, vdupq_n_u32(1));
    const uint32x4_t rounded =
        vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
    const uint32x4_t quiet = vorrq_u32(high, vdupq_n_u32(0x40));
    store_halves(p, vmovn_u32(vbslq_u32(is_nan(a), quiet, rounded)));
  }
  static PERSEID_INLINE void store(f16* p, Reg a) {
    store_halves(p, vreinterpret_u16_f16(vcvt_f16_f32(a)));
  }
  template <class To>
  static PERSEID_INLINE void store_partial(To* p, Reg a, int n) {
    To part[kLanes];
    store(part, a);
    for (int i = 0; i < n; ++i) p[i] = part[i];
  }
  template <class To>
  static PERSEID_INLINE void stream(To* p, Reg a) {
    store(p, a);
  }
  static PERSEID_INLINE void fence() {}

  static PERSEID_INLINE Reg add(Reg a, Reg b) { return vaddq_f32(a, b); }
  static PERSEID_INLINE Reg sub(Reg a, Reg b) { return vsubq_f32(a, b); }
  static PERSEID_INLINE Reg mul(Reg a, Reg b) { return vmulq_f32(a, b); }
  static PERSEID_INLINE Reg div(Reg a, Reg b) { return vdivq_f32(a, b); }
  static PERSEID_INLINE Reg fma(Reg a, Reg b, Reg c) { return vfmaq_f32(c, a, b); }
  static PERSEID_INLINE Reg fms(Reg a, Reg b, Reg c) { return vnegq_f32(vfmsq_f32(c, a, b)); }
  // Not vmaxq and vminq, which answer NaN where either is NaN.
  static PERSEID_INLINE Reg max(Reg a, Reg b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static PERSEID_INLINE Reg min(Reg a, Reg b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
  // The floor of -200 keeps -inf - -inf out; scale_by_power makes 0 of it.
  static PERSEID_INLINE Reg fraction(Reg a) {
    a = max(set1(-200.0f), a);
    return sub(a, vrndmq_f32(a));
  }
  // In two steps of half the power: each is in range where the result is, and a result below the
  // normal numbers is rounded by the second.
  static PERSEID_INLINE Reg scale_by_power(Reg a, Reg n) {
    const int32x4_t power = vcvtmq_s32_f32(max(set1(-252.0f), min(set1(254.0f), n)));
    const int32x4_t half = vshrq_n_s32(power, 1);
    return mul(mul(a, power_of_two(half)), power_of_two(vsubq_s32(power, half)));
  }
  static PERSEID_INLINE Mask less(Reg a, Reg b) { return vcltq_f32(a, b); }
  static PERSEID_INLINE Mask is_nan(Reg a) { return vmvnq_u32(vceqq_f32(a, a)); }
  static PERSEID_INLINE Mask either(Mask a, Mask b) { return vorrq_u32(a, b); }
  static PERSEID_INLINE bool any(Mask m) { return vmaxvq_u32(m) != 0; }
  static PERSEID_INLINE Mask first(int n) {
    static constexpr int32_t kLane[kLanes] = {0, 1, 2, 3};
    return vcgtq_s32(vdupq_n_s32(n), vld1q_s32(kLane));
  }
  static PERSEID_INLINE Mask nonzero_bytes(const uint8_t* p) {
    uint32_t bytes;
    __builtin_memcpy(&bytes, p, sizeof bytes);
    const uint8x8_t narrow = vreinterpret_u8_u32(vdup_n_u32(bytes));
    const uint32x4_t wide = vmovl_u16(vget_low_u16(vmovl_u8(narrow)));
    return vcgtq_u32(wide, vdupq_n_u32(0));
  }
  static PERSEID_INLINE Reg select(Mask m, Reg a, Reg b) { return vbslq_f32(m, a, b); }
  static PERSEID_INLINE float reduce_add(Reg a) { return vaddvq_f32(a); }
  static PERSEID_INLINE float reduce_max(Reg a) { return vmaxvq_f32(a); }

  static PERSEID_INLINE void transpose(Reg (&r)[kLanes]) {
    const Reg t0 = vzip1q_f32(r[0], r[2]), t1 = vzip2q_f32(r[0], r[2]);
    const Reg t2 = vzip1q_f32(r[1], r[3]), t3 = vzip2q_f32(r[1], r[3]);
    r[0] = vzip1q_f32(t0, t2);
    r[1] = vzip2q_f32(t0, t2);
    r[2] = vzip1q_f32(t1, t3);
    r[3] = vzip2q_f32(t1, t3);
  }

 private:
  static PERSEID_INLINE Reg power_of_two(int32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
  }
  template <class T>
  static PERSEID_INLINE uint16x4_t load_halves(const T* p) {
    uint16x4_t halves;
    __builtin_memcpy(&halves, p, sizeof halves);
    return halves;
  }
  template <class T>
  static PERSEID_INLINE void store_halves(T* p, uint16x4_t halves) {
    __builtin_memcpy(static_cast<void*>(p), &halves, sizeof halves);
  }
};

struct F64 {
  using Scalar = double;
  using Reg = float64x2_t;
  using Mask = uint64x2_t;
  static constexpr int kLanes = 2;

  static PERSEID_INLINE Reg zero() { return vdupq_n_f64(0); }
  static PERSEID_INLINE Reg set1(double x) { return vdupq_n_f64(x); }
  static PERSEID_INLINE Reg load(const double* p) { return vld1q_f64(p); }
  static PERSEID_INLINE Reg load_partial(const double* p, int n) {
    return n > 0 ? vsetq_lane_f64(*p, zero(), 0) : zero();
  }
  static PERSEID_INLINE void store(double* p, Reg a) { vst1q_f64(p, a); }
  static PERSEID_INLINE void store_partial(double* p, Reg a, int n) {
    if (n > 0) *p = vgetq_lane_f64(a, 0);
  }
  static PERSEID_INLINE void stream(double* p, Reg a) { vst1q_f64(p, a); }

  static PERSEID_INLINE Reg add(Reg a, Reg b) { return vaddq_f64(a, b); }
  static PERSEID_INLINE Reg sub(Reg a, Reg b) { return vsubq_f64(a, b); }
  static PERSEID_INLINE Reg mul(Reg a, Reg b) { return vmulq_f64(a, b); }
  static PERSEID_INLINE Reg div(Reg a, Reg b) { return vdivq_f64(a, b); }
  static PERSEID_INLINE Reg fma(Reg a, Reg b, Reg c) { return vfmaq_f64(c, a, b); }
  static PERSEID_INLINE Reg fms(Reg a, Reg b, Reg c) { return vnegq_f64(vfmsq_f64(c, a, b)); }
  static PERSEID_INLINE Reg max(Reg a, Reg b) { return vbslq_f64(vcgtq_f64(a, b), a, b); }
  static PERSEID_INLINE Reg min(Reg a, Reg b) { return vbslq_f64(vcltq_f64(a, b), a, b); }
  static PERSEID_INLINE Reg fraction(Reg a) {
    a = max(set1(-1200.0), a);
    return sub(a, vrndmq_f64(a));
  }
  static PERSEID_INLINE Reg scale_by_power(Reg a, Reg n) {
    const int64x2_t power = vcvtmq_s64_f64(max(set1(-2044.0), min(set1(2046.0), n)));
    const int64x2_t half = vshrq_n_s64(power, 1);
    return mul(mul(a, power_of_two(half)), power_of_two(vsubq_s64(power, half)));
  }
  static PERSEID_INLINE Mask less(Reg a, Reg b) { return vcltq_f64(a, b); }
  static PERSEID_INLINE Mask is_nan(Reg a) {
    return vreinterpretq_u64_u32(vmvnq_u32(vreinterpretq_u32_u64(vceqq_f64(a, a))));
  }
  static PERSEID_INLINE Mask either(Mask a, Mask b) { return vorrq_u64(a, b); }
  static PERSEID_INLINE bool any(Mask m) { return vmaxvq_u32(vreinterpretq_u32_u64(m)) != 0; }
  static PERSEID_INLINE Mask first(int n) {
    static constexpr int64_t kLane[kLanes] = {0, 1};
    return vcgtq_s64(vdupq_n_s64(n), vld1q_s64(kLane));
  }
  static PERSEID_INLINE Mask nonzero_bytes(const uint8_t* p) {
    return vcgtq_u64(vsetq_lane_u64(p[1], vdupq_n_u64(p[0]), 1), vdupq_n_u64(0));
  }
  static PERSEID_INLINE Reg select(Mask m, Reg a, Reg b) { return vbslq_f64(m, a, b); }
  static PERSEID_INLINE double reduce_add(Reg a) { return vaddvq_f64(a); }
  static PERSEID_INLINE double reduce_max(Reg a) { return vmaxvq_f64(a); }

  static PERSEID_INLINE void transpose(Reg (&r)[kLanes]) {
    const Reg t = r[0];
    r[0] = vzip1q_f64(t, r[1]);
    r[1] = vzip2q_f64(t, r[1]);
  }

 private:
  static PERSEID_INLINE Reg power_of_two(int64x2_t n) {
    return vreinterpretq_f64_s64(vshlq_n_s64(vaddq_s64(n, vdupq_n_s64(1023)), 52));
  }
};

struct U64 {
  using Reg = uint64x2_t;
  static constexpr int kLanes = 2;
  static PERSEID_INLINE Reg load(const uint64_t* p) { return vld1q_u64(p); }
  static PERSEID_INLINE void store(uint64_t* p, Reg a) { vst1q_u64(p, a); }
  static PERSEID_INLINE Reg set1(uint64_t x) { return vdupq_n_u64(x); }
  static PERSEID_INLINE Reg multiply_low(Reg a, Reg b) {
    return vmull_u32(vmovn_u64(a), vmovn_u64(b));
  }
  static PERSEID_INLINE Reg high(Reg a) { return vshrq_n_u64(a, 32); }
  static PERSEID_INLINE Reg exclusive_or(Reg a, Reg b) { return veorq_u64(a, b); }
};

// 24 accumulators, 4 vectors of B and a broadcast of A: 29 of 32 registers.
template <class V>
struct NeonDot {
  using Vector = V;
  using Element = typename V::Scalar;
  static constexpr int kDepth = 1;
  static constexpr int kRows = 6;
  static constexpr int kVectors = 4;
  static PERSEID_INLINE typename V::Reg broadcast(const Element* a) { return V::set1(*a); }
  static PERSEID_INLINE typename V::Reg load(const Element* b) { return V::load(b); }
  static PERSEID_INLINE typename V::Reg multiply_add(typename V::Reg a, typename V::Reg b,
                                                     typename V::Reg c) {
    return V::fma(a, b, c);
  }
};
struct F32Dot : NeonDot<F32> {};
struct F64Dot : NeonDot<F64> {};

inline constexpr bool kHasBf16Dot = false;
using DotOfBf16 = F32Dot;

}  // namespace perseid::internal::cpu::PERSEID_ISA
