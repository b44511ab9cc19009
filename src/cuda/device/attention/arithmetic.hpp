// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Float arithmetic of scores.
#pragma once

#include "cuda/device/ptx/math.hpp"
#include "math/dtype.hpp"

namespace perseid::internal::cuda {

inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

__device__ __forceinline__ float minus_infinity() { return float_from_bits(0xff800000u); }

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
