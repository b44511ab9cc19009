// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// One rank's part in operations on GPUs: the order of its operations, the queue of copy engines, or
// of NCCL, that sends to the others, and the thread that ends waits.
//
// Operations have numbers, the same on all ranks. Where one ends, the rank has read what the others
// wrote into its memory: it writes the number into a word at every other rank, behind its last
// kernel. From then on they may write there for the operations that follow. So a copy waits for
// work of the other GPU that ended long ago where executions have pauses, and never for the other
// rank's host. An operation begins on the copy queue when the caller's stream has come to it and
// the operation before has ended. Kernels run on the caller's stream; it goes on when the copies
// are done.
//
// What the copy queue does is enqueued after the first kernel was launched, which so starts without
// waiting for the host: some 20 calls of the driver, of microseconds each.
//
// Waits of kernels have a deadline and an abort word. Waits of the copy queue for a word have
// neither, so a thread watches: where a rank is lost, or the deadline of an operation that has
// started passes, it sets the group's abort word, then the one that the GPU sees, and writes the
// words that the copy queue waits for itself. The thread sleeps while nothing is in flight, and is
// woken where an operation ends in the program: to wake a thread takes longer than a call of the
// driver. Whoever enqueues never waits for another rank. The next synchronisation of the stream
// returns the failure.
//
// On several hosts, whose ranks NCCL links, this covers the ranks of one host. Transfers between
// hosts have a queue of their own. No rank writes into GPU memory of another host: an NCCL kernel
// receives the data once this rank has queued its part of the exchange. The thread tells the others
// which operation has begun, and after a failure aborts NCCL before it releases other waits.
#pragma once

#include "collective/device_memory.hpp"
#include "collective/gpu_windows.hpp"
#include "collective/nccl.hpp"
#include "collective/shards.hpp"
#include "cuda/runtime/copy_queue.hpp"

namespace perseid::internal::collective {

class GpuRank final : public cuda::StreamObserver {
 public:
  // Collective. One GPU for each group and rank: another one is refused.
  static Status of(Group& group, const Operation& operation, std::shared_ptr<cuda::Gpu> gpu,
                   GpuRank** rank);
  ~GpuRank() override;
  GpuRank(const GpuRank&) = delete;
  GpuRank& operator=(const GpuRank&) = delete;

  // Words that say which parts of a sum have arrived: for each chunk of the own shard, and some
  // more, one of each of these ranks, side by side.
  struct Parts {
    const uint32_t* words = nullptr;
    int64_t count = 0;
    int32_t ranks = 1, rank = 0;  // how many, and the first one
    int64_t first_chunk = 0, chunks = 0;
  };
  // An operation, for the thread that watches. What is pointed to lives as long as it is in flight.
  struct Work {
    void* stream = nullptr;
    const ShardChunks* chunks = nullptr;  // that must arrive here, by their owners, and
    const uint32_t* signals = nullptr;    // their signals, of each group of heads
    uint32_t epoch = 0;
    Parts parts = {};           // that must arrive here
    uint32_t* local = nullptr;  // words that kernels of this rank set for the copy queue
    int64_t local_count = 0;
    uint32_t parts_epoch = 0;               // that these and the parts reach, set by begin()
    perseid_wait_record* record = nullptr;  // the caller's, filled by the synchronisation
    int32_t operand = 0;                    // of the record
    uint32_t* watched = nullptr;            // words that the queue of a report waits for
    int64_t watched_count = 0;
  };
  // Waits for room where kSlots operations are in flight, until the deadline. Nothing else waits.
  Status begin(const Operation& operation, const Work& work);
  // Of the operation that has begun: words that its kernels set for the copy queue, and parts that
  // arrive besides the chunks, all with this epoch.
  void join(uint32_t* local, int64_t count, const Parts& parts, uint32_t epoch);
  // What follows on the copy queue waits until the stream has come to where begin() was called. The
  // operation counts as begun from there on; enqueued as CopyQueue::defer_write does.
  Status announce();
  // The stream goes on when the operations before have ended, of whatever stream they are.
  Status follow_last(void* stream);
  // What follows on the copy queue waits until `rank` has ended the operations that ended before
  // this one began: it has read what they brought.
  Status await(int32_t rank);
  Status defer_await(int32_t rank);  // as CopyQueue::defer_wait
  // `reported`: after the queue of the report, too.
  Status end(void* stream, bool reported = false);
  cuda::CopyQueue& sending() const { return *sending_; }
  // With links, which are null where all ranks map memory of one another: the queue of NCCL. What
  // announce() finds on the other one comes before.
  cuda::CopyQueue& crossing() const { return *crossing_; }
  NcclLinks* links() const { return links_.get(); }
  // Before an exchange: returns when NCCL has few others, or where work of the caller keeps its
  // stream from the operations that are in flight.
  Status await_room(const Operation& operation) const;
  // Where words that arrive are waited for, one after the other, to know when.
  Status watching(cuda::CopyQueue** queue);
  // How kernels of the operation wait as await() does, for a rank whose number a signal has.
  perseid_arrival ended(const Operation& operation) const {
    return arrival(operation, slab_->words(group_.rank()), awaited_);
  }
  // How kernels of the operation wait.
  perseid_arrival arrival(const Operation& operation, const uint32_t* signals,
                          uint32_t epoch) const;

