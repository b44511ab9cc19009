// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Blocks of one cluster: their ranks, their barrier, and distributed shared memory. sm_90 and up.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal::cuda::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#special-registers-cluster-ctarank
__device__ __forceinline__ uint32_t block_of_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks arrive, each once a phase. Relaxed: a release costs more than the
// barrier itself.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-barrier-cluster
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
// Releases the thread's writes.
__device__ __forceinline__ void cluster_arrive_and_release() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The same variable in the shared memory of another block.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-mapa
__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
__device__ __forceinline__ uint32_t address_in_block(uint32_t shared, uint32_t block) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(block));
  return address;
}
__device__ __forceinline__ uint32_t address_in_block(const void* shared, uint32_t block) {
  return address_in_block(shared_address(shared), block);
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
__device__ __forceinline__ float4 load_four_from_block(uint32_t address) {
  float4 four;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
               : "r"(address)
               : "memory");
  return four;
}
__device__ __forceinline__ uint32_t load_from_block(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

// Arrives at an mbarrier of another block, by its address from address_in_block. It releases no
// writes: the form with .release.cluster costs a memory fence for each arrival.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-arrive
__device__ __forceinline__ void mbarrier_arrive_in_block(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" : : "r"(barrier) : "memory");
}
// Waits until the phase of an mbarrier of this block (mbarrier.hpp) completes, and acquires what
// other blocks of the cluster released.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-test-wait-try-wait
__device__ __forceinline__ void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{.reg .pred done; again%=:"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;"
      "@!done bra again%=;}"
      :
      : "r"(barrier), "r"(parity)
      : "memory");
}

// Stores two numbers to the shared memory of a block, whose mbarrier counts their bytes.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st-async
__device__ __forceinline__ void send(uint32_t address, uint32_t barrier, float a, float b) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
               :
               : "r"(address), "f"(a), "f"(b), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void send(uint32_t address, uint32_t barrier, double a, double b) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f64 [%0], {%1, %2}, [%3];"
               :
               : "r"(address), "d"(a), "d"(b), "r"(barrier)
               : "memory");
}

}  // namespace perseid::internal::cuda::ptx
