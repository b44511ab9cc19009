// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Constraints on the order in which compiler and assembler compute.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal::cuda::ptx {

// threadIdx.x, read again: the compiler does not keep values computed from it in registers.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#special-registers-tid
__device__ __forceinline__ int thread_number() {
  uint32_t number;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
  return static_cast<int>(number);
}

// The code that follows is ordered after the computation of `value`, by the assembler too. It never
// sleeps, unless every lane's value is one particular NaN.
__device__ __forceinline__ void order_after(float value) {
  if (!__any_sync(0xffffffffu, __float_as_uint(value) != 0xffffffffu)) __nanosleep(1);
}

// At the start of one of two branches: keeps the compiler from hoisting what both compute in front
// of them, where it would take registers in both.
__device__ __forceinline__ void separate_branch() { asm volatile("" ::: "memory"); }

// The compiler computes the numbers here at the latest.
template <int kCount>
__device__ __forceinline__ void materialize(uint32_t (&numbers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(numbers[i]));
}

}  // namespace perseid::internal::cuda::ptx
