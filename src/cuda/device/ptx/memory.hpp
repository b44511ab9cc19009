// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Loads and stores of whole vectors. Volatile, so that they stay in the order of the source, all
// loads of a row before the first store. Without hints to the caches: marking the data as used once
// (.cs, .L1::no_allocate) costs up to a tenth of the rate on an H200.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal::cuda::ptx {

// 32-bit words of one access.
template <int Words>
struct alignas(4 * Words) Packed {
  uint32_t word[Words];
};

// Predicated: the words are undefined where `wanted` is false. No branch, so that loads are issued
// back to back.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
__device__ __forceinline__ void load_if(bool wanted, const void* from, Packed<4>& to) {
  asm volatile(
      "{.reg .pred wanted; setp.ne.u32 wanted, %5, 0;"
      "@wanted ld.global.v4.u32 {%0, %1, %2, %3}, [%4];}"
      : "=r"(to.word[0]), "=r"(to.word[1]), "=r"(to.word[2]), "=r"(to.word[3])
      : "l"(__cvta_generic_to_global(from)), "r"(static_cast<uint32_t>(wanted)));
}
__device__ __forceinline__ void load_if(bool wanted, const void* from, Packed<2>& to) {
  asm volatile(
      "{.reg .pred wanted; setp.ne.u32 wanted, %3, 0;"
      "@wanted ld.global.v2.u32 {%0, %1}, [%2];}"
      : "=r"(to.word[0]), "=r"(to.word[1])
      : "l"(__cvta_generic_to_global(from)), "r"(static_cast<uint32_t>(wanted)));
}
__device__ __forceinline__ void load_if(bool wanted, const void* from, Packed<1>& to) {
  asm volatile(
      "{.reg .pred wanted; setp.ne.u32 wanted, %2, 0;"
      "@wanted ld.global.u32 %0, [%1];}"
      : "=r"(to.word[0])
      : "l"(__cvta_generic_to_global(from)), "r"(static_cast<uint32_t>(wanted)));
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st
__device__ __forceinline__ void store_if(bool wanted, void* to, const Packed<4>& from) {
  asm volatile(
      "{.reg .pred wanted; setp.ne.u32 wanted, %5, 0;"
      "@wanted st.global.v4.u32 [%0], {%1, %2, %3, %4};}"
      :
      : "l"(__cvta_generic_to_global(to)), "r"(from.word[0]), "r"(from.word[1]), "r"(from.word[2]),
        "r"(from.word[3]), "r"(static_cast<uint32_t>(wanted))
      : "memory");
}
__device__ __forceinline__ void store_if(bool wanted, void* to, const Packed<2>& from) {
  asm volatile(
      "{.reg .pred wanted; setp.ne.u32 wanted, %3, 0;"
      "@wanted st.global.v2.u32 [%0], {%1, %2};}"
      :
      : "l"(__cvta_generic_to_global(to)), "r"(from.word[0]), "r"(from.word[1]),
        "r"(static_cast<uint32_t>(wanted))
      : "memory");
}
__device__ __forceinline__ void store_if(bool wanted, void* to, const Packed<1>& from) {
  asm volatile(
      "{.reg .pred wanted; setp.ne.u32 wanted, %2, 0;"
      "@wanted st.global.u32 [%0], %1;}"
      :
      : "l"(__cvta_generic_to_global(to)), "r"(from.word[0]), "r"(static_cast<uint32_t>(wanted))
      : "memory");
}

// Adds four numbers in memory, each atomically, in no order; before sm_90 one by one.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-red
__device__ __forceinline__ void red_add_v4(float* to, float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
#else
  const float four[4] = {a, b, c, d};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;"
                 :
                 : "l"(__cvta_generic_to_global(to + i)), "f"(four[i])
                 : "memory");
#endif
}
// One of float64.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-red
__device__ __forceinline__ void red_add(double* to, double summand) {
  asm volatile("red.relaxed.gpu.global.add.f64 [%0], %1;"
               :
               : "l"(__cvta_generic_to_global(to)), "d"(summand)
               : "memory");
}

// No instruction: the compiler recomputes values derived from the words instead of keeping them in
// registers.
template <int Words>
__device__ __forceinline__ void forget_results_of(Packed<Words>& packed) {
#pragma unroll
  for (uint32_t& word : packed.word) asm volatile("" : "+r"(word));
}

// Shared memory. Volatile: what barriers and copies order stays in order.
__device__ __forceinline__ float2 load_shared_v2(uint32_t from) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "r"(from)
               : "memory");
  return value;
}
__device__ __forceinline__ float4 load_shared_v4(uint32_t from) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(from)
               : "memory");
  return value;
}
__device__ __forceinline__ double load_shared_f64(uint32_t from) {
  double value;
  asm volatile("ld.shared.f64 %0, [%1];" : "=d"(value) : "r"(from) : "memory");
  return value;
}

}  // namespace perseid::internal::cuda::ptx
