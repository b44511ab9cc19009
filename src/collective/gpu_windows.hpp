// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Memory of the GPU of each rank, which all ranks map.
#pragma once

#include "collective/group.hpp"
#include "cuda/runtime/peer_memory.hpp"

namespace perseid::internal::collective {

class GpuWindows {
 public:
  // Collective. `bytes` of each rank, the same numbers on all; of the own memory the first `words`
  // of 32 bits hold `initial`, the rest is not initialised. By VMM; by CUDA IPC where that cannot
  // be on some rank, or where PERSEID_PEER_MEMORY asks for it.
  static Status make(Group& group, const Operation& operation, std::shared_ptr<const cuda::Gpu> gpu,
                     const std::vector<size_t>& bytes, size_t words, uint32_t initial,
                     std::unique_ptr<GpuWindows>* windows);
  // As many on each rank.
  static Status make(Group& group, const Operation& operation, std::shared_ptr<const cuda::Gpu> gpu,
                     size_t bytes, size_t words, uint32_t initial,
                     std::unique_ptr<GpuWindows>* windows) {
    const std::vector<size_t> all(static_cast<size_t>(group.size()), bytes);
    return make(group, operation, std::move(gpu), all, words, initial, windows);
  }

  // Where this rank reaches the memory of `rank`.
  std::byte* data(int32_t rank) const { return memory_[static_cast<size_t>(rank)]->data(); }
  uint32_t* words(int32_t rank) const { return reinterpret_cast<uint32_t*>(data(rank)); }

 private:
  static Status make(cuda::PeerSharing sharing, Group& group, const Operation& operation,
                     const std::shared_ptr<const cuda::Gpu>& gpu, const std::vector<size_t>& bytes,
                     size_t words, uint32_t initial, std::unique_ptr<GpuWindows>* windows);

  std::vector<std::unique_ptr<cuda::PeerMemory>> memory_;
};

}  // namespace perseid::internal::collective
