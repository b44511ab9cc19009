// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A group of ranks: who they are, what they share, and how an operation of all of them ends.
//
// The ranks share a slab: the abort word, what each waits for, and an inbox for each. Every wait of
// an operation ends with its signal, at the deadline, or when the abort word is set: by a rank
// whose deadline has passed, or by the thread that watches the connections (Mesh) when a rank is
// lost. From then on the group has failed on all ranks, with the same sentence. shrink() makes a
// group of those that are left; it has a slab of its own, so that a rank which was given up and
// goes on later writes where nobody looks.
//
// A rank writes into words and memory that are its own by index, and reads those of others. Words
// hold epochs (math/chunks.hpp): they count up and are never reset.
//
// Ranks that can map no common memory, since they are on several hosts, have a copy of each
// segment. What a rank writes for others it puts into their copies too, data before the word that
// signals it (PutEngine). Addresses of others' memory are those in the own copy.
#pragma once

#include <functional>

#include "collective/mesh.hpp"
#include "collective/mpi.hpp"
#include "collective/puts.hpp"
#include "collective/rendezvous.hpp"

namespace perseid::internal::collective {

class GpuExchange;
class GpuRank;
class NcclLinks;

// An operation that all ranks are in.
struct Operation {
  const char* name;
  uint64_t deadline_ns;
  Clock::time_point deadline;

  Operation(const char* operation, uint64_t nanoseconds);
  // What is left of it, at least 1 ns.
  uint64_t time_left() const;
};

// One rank's part of the slab; each word has a cache line, since other ranks poll it.
struct alignas(64) RankWords {
  alignas(64) uint32_t waits_for;  // a rank + 1, 0: none; for this word of a shared segment:
  uint32_t segment, epoch;         // its number, and the epoch to be reached
  uint64_t offset;
  alignas(64) uint32_t ready;    // the epoch whose data is in the inbox
  alignas(64) uint32_t done;     // the epoch that this rank has read from the others
  alignas(64) uint64_t call[8];  // what the operation is called with, for comparison
  alignas(64) uint32_t begun;    // how many operations its GPU has begun, on several hosts
};

inline constexpr size_t kInboxBytes = 256 << 10;

class Group {
 public:
  struct Options {
    uint32_t first_epoch = 1;                    // other than 1 in tests, for words that wrap
    const perseid_mpi_functions* mpi = nullptr;  // what the ranks have met by
  };

  // Collective: of all ranks of the mesh.
  static Status open(std::shared_ptr<Mesh> mesh, const Operation& operation, const Options& options,
                     std::shared_ptr<Group>* group);
  // `size` groups at once, one for each thread of this process that is to be a rank.
  static Status open_threads(int32_t size, const Options& options,
                             std::vector<std::shared_ptr<Group>>* groups);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int32_t rank() const { return rank_; }
  int32_t size() const { return static_cast<int32_t>(members_.size()); }
  uint32_t generation() const { return generation_; }
  uint32_t first_epoch() const { return options_.first_epoch; }
  // The rank that a member had when the group was opened.
  int32_t origin(int32_t rank) const { return members_[static_cast<size_t>(rank)]; }
  // Not 0 once the group has failed.
  const uint32_t* abort() const { return abort_; }
  int32_t failed() const { return failed_rank(cpu::load_acquire(abort_)); }
  // Whether the ranks are threads of one process.
  bool of_threads() const { return mesh_->hub() != nullptr; }
  // False: each has copies, and put() and signal() bring what is written to the others.
  bool shares_memory() const { return puts_ == nullptr; }
  // What carries the data of ranks that share no memory: "sockets" or "mpi".
  const char* links() const { return puts_->links().name(); }

  // ---- Collective calls before and between operations, by messages

  // The message of every rank, in their order. If one brings a failure, all ranks return the first.
  // A descriptor goes with the message where it is open, by Unix sockets alone.
  Status exchange(const Operation& operation, const Status& mine, const std::string& message,
                  std::vector<std::string>* all, const Descriptor* descriptor = nullptr,
                  std::vector<Descriptor>* descriptors = nullptr);
  // Memory that all ranks map, zeroed, or a copy on each. It is prepared before others see it.
  Status share(const Operation& operation, size_t bytes,
               const std::function<void(std::byte*)>& prepare, std::shared_ptr<Segment>* segment);
  // A group of the ranks that are left and call this too. This one is not to be used any more.
  Status shrink(const Operation& operation, std::shared_ptr<Group>* survivors);

  // ---- Operations

  // Begins an operation; end() must follow, but after a failure. One at a time. Operations of all
  // ranks are counted: a rank that leaves says how many it has done.
  enum class Of { kAllRanks, kThisRank };
  Status begin(const Operation& operation, Of of = Of::kAllRanks);
  void end();
  // Waits until a word of `rank` has reached the epoch.
  Status wait(const Operation& operation, int32_t rank, const uint32_t* word, uint32_t epoch);
  // A wait for `rank` ended at the deadline: gives up on the rank that all wait for in the end.
  Status give_up(const Operation& operation, int32_t rank);
  // Says that this rank waits until a word of `rank` has reached the epoch, until its next wait.
  void publish_wait(int32_t rank, const uint32_t* word, uint32_t epoch);
  // The other ranks that say so, a bit for each.
  uint64_t waiting() const;
  // Gives up on just this rank.
  void blame(int32_t rank) { fail(Failure::kSilent, rank); }
  // On several hosts, from any thread: how many operations this rank's GPU has begun, and whether
  // another rank's process says anything.
  void tell_begun(uint32_t operations) const;
  bool answers(int32_t rank) const;
  // Why the group has failed. `detail` is a part of the sentence, such as "; what is missing".
  Status failure(const Operation& operation, const std::string& detail = "") const;

