// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/shared_memory.hpp"

#include <algorithm>
#include <limits>

#include "base/align.hpp"
#include "collective/gpu_windows.hpp"

namespace perseid::internal::collective {
namespace {

constexpr size_t kAlignment = 64;

// What the ranks bring: where the memory is to be, and how much.
struct Wanted {
  bool on_gpu;
  uint64_t bytes;

  std::string write() const { return Writer().number(on_gpu ? 1 : 0).number(bytes).take(); }
  static Wanted read(const std::string& message) {
    Reader reader(message);
    const bool on_gpu = reader.number() != 0;
    return {on_gpu, reader.number()};
  }
};

// Whole words: those are zeroed.
size_t words_of(uint64_t bytes) {
  return bytes / sizeof(uint32_t) + (bytes % sizeof(uint32_t) != 0);
}

// The same on all ranks.
Status expect_one_place(const Operation& operation, const std::vector<Wanted>& wanted) {
  for (size_t rank = 1; rank < wanted.size(); ++rank)
    if (wanted[rank].on_gpu != wanted[0].on_gpu)
      return Status::error(PERSEID_INVALID_ARGUMENT, operation.name, ": rank ", rank,
                           " allocates memory of ", wanted[rank].on_gpu ? "its GPU" : "the host",
                           " and rank 0 of ", wanted[0].on_gpu ? "its GPU" : "the host",
                           "; pass contexts of one kind on all ranks");
  return {};
}

}  // namespace

SharedMemory::SharedMemory() = default;
SharedMemory::~SharedMemory() {
  for (Block& block : blocks_) unmap(&block);
}

Status SharedMemory::allocate(Group& group, const Operation& operation,
                              const dispatch::Device* device, size_t bytes, void** data) {
  if (!group.shares_memory())
    return Status::error(PERSEID_UNSUPPORTED, operation.name,
                         ": the ranks are on several hosts and share no memory; use all-gather");
  const bool on_gpu = device != nullptr && device->gpu != nullptr;
  std::vector<std::string> messages;
  Status status = group.exchange(operation, {}, Wanted{on_gpu, bytes}.write(), &messages);
  if (!status.ok()) return status;
  std::vector<Wanted> wanted;
  for (const std::string& message : messages) wanted.push_back(Wanted::read(message));
  if (status = expect_one_place(operation, wanted); !status.ok()) return status;
  Block block;
  block.rank = group.rank();
  if (on_gpu) {
    block.gpu = device->gpu;
    // Mapping may wait for the device, whose kernels may wait for another rank.
    block.gpu->wait_reports().observers().drain();
    std::vector<size_t> each;
    for (const Wanted& of_rank : wanted)
      each.push_back(std::max<size_t>(words_of(of_rank.bytes), 1) * sizeof(uint32_t));
    status =
        GpuWindows::make(group, operation, block.gpu, each, words_of(bytes), 0, &block.windows);
    for (int32_t rank = 0; status.ok() && rank < group.size(); ++rank)
      block.data.push_back(block.windows->data(rank));
  } else {
    std::vector<size_t> begin;
    size_t total = 0;
    for (const Wanted& of_rank : wanted) {
      begin.push_back(total);
      // Larger than any memory: the sum stays within 64 bits.
      constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max() / 4 / kMostRanks;
      if (of_rank.bytes > kMost)
        return Status::error(PERSEID_OUT_OF_MEMORY, operation.name, ": rank ", begin.size() - 1,
                             " asks for ", of_rank.bytes,
                             " bytes, more than any machine has; ask for less");
      total += align_up(of_rank.bytes, kAlignment);
    }
    status = group.share(
        operation, std::max(total, kAlignment), [](std::byte*) {}, &block.segment);
    for (size_t rank = 0; status.ok() && rank < begin.size(); ++rank)
      block.data.push_back(block.segment->data() + begin[rank]);
  }
  if (!status.ok()) return status;
  *data = block.data[static_cast<size_t>(block.rank)];
  blocks_.push_back(std::move(block));
  return {};
}

Status SharedMemory::peer(const void* data, int32_t rank, void** peer) const {
  for (const Block& block : blocks_) {
    if (block.own() != data) continue;
    const auto size = static_cast<int32_t>(block.data.size());
    if (rank < 0 || rank >= size)
      return Status::error(PERSEID_INVALID_ARGUMENT, "rank is ", rank, ", expected 0 to ",
                           size - 1);
    *peer = block.data[static_cast<size_t>(rank)];
    return {};
  }
  return Status::error(PERSEID_INVALID_ARGUMENT,
                       "data is no memory of this group; pass what "
                       "perseid_group_memory_allocate gave");
}

void SharedMemory::release(const void* data) {
  for (Block& block : blocks_)
    if (block.own() == data) unmap(&block);
  std::erase_if(blocks_, [&](const Block& block) { return block.own() == data; });
}

// Unmapping waits for the device, whose kernels may wait for another rank.
void SharedMemory::unmap(Block* block) {
  if (block->gpu != nullptr) block->gpu->wait_reports().observers().drain();
  block->windows.reset();
}

}  // namespace perseid::internal::collective
