// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Links between GPUs on several hosts by NCCL, which takes the network that it finds best. Those of
// one host map memory of one another as in a group of one host, where they can. The library links
// no NCCL; it opens libnccl.so.2 where PERSEID_TRANSPORT is nccl.
//
// NCCL sends by kernels, which need multiprocessors: at most kMultiprocessors of them, which
// kernels that wait for other ranks must leave free. A kernel of NCCL waits without an end for
// ranks that do not come. So another thread watches (GpuRank): where a rank is lost or a deadline
// passes, it aborts the communicator, which ends the kernels that run and those that are queued.
// Each looks for that after it has polled in vain for milliseconds, so few of them are queued at a
// time.
#pragma once

#include <atomic>
#include <mutex>
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
    return group.nccl() != nullptr && group.nccl()->communicator_.load() != nullptr;
  }
  // What its kernels take at most: channels, of one block each.
  static constexpr int32_t kMultiprocessors = 8;
  // What kernels of the group that wait for other ranks leave free.
  static int32_t multiprocessors(const Group& group) { return carry(group) ? kMultiprocessors : 0; }
  // The ranks of this host whose GPUs may map memory of one another, as a group of their own, and
  // the number of a rank in it, -1: it has others. Null: there is none but this one.
  Group* host() const { return host_.get(); }
  int32_t on_host(int32_t rank) const {
    return host_ == nullptr ? -1 : on_host_[static_cast<size_t>(rank)];
  }
  // All of them: they cannot.
  void leave_host() { host_.reset(); }
  ~NcclLinks();
  NcclLinks(const NcclLinks&) = delete;
  NcclLinks& operator=(const NcclLinks&) = delete;

  // What goes to and comes from a rank, in memory of the GPU.
  struct Part {
    int32_t rank;
    const std::byte* send = nullptr;
    size_t sent = 0;
    std::byte* receive = nullptr;
    size_t received = 0;
  };
  // In the order of the stream, always the same one. All ranks do it in the same order of parts for
  // each two of them, so that no two wait for each other.
  Status enqueue(const Operation& operation, std::span<const Part> parts, void* stream);
  // Before enqueue(): whether so few exchanges have not ended that aborting them takes no longer.
  static constexpr uint32_t kMostQueued = 16;
  bool has_room() const { return queued_ - cpu::load_acquire(&words_->ended) < kMostQueued; }
  // After the group has failed, from any thread: ends what is queued, and nothing else will be.
  void abort();

 private:
  NcclLinks(Group& group, std::shared_ptr<cuda::Gpu> gpu) : group_(group), gpu_(std::move(gpu)) {}
  Status make();
  Status meet_on_host(const Operation& operation);
  Status connect(const std::string& id, Clock::time_point deadline);
  // With the mutex.
  Status send_and_receive(std::span<const Part> parts, void* stream) const;
  // What NCCL says: OK, IO_ERROR; TIMEOUT where it has not answered by then or the group failed.
  Status settle(Clock::time_point deadline) const;
  void abort_locked();
  // Until the GPU has come to this point of the stream.
  Status drain(Clock::time_point deadline, void* stream) const;
  bool has_failed() const { return cpu::load_acquire(group_.abort()) != 0; }

  Group& group_;
  const std::shared_ptr<cuda::Gpu> gpu_;
  std::shared_ptr<Group> host_;
  std::vector<int32_t> on_host_;
  std::mutex mutex_;  // of the communicator
  std::atomic<ncclComm*> communicator_{nullptr};
  std::thread aborting_;
  const std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);
  // In page-locked memory, written by streams: that the ranks are connected; how many exchanges
  // have ended.
  struct Words {
    uint32_t connected, ended;
  };
  Words* words_ = nullptr;
  uint32_t queued_ = 0;  // exchanges, so far
};

}  // namespace perseid::internal::collective
