// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// When things are computed, where compiler and assembler would choose another time.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal::cuda::ptx {

// threadIdx.x, read anew: what is computed from it is not kept in registers from earlier on.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#special-registers-tid
__device__ __forceinline__ int thread_number() {
  uint32_t number;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
  return static_cast<int>(number);
}

// What stands behind this comes after `value` is computed, also in the assembler's order. It never
// sleeps, unless every lane's value is one NaN of 2^32.
__device__ __forceinline__ void order_after(float value) {
  if (!__any_sync(0xffffffffu, __float_as_uint(value) != 0xffffffffu)) __nanosleep(1);
}

// The compiler must not compute the numbers later than here.
template <int kCount>
__device__ __forceinline__ void materialize(uint32_t (&numbers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(numbers[i]));
}

}  // namespace perseid::internal::cuda::ptx
