// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Memory for callers, which all ranks of a group map: of the host, that of the ranks one after the
// other, or of the ranks' GPUs.
#pragma once

#include "collective/group.hpp"
#include "dispatch/device.hpp"

namespace perseid::internal::collective {

class GpuWindows;

class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();

  // Collective. `device`: null, or where the memory is to be.
  Status allocate(Group& group, const Operation& operation, const dispatch::Device* device,
                  size_t bytes, void** data);
  Status peer(const void* data, int32_t rank, void** peer) const;
  // Returns when no operation of ranks is in flight on the GPU, where the memory is of one.
  void release(const void* data);

 private:
  struct Block {
    std::vector<std::byte*> data;  // of each rank
    int32_t rank = 0;
    std::shared_ptr<Segment> segment;
    std::shared_ptr<cuda::Gpu> gpu;  // null: of the host
    std::unique_ptr<GpuWindows> windows;

    const std::byte* own() const { return data[static_cast<size_t>(rank)]; }
  };
  static void unmap(Block* block);

  std::vector<Block> blocks_;
};

}  // namespace perseid::internal::collective
