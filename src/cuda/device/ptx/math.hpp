// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Arithmetic and conversions that have an instruction of their own.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal::cuda::ptx {

// 2^x with an error of about 2 ulp. Results that are subnormal become 0, unless kSubnormals, which
// takes three instructions more.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-ex2
template <bool kSubnormals = false>
__device__ __forceinline__ float approximate_exp2(float x) {
  float result;
  if constexpr (kSubnormals)
    asm("ex2.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  else
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// log2(x) with an absolute error of about 2^-22 near 1, else 2 ulp; of 0 it is -inf.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-lg2
__device__ __forceinline__ float approximate_log2(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
// 1 / x with an error of 1 ulp.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-rcp
__device__ __forceinline__ float approximate_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// The larger one, and NaN where either is.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-max
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// Both halves at once.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#half-precision-floating-point-instructions-max
__device__ __forceinline__ uint32_t max_or_nan_bf16x2(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
__device__ __forceinline__ uint32_t max_or_nan_f16x2(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt
__device__ __forceinline__ float f16_to_float(uint32_t bits) {
  float result;
  asm("{.reg .b16 half; cvt.u16.u32 half, %1; cvt.f32.f16 %0, half;}" : "=f"(result) : "r"(bits));
  return result;
}
// Two values rounded to nearest even, the first in the low half.
__device__ __forceinline__ uint32_t to_bf16x2(float low, float high) {
  uint32_t result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}
__device__ __forceinline__ uint32_t to_f16x2(float low, float high) {
  uint32_t result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

// The same to types of 8 bits; what is beyond the largest number becomes that.
__device__ __forceinline__ uint16_t to_e4m3x2(float low, float high) {
  uint16_t result;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(result) : "f"(high), "f"(low));
  return result;
}
__device__ __forceinline__ uint16_t to_e5m2x2(float low, float high) {
  uint16_t result;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(result) : "f"(high), "f"(low));
  return result;
}

// The sign of byte `low` in the lower 16 bits, that of byte `high` in the upper ones: each all ones
// or all zeros. Bytes 4 to 7 are those of `more`.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-prmt
__device__ __forceinline__ uint32_t spread_signs(uint32_t bytes, int low, int high,
                                                 uint32_t more = 0) {
  const auto choice = static_cast<uint32_t>(0x8888 | high << 12 | high << 8 | low << 4 | low);
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(bytes), "r"(more), "r"(choice));
  return result;
}

// Four of the eight bytes of two words, those of `first` numbered from 0, by a digit for each.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-prmt
__device__ __forceinline__ uint32_t choose_bytes(uint32_t first, uint32_t second, uint32_t digits) {
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(first), "r"(second), "r"(digits));
  return result;
}

}  // namespace perseid::internal::cuda::ptx
