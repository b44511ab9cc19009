// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Links between GPUs on several hosts by NCCL, which takes the network that it finds best, and
// NVLink or PCIe between those of one host. The library links no NCCL; it opens libnccl.so.2 where
// PERSEID_TRANSPORT is nccl.
//
// NCCL's kernels wait without an end for ranks that do not come. So an exchange first waits on the
// CPU until all ranks have come, and names one that has not. Then the thread that executes polls:
// where a rank is lost or the deadline passes, it aborts the communicator, which ends the kernels.
#pragma once

#include <thread>

#include "collective/group.hpp"
#include "cuda/runtime/copy_queue.hpp"

struct ncclComm;

namespace perseid::internal::collective {

class NcclLinks {
 public:
  // Collective; the first time in a group of GPUs on several hosts it chooses for all ranks whether
  // NCCL carries their data, and connects them. Nothing happens in other groups.
  static Status agree(Group& group, const Operation& operation, std::shared_ptr<cuda::Gpu> gpu);
  // What they chose.
  static bool carry(const Group& group) {
    return group.nccl() != nullptr && group.nccl()->communicator_ != nullptr;
  }
  ~NcclLinks();
  NcclLinks(const NcclLinks&) = delete;
  NcclLinks& operator=(const NcclLinks&) = delete;

  // What goes to and comes from a rank, in memory of the GPU.
  struct Part {
    int32_t rank;
    const std::byte* send;
    size_t sent;
    std::byte* receive;
    size_t received;
  };
  // All ranks, within an operation: after the work of the stream. Returns when all is there.
  Status exchange(const Operation& operation, std::span<const Part> parts, void* stream);

 private:
  NcclLinks(Group& group, std::shared_ptr<cuda::Gpu> gpu) : group_(group), gpu_(std::move(gpu)) {}
  Status make();
  Status connect(const std::string& id, Clock::time_point deadline);
  Status enqueue(std::span<const Part> parts, void* stream) const;
  // What NCCL says: OK, IO_ERROR; TIMEOUT where it has not answered by then or the group failed.
  Status settle(Clock::time_point deadline) const;
  // Until the GPU has come to this point of the stream.
  Status drain(Clock::time_point deadline, void* stream);
  bool has_failed() const { return cpu::load_acquire(group_.abort()) != 0; }
  void abort();
  Status failure(const Operation& operation, void* stream);

  Group& group_;
  const std::shared_ptr<cuda::Gpu> gpu_;
  ncclComm* communicator_ = nullptr;
  std::thread aborting_;
  uint32_t* done_ = nullptr;  // page-locked: the last point of a stream that was reached
  uint32_t point_ = 0;
};

}  // namespace perseid::internal::collective
