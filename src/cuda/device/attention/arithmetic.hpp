// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Float arithmetic of scores.
#pragma once

#include "cuda/device/ptx/math.hpp"
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
};

}  // namespace perseid::internal::cuda
