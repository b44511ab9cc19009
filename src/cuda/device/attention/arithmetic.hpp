// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Arithmetic of scores: float, and double for float64.
#pragma once

#include "cuda/device/ptx/math.hpp"
#include "math/constants.hpp"
#include "math/dtype.hpp"

namespace perseid::internal::cuda {

inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

__device__ __forceinline__ float minus_infinity() { return float_from_bits(0xff800000u); }

// ln(2^power sum) to about a rounding of float32, for an integer and a normal number.
__device__ __forceinline__ float natural_logarithm(float power, float sum) {
  constexpr float kLn2Rest = -1.9046543e-9f;  // of ln 2 behind kLn2
  // The exponent that leaves a mantissa of [sqrt(1/2), sqrt(2)).
  const uint32_t shifted = float_bits(sum) - 0x3f3504f3u;
  const int exponent = static_cast<int>(shifted) >> 23;
  const float whole = power + static_cast<float>(exponent);
  const float mantissa = float_from_bits((shifted & 0x7fffffu) + 0x3f3504f3u);
  return sum != sum ? sum : fmaf(whole, kLn2, fmaf(whole, kLn2Rest, logf(mantissa)));
}

// lse in units of log2: e^-lse = 2^-rounded factor. Its product with log2(e) alone has an error of
// up to 2^-20 from 16 on, and with it all weights of its query. Below 256, `rounded` is a multiple
// of 2^-16, whose sums with exponents are exact.
struct LseInLog2 {
  float rounded, factor;

  explicit __device__ __forceinline__ LseInLog2(float lse) : rounded(lse * kLog2E) {
    constexpr float kLog2ERest = 1.9259630e-8f;  // of log2(e) behind kLog2E
    if (fabsf(rounded) < 256) rounded = rintf(rounded * 0x1p16f) * 0x1p-16f;
    const float rest = fmaf(lse, kLog2E, -rounded) + lse * kLog2ERest;
    // NaN where lse is not finite; beyond, lse says no more of weights.
    factor = fabsf(rest) < 0x1p-10f ? fmaf(rest, -kLn2, 1) : 1;
  }
};

// The arithmetic of the score chain and its modifiers (math/score_modifier.hpp) in a thread.
struct FloatArithmetic {
  using Scalar = float;
  using Reg = float;
  using Mask = bool;
  static __device__ __forceinline__ float set1(float x) { return x; }
  static __device__ __forceinline__ float add(float a, float b) { return a + b; }
  static __device__ __forceinline__ float sub(float a, float b) { return a - b; }
  static __device__ __forceinline__ float mul(float a, float b) { return a * b; }
  static __device__ __forceinline__ float div(float a, float b) {
    return a * ptx::approximate_reciprocal(b);
  }
  static __device__ __forceinline__ float fma(float a, float b, float c) { return fmaf(a, b, c); }
  static __device__ __forceinline__ float exp2(float x) { return ptx::approximate_exp2(x); }
  static __device__ __forceinline__ bool less(float a, float b) { return a < b; }
  static __device__ __forceinline__ float select(bool condition, float a, float b) {
    return condition ? a : b;
  }
  // The other one where one is NaN.
  static __device__ __forceinline__ float max(float a, float b) { return fmaxf(a, b); }
};

// ln(2)^i / i!, in constant memory, which instructions read as an operand.
inline constexpr int kPowerTerms = 13;
[[maybe_unused]] static __constant__ double kPowerSeries[kPowerTerms] = {1.0,
                                                                         6.9314718055994531e-01,
                                                                         2.4022650695910071e-01,
                                                                         5.5504108664821580e-02,
                                                                         9.6181291076284772e-03,
                                                                         1.3333558146428443e-03,
                                                                         1.5403530393381609e-04,
                                                                         1.5252733804059840e-05,
                                                                         1.3215486790144310e-06,
                                                                         1.0178086009239699e-07,
                                                                         7.0549116208011233e-09,
                                                                         4.4455382718708116e-10,
                                                                         2.5678435993488206e-11};

struct DoubleArithmetic {
  using Scalar = double;
  using Reg = double;
  using Mask = bool;
  static __device__ __forceinline__ double set1(double x) { return x; }
  static __device__ __forceinline__ double add(double a, double b) { return a + b; }
  static __device__ __forceinline__ double sub(double a, double b) { return a - b; }
  static __device__ __forceinline__ double mul(double a, double b) { return a * b; }
  static __device__ __forceinline__ double div(double a, double b) { return a / b; }
  static __device__ __forceinline__ double fma(double a, double b, double c) {
    return ::fma(a, b, c);
  }
  // With an error of about 1 ulp; results up to 2^-1022 become 0, those from 2^1022 on infinity.
  // Whole and fraction by rounding, the Taylor series of the fraction, and the whole added to the
  // exponent. Ranges are tested by integers: double instructions share their pipe with the tensor
  // cores'.
  static __device__ __forceinline__ double exp2(double x) {
    constexpr double kWhole = 0x1.8p52;  // the last bits of a sum with it are a whole number
    const double shifted = x + kWhole, fraction = x - (shifted - kWhole);
    double power = kPowerSeries[kPowerTerms - 1];
#pragma unroll
    for (int i = kPowerTerms - 2; i >= 0; --i) power = ::fma(power, fraction, kPowerSeries[i]);
    const auto high = static_cast<uint32_t>(__builtin_bit_cast(uint64_t, x) >> 32);
    const uint32_t magnitude = high & 0x7fffffff;
    constexpr uint32_t kInfinity = 0x7ff00000, kMost = 0x408ff000;  // infinity and 1022
    const uint64_t beyond = magnitude > kInfinity ? high : high == magnitude ? kInfinity : 0;
    const uint64_t bits =
        __builtin_bit_cast(uint64_t, power) + (__builtin_bit_cast(uint64_t, shifted) << 52);
    return __builtin_bit_cast(double, magnitude < kMost ? bits : beyond << 32);
  }
  static __device__ __forceinline__ bool less(double a, double b) { return a < b; }
  static __device__ __forceinline__ double select(bool condition, double a, double b) {
    return condition ? a : b;
  }
  static __device__ __forceinline__ double max(double a, double b) { return fmax(a, b); }
};

// 2^power, a weight. Where dropout drops the larger ones, subnormal numbers are all that is left of
// a row.
template <bool kDropout>
__device__ __forceinline__ float weight_of(float power) {
  return ptx::approximate_exp2<kDropout>(power);
}
template <bool kDropout>
__device__ __forceinline__ double weight_of(double power) {
  return DoubleArithmetic::exp2(power);
}

// The same of a power times kPowerPart, which factors before it can have: half of it with dropout,
// whose square may be subnormal although it is not. That saves two of three instructions.
template <bool kDropout>
inline constexpr float kPowerPart = kDropout ? 0.5f : 1.0f;
template <bool kDropout>
__device__ __forceinline__ float weight_of_part(float part) {
  const float weight = ptx::approximate_exp2(part);
  return kDropout ? weight * weight : weight;
}

template <class Real>
struct ArithmeticOf {
  using Type = FloatArithmetic;
};
template <>
struct ArithmeticOf<double> {
  using Type = DoubleArithmetic;
};

}  // namespace perseid::internal::cuda
