// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Blocks of one cluster: who they are, their barrier, and each other's shared memory. sm_90 and up.
#pragma once

#include "math/portable.hpp"

namespace perseid::cuda::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#special-registers-cluster-ctarank
__device__ __forceinline__ uint32_t block_of_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks arrive, each once a phase; what they wrote before is seen after wait.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-barrier-cluster
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The same variable in the shared memory of another block.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-mapa
__device__ __forceinline__ uint32_t address_in_block(const void* shared, uint32_t block) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))), "r"(block));
  return address;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st
__device__ __forceinline__ void store_in_block(uint32_t address, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" : : "r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ void store_in_block(uint32_t address, double value) {
  asm volatile("st.shared::cluster.f64 [%0], %1;" : : "r"(address), "d"(value) : "memory");
}

}  // namespace perseid::cuda::ptx