  // ---- The slab

  RankWords& words(int32_t rank) const { return words_[rank]; }
  std::byte* inbox(int32_t rank) const {
    return inboxes_ + static_cast<size_t>(rank) * kInboxBytes;
  }
  uint32_t next_epoch() { return ++epoch_; }

  // ---- What others are to see. `to` is an address in this rank's copy of the segment

  // Rows of this rank's memory in that of another; nothing where ranks share memory.
  void put(int32_t rank, const std::byte* to, const ByteRows& rows, PutSource source) const;
  // `bytes` at the same place of the other's copy.
  void put(int32_t rank, const std::byte* data, size_t bytes) const;
  // The first, and signal(rank, word, epoch) after it, once the word `ready` has reached the epoch.
  void put_when(const uint32_t* ready, uint32_t epoch, int32_t rank, const std::byte* to,
                const ByteRows& rows, PutSource source, const uint32_t* word) const;
  // After the last of those words was set.
  void put_ready() const {
    if (puts_ != nullptr) puts_->look();
  }
  // Sets a word to the epoch for all ranks.
  void signal(uint32_t* word, uint32_t epoch) const;
  // For another rank, after what was put before; nothing where ranks share memory.
  void signal(int32_t rank, const uint32_t* word, uint32_t epoch) const;
  // The other ranks, from the one before this one down: each gets first what it needs first.
  template <class Body>
  void for_each_other(const Body& body) const {
    for (int32_t step = 1; step < size(); ++step) body((rank_ + size() - step) % size());
  }

  // This rank's part in operations on GPUs, once there is one.
  std::shared_ptr<GpuRank>& gpu_rank() { return gpu_rank_; }
  std::shared_ptr<GpuExchange>& gpu_exchange() { return gpu_exchange_; }
  // What carries data between GPUs on several hosts, once the ranks have agreed on it.
  std::shared_ptr<NcclLinks>& nccl() { return nccl_; }
  const std::shared_ptr<NcclLinks>& nccl() const { return nccl_; }

 private:
  Group(std::shared_ptr<Mesh> mesh, std::vector<int32_t> members, uint32_t generation,
        const Options& options);
  static size_t slab_bytes(int32_t size);
  Status open_slab(const Operation& operation);
  Status connect_puts(const Operation& operation);
  Status connect_sockets(const Operation& operation, std::unique_ptr<Links>* links);
  void start_puts(std::unique_ptr<Links> links);
  Status map_segment(const Operation& operation, size_t bytes,
                     const std::function<void(std::byte*)>& prepare,
                     std::shared_ptr<Segment>* segment);
  Status copy_segment(const Operation& operation, size_t bytes,
                      const std::function<void(std::byte*)>& prepare,
                      std::shared_ptr<Segment>* segment);
  // Sets the abort word, for all ranks.
  void fail(Failure failure, int32_t rank);
  void tell(uint32_t abort) const;
  void prepare_slab(std::byte* slab) const;
  void take_slab(std::shared_ptr<Segment> slab);
  Status lost(const Operation& operation, Failure failure, int32_t rank,
              const std::string& detail) const;
  int32_t waited_for(int32_t rank, bool* answers) const;
  // Of the slab, as PutEngine numbers it.
  SegmentAddress address_of(const uint32_t* word) const;
  // Where an address lies; false: in no segment.
  bool locate(const void* address, SegmentAddress* found) const;
  // Some words of another rank's memory.
  bool read(int32_t rank, const SegmentAddress& address, size_t bytes, void* data) const;

  const std::shared_ptr<Mesh> mesh_;
  const std::vector<int32_t> members_;  // by the mesh's numbers
  const int32_t rank_;
  const uint32_t generation_;
  const Options options_;
  std::shared_ptr<PutEngine> puts_;  // null where ranks share memory
  std::shared_ptr<Segment> slab_;
  // All that are shared, numbered alike on all ranks; the slab is the first.
  std::map<uint32_t, std::weak_ptr<Segment>> segments_;
  uint32_t next_segment_ = 0;
  uint32_t before_slab_ = 0;
  uint32_t* abort_ = &before_slab_;
  RankWords* words_ = nullptr;
  std::byte* inboxes_ = nullptr;
  uint32_t epoch_;
  uint64_t operations_ = 0;
  std::atomic<bool> busy_{false};
  mutable std::atomic<bool> told_{false};  // the others, on several hosts, of the failure
  bool superseded_ = false;
  std::shared_ptr<GpuRank> gpu_rank_;
  std::shared_ptr<GpuExchange> gpu_exchange_;
  std::shared_ptr<NcclLinks> nccl_;
};

// begin() and end() of an operation.
class Turn {
 public:
  Turn(Group& group, const Operation& operation, Group::Of of = Group::Of::kAllRanks)
      : group_(group), status_(group.begin(operation, of)) {}
  ~Turn() {
    if (status_.ok()) group_.end();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  const Status& status() const { return status_; }

 private:
  Group& group_;
  Status status_;
};

}  // namespace perseid::internal::collective
