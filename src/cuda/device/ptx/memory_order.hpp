// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Accesses with memory order between blocks of one device, and the global timer. sm_70 and up.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal::cuda::ptx {

// Relaxed, gpu scope: atomic, orders no other access.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
               : "=l"(value)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return value;
}
// 32 or 16 bits from the L2 cache, past a stale L1 line.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return value;
}
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
__device__ __forceinline__ uint16_t load_relaxed(const uint16_t* from) {
  uint16_t value;
  asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];"
               : "=h"(value)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return value;
}
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st
__device__ __forceinline__ void store_relaxed(uint64_t* to, uint64_t value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;"
               :
               : "l"(__cvta_generic_to_global(to)), "l"(value)
               : "memory");
}

// Acquire and release, gpu scope.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
__device__ __forceinline__ uint64_t load_acquire(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];"
               : "=l"(value)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return value;
}
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st
__device__ __forceinline__ void store_release(uint64_t* to, uint64_t value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;"
               :
               : "l"(__cvta_generic_to_global(to)), "l"(value)
               : "memory");
}
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-red
__device__ __forceinline__ void add_release(uint64_t* to, uint64_t value) {
  asm volatile("red.release.gpu.global.add.u64 [%0], %1;"
               :
               : "l"(__cvta_generic_to_global(to)), "l"(value)
               : "memory");
}

// Stores `value` where `expected` is; the value before, with acquire and release order.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-atom
__device__ __forceinline__ uint64_t compare_and_swap(uint64_t* at, uint64_t expected,
                                                     uint64_t value) {
  uint64_t before;
  asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(__cvta_generic_to_global(at)), "l"(expected), "l"(value)
               : "memory");
  return before;
}

// The value before, with acquire and release order.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-atom
__device__ __forceinline__ uint64_t fetch_add(uint64_t* to, uint64_t value) {
  uint64_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(__cvta_generic_to_global(to)), "l"(value)
               : "memory");
  return before;
}

// System scope: ordered with the host, other GPUs and their copy engines, too.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
__device__ __forceinline__ uint32_t load_acquire_system(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return value;
}
__device__ __forceinline__ uint32_t load_relaxed_system(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return value;
}
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st
__device__ __forceinline__ void store_release_system(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(value)
               : "memory");
}

// The global timer in nanoseconds, the same for all blocks.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#special-registers-globaltimer
__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time) : : "memory");
  return time;
}

}  // namespace perseid::internal::cuda::ptx
