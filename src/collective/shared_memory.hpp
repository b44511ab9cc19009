// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Memory for callers, which all ranks of a group map: that of the ranks one after the other.
#pragma once

#include "collective/group.hpp"

namespace perseid::internal::collective {

class SharedMemory {
 public:
  // Collective.
  Status allocate(Group& group, const Operation& operation, size_t bytes, void** data);
  Status peer(const void* data, int32_t rank, void** peer) const;
  void release(const void* data);

 private:
  struct Block {
    std::shared_ptr<Segment> segment;
    std::vector<size_t> begin;  // of each rank's memory
    void* own;
  };
  std::vector<Block> blocks_;
};

}  // namespace perseid::internal::collective
