// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Barriers of one block: those in shared memory, which count arrivals and bytes, by their 32-bit
// addresses; and the sixteen named ones. sm_90 and up.
#pragma once

#include "math/portable.hpp"

namespace perseid::cuda::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-init
__device__ __forceinline__ void phase_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :
               : "r"(barrier), "r"(arrivals)
               : "memory");
}
// After the last phase_init, before the block's threads and the copy engine see the barriers.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar-fence
__device__ __forceinline__ void phase_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-arrive
__device__ __forceinline__ void phase_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier) : "memory");
}
// Arrives, and lets the phase end only when so many bytes have come besides.
__device__ __forceinline__ void phase_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(barrier), "r"(bytes)
               : "memory");
}

// Until the phase of this parity has ended; what came before its end is seen then.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-test-wait-try-wait
__device__ __forceinline__ void phase_wait(uint32_t barrier, uint32_t parity) {
  uint32_t ended;
  do {
    asm volatile(
        "{.reg .pred ended; mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;"
        "selp.u32 %0, 1, 0, ended;}"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (ended == 0);
}

// Whether it has, without waiting.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-test-wait-try-wait
__device__ __forceinline__ bool phase_test(uint32_t barrier, uint32_t parity) {
  uint32_t ended;
  asm volatile(
      "{.reg .pred ended; mbarrier.test_wait.parity.shared::cta.b64 ended, [%1], %2;"
      "selp.u32 %0, 1, 0, ended;}"
      : "=r"(ended)
      : "r"(barrier), "r"(parity)
      : "memory");
  return ended != 0;
}

// Named barriers: `threads` of them take part, whole warps, some by waiting and some not.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
__device__ __forceinline__ void named_sync(int name, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int name, int threads) {
  asm volatile("bar.arrive %0, %1;" : : "r"(name), "r"(threads) : "memory");
}

// threadIdx.x, read anew: what is computed from it is not kept in registers from earlier on.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#special-registers-tid
__device__ __forceinline__ int thread_number() {
  uint32_t number;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
  return static_cast<int>(number);
}

// What stands behind this comes after `value` is computed, also in the assembler's order. It never
// sleeps, unless every lane's value is one NaN of 2^32.
__device__ __forceinline__ void after(float value) {
  if (!__any_sync(0xffffffffu, __float_as_uint(value) != 0xffffffffu)) __nanosleep(1);
}

// 64 bits that other blocks see as a whole; they order nothing but themselves.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
               : "=l"(value)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return value;
}
// 16 bits as they are in memory, whatever an L1 cache holds.
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

// A number that blocks of one device hand to each other.
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

// Nanoseconds since some time, the same for all blocks.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#special-registers-globaltimer
__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time) : : "memory");
  return time;
}

}  // namespace perseid::cuda::ptx