  // Returns when no operation is in flight. Memory may be unmapped then, and plans may go.
  void drain() override;
  Status take(void* stream) override;
  // Drains. The caller knows that what was in flight has failed: synchronisations do not return it.
  void acknowledge();
  const std::shared_ptr<cuda::Gpu>& gpu() const { return gpu_; }

 private:
  static constexpr uint32_t kSlots = 256;
  // In page-locked memory. Numbers of operations.
  struct Words {
    uint32_t started, completed;
    cuda::WaitReport reports[kSlots];
  };
  struct Slot {
    const char* name = "";
    uint64_t deadline_ns = 0;
    Work work;
    bool failed = false, reported = false;
    int64_t chunk = -1;  // that is missing, and
    int32_t owner = -1;  // of which rank
    uint32_t seen = 0;
  };

  GpuRank(Group& group, std::shared_ptr<cuda::Gpu> gpu);
  Status make(const Operation& operation);
  Status make_words(const Operation& operation);
  Slot& slot(uint32_t number) { return slots_[number % kSlots]; }
  // The number of a rank in the slab, -1: it is of another host.
  int32_t in_slab(int32_t rank) const { return links_ == nullptr ? rank : links_->on_host(rank); }
  // At `at`: the last operation that `rank` has ended.
  uint32_t* ended_word(int32_t at, int32_t rank) const {
    return slab_->words(in_slab(at)) + in_slab(rank);
  }
  // Behind these words. In memory of the GPU, since all its multiprocessors poll it.
  uint32_t* abort_word() const {
    return (slab_ != nullptr ? slab_->words(in_slab(group_.rank())) : own_words_.words()) +
           kMostRanks;
  }
  // The last operation that a rank has begun, in its own memory: others read it where one is
  // silent. Between hosts the threads tell one another instead.
  uint32_t* begun_word(int32_t rank) const { return slab_->words(rank) + kMostRanks + 1; }
  uint32_t completed() const { return cpu::load_acquire(&words_->completed); }
  uint32_t in_flight() const { return submitted_ - completed(); }
  // The number of newest operations that still have a slot.
  uint32_t kept() const { return std::min(submitted_ - first_, kSlots); }

  // With the mutex.
  void watch();
  void check();
  // Of several hosts: this rank has begun what the others have not heard of.
  bool has_news() const {
    return links_ != nullptr && cpu::load_acquire(&words_->started) != told_;
  }
  void tell_begun();
  void wake();
  void fail();
  void read_reports();
  void find_missing(Slot& slot);
  void find_missing_part(Slot& slot);
  int32_t silent_rank(uint32_t number);
  void release_waits();
  std::vector<uint32_t> begun();  // of each rank, the number
  // `otherwise`: where they cannot be read.
  std::vector<uint32_t> read_words(const uint32_t* words, size_t count,
                                   uint32_t otherwise = 0) const;
  Status failure(const Slot& slot) const;

  Group& group_;
  const std::shared_ptr<cuda::Gpu> gpu_;
  const std::shared_ptr<NcclLinks> links_;
  std::unique_ptr<GpuWindows> slab_;  // words of the ranks of the host
  DeviceMemory own_words_;            // instead, of a rank alone on its host
  // That of copies; of the words at an operation's end, which copies of the next one do not wait
  // for; of the thread that watches; of a report; of NCCL.
  std::unique_ptr<cuda::CopyQueue> sending_, ending_, control_, watching_, crossing_;
  Words* words_ = nullptr;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  const uint32_t first_;    // the number before the first operation
  uint32_t submitted_ = 0;  // the last operation
  uint32_t enqueued_ = 0;   // the last one that end() was called for
  uint32_t awaited_ = 0;    // the one before the operation that has begun
  uint32_t told_ = 0;       // that the others were told of
  uint32_t timed_ = 0;      // the operation whose deadline counts from
  Clock::time_point since_;
  Clock::time_point aborted_;  // when NCCL was, long ago where it was before
  bool failed_ = false, ended_ = false;
  bool out_of_step_ = false;         // the others may be in operations that this rank has not begun
  std::atomic<bool> asleep_{false};  // the thread, until it is woken
  std::thread thread_;
};

}  // namespace perseid::internal::collective
