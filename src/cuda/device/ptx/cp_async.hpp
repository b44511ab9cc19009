// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies of 16, 8 or 4 bytes from global to shared memory, issued by each thread,
// without a register in between. sm_80 and up.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal::cuda::ptx {

// The first `bytes` of 16, and zeros for the rest; 0 bytes do not access `from`. Both addresses are
// multiples of 16.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
__device__ __forceinline__ void cp_async(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
}

// 16 bytes, or zeros without an access to `from`. It takes fewer instructions than a count of
// bytes.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
__device__ __forceinline__ void cp_async_or_zero(uint32_t to, const void* from, bool copies) {
  asm volatile(
      "{.reg .pred ignored; setp.eq.u32 ignored, %2, 0;"
      "cp.async.cg.shared.global [%0], [%1], 16, ignored;}"
      :
      : "r"(to), "l"(__cvta_generic_to_global(from)), "r"(static_cast<uint32_t>(copies))
      : "memory");
}

// The same for 8 bytes, by way of the L1 cache. Both addresses are multiples of 8.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
__device__ __forceinline__ void cp_async_8_or_zero(uint32_t to, const void* from, bool copies) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
               :
               : "r"(to), "l"(__cvta_generic_to_global(from)), "r"(copies ? 8 : 0)
               : "memory");
}

// The same for 4 bytes, multiples of 4.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
__device__ __forceinline__ void cp_async_4_or_zero(uint32_t to, const void* from, bool copies) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :
               : "r"(to), "l"(__cvta_generic_to_global(from)), "r"(copies ? 4 : 0)
               : "memory");
}

// The thread's copies since its last commit become a group, which may be empty.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-commit-group
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// All of the thread's groups but the last kPending have arrived. Other threads see them after a
// barrier.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-wait-group
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kPending) : "memory");
}
// Arrives at an mbarrier when all copies that the thread has issued have arrived; others that wait
// for the phase see them. Before, without waiting.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-cp-async-mbarrier-arrive
__device__ __forceinline__ void cp_async_mbarrier_arrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" : : "r"(barrier) : "memory");
}

}  // namespace perseid::internal::cuda::ptx
