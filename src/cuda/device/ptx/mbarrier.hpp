// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Barriers of one block: mbarriers in shared memory, which count arrivals and bytes, by their
// 32-bit addresses; and the sixteen named barriers. sm_80 and up but for what TMA needs.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal::cuda::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-init
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :
               : "r"(barrier), "r"(arrivals)
               : "memory");
}
// After the last mbarrier_init, before other threads and TMA use the barriers.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar-fence
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-arrive
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier) : "memory");
}
// Arrives, and the phase completes only when TMA has written so many bytes.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(barrier), "r"(bytes)
               : "memory");
}

// Whether the phase of this parity has completed, without waiting.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-test-wait-try-wait
__device__ __forceinline__ bool mbarrier_test(uint32_t barrier, uint32_t parity) {
  uint32_t ended;
  asm volatile(
      "{.reg .pred ended; mbarrier.test_wait.parity.shared::cta.b64 ended, [%1], %2;"
      "selp.u32 %0, 1, 0, ended;}"
      : "=r"(ended)
      : "r"(barrier), "r"(parity)
      : "memory");
  return ended != 0;
}

// Waits until the phase completes, before sm_90 by testing again and again; acquires what its
// arrivals released.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-test-wait-try-wait
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  uint32_t ended;
  do {
    asm volatile(
        "{.reg .pred ended; mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;"
        "selp.u32 %0, 1, 0, ended;}"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (ended == 0);
#else
  while (!mbarrier_test(barrier, parity)) {
  }
#endif
}

// Named barriers: `threads` threads take part, whole warps; each syncs or arrives.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
__device__ __forceinline__ void named_barrier_sync(int name, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(name), "r"(threads) : "memory");
}
// Whether `own` is true in any of the threads; all wait.
__device__ __forceinline__ bool named_barrier_any(int name, int threads, bool own) {
  uint32_t any;
  asm volatile(
      "{.reg .pred own, any; setp.ne.u32 own, %3, 0;"
      "bar.red.or.pred any, %1, %2, own; selp.u32 %0, 1, 0, any;}"
      : "=r"(any)
      : "r"(name), "r"(threads), "r"(own ? 1 : 0)
      : "memory");
  return any != 0;
}
__device__ __forceinline__ void named_barrier_arrive(int name, int threads) {
  asm volatile("bar.arrive %0, %1;" : : "r"(name), "r"(threads) : "memory");
}

}  // namespace perseid::internal::cuda::ptx
