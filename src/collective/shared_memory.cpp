// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/shared_memory.hpp"

#include <algorithm>
#include <limits>

namespace perseid::internal::collective {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

Status SharedMemory::allocate(Group& group, const Operation& operation, size_t bytes, void** data) {
  if (!group.shares_memory())
    return Status::error(PERSEID_UNSUPPORTED, operation.name,
                         ": the ranks are on several hosts and share no memory; use all-gather");
  std::vector<std::string> all;
  Status status = group.exchange(operation, {}, Writer().number(bytes).take(), &all);
  if (!status.ok()) return status;
  Block block;
  size_t total = 0;
  for (const std::string& message : all) {
    block.begin.push_back(total);
    const uint64_t of_rank = Reader(message).number();
    constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max() / 4 / kMostRanks;
    // Whatever is larger than any memory: the sum stays within 64 bits.
    total += (std::min(of_rank, kMost) + kAlignment - 1) / kAlignment * kAlignment;
  }
  status = group.share(
      operation, std::max(total, kAlignment), [](std::byte*) {}, &block.segment);
  if (!status.ok()) return status;
  block.own = block.segment->data() + block.begin[static_cast<size_t>(group.rank())];
  *data = block.own;
  blocks_.push_back(std::move(block));
  return {};
}

Status SharedMemory::peer(const void* data, int32_t rank, void** peer) const {
  for (const Block& block : blocks_) {
    if (block.own != data) continue;
    const auto size = static_cast<int32_t>(block.begin.size());
    if (rank < 0 || rank >= size)
      return Status::error(PERSEID_INVALID_ARGUMENT, "rank is ", rank, ", expected 0 to ",
                           size - 1);
    *peer = block.segment->data() + block.begin[static_cast<size_t>(rank)];
    return {};
  }
  return Status::error(PERSEID_INVALID_ARGUMENT,
                       "data is no memory of this group; pass what "
                       "perseid_group_memory_allocate gave");
}

void SharedMemory::release(const void* data) {
  std::erase_if(blocks_, [&](const Block& block) { return block.own == data; });
}

}  // namespace perseid::internal::collective
