// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The connections of one rank to all others, and the thread that watches them. The thread reads
// every frame, and finds out at once when a connection ends: it then sets the abort word of the
// group, so that whoever works need not look at a socket.
//
// Ranks are numbered as when the group was opened; Group knows those that are left.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "collective/segment.hpp"
#include "collective/socket.hpp"

namespace perseid::internal::collective {

// Ranks that are threads of one process hand segments on as they are.
struct ThreadHub {
  std::mutex mutex;
  std::map<uint64_t, std::shared_ptr<Segment>> segments;
  uint64_t next = 1;
};

// What the thread does for one generation of the group. All ranks as the mesh numbers them.
struct Watch {
  std::shared_ptr<void> keep;    // the memory of the abort word
  uint32_t* abort = nullptr;     // set once, from 0
  std::vector<int32_t> members;  // by the rank in the group
  uint32_t generation = 0;
};

// The value of an abort word: how a rank failed the others.
enum class Failure : uint32_t { kNone = 0, kLost = 1, kSilent = 2, kLeft = 3 };
constexpr uint32_t abort_value(Failure failure, int32_t rank) {
  return static_cast<uint32_t>(failure) << 16 | static_cast<uint32_t>(rank + 1);
}
constexpr Failure failure_of(uint32_t abort) { return static_cast<Failure>(abort >> 16); }
constexpr int32_t failed_rank(uint32_t abort) { return static_cast<int32_t>(abort & 0xffff) - 1; }
// If there are several failures, the first counts.
void set_abort(uint32_t* word, Failure failure, int32_t rank);

class Mesh {
 public:
  // sockets[r] is connected to rank r; that of `rank` is closed. `hub` where ranks are threads.
  Mesh(int32_t rank, std::vector<Descriptor> sockets, std::shared_ptr<ThreadHub> hub);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int32_t rank() const { return rank_; }
  int32_t size() const { return static_cast<int32_t>(peers_.size()); }
  ThreadHub* hub() const { return hub_.get(); }
  // Where this rank reaches the others, as of a socket; "" by Unix sockets.
  std::string local_address() const;

  // From now on a lost rank sets the abort word; at once where one is lost already.
  void watch(Watch watch);
  // The number of the operation that this rank is in. A rank that left before it was done is
  // missing in it. Returns such a rank, or -1.
  int32_t begin_operation(uint64_t number);

  // Sends to one rank. False: it is gone, or takes nothing until the deadline.
  bool send(int32_t to, const Frame& frame, Clock::time_point deadline, int descriptor = -1);
  // Takes the next message or segment of a generation, and drops those before. kSilent: there was
  // none until the deadline. kLeft: the rank has gone.
  Failure take(int32_t from, uint32_t generation, Clock::time_point deadline, Frame* frame,
               Descriptor* descriptor);
  // Agrees with the other members who goes on: those that call this before the deadline, in the
  // same generation, later than `current`. False: this rank is not among them.
  bool agree(uint64_t members, uint32_t current, Clock::time_point deadline, uint64_t* survivors,
             uint32_t* generation);
  // The transport of data has lost the rank: so has the group.
  void give_up(int32_t rank);
  // The other members go on without the rank, which is told so and finds it when it wakes.
  void leave_behind(int32_t rank, uint64_t members, uint32_t generation);
  // Says good-bye: this rank has done all operations up to `number`.
  void leave(uint64_t number);

 private:
  struct Peer {
    Descriptor socket;
    FrameParser parser;
    std::deque<Frame> messages;
    std::deque<Descriptor> descriptors;
    uint64_t proposed = 0;  // members of its last proposal
    uint32_t proposed_generation = 0;
    bool lost = false, left = false;
    uint64_t left_after = 0;  // operations
  };

  void run();
  void read(int32_t rank);
  void handle(int32_t rank, Frame frame);
  void lose(int32_t rank);
  bool is_left_behind(int32_t rank, uint32_t generation) const;
  void raise(Failure failure, int32_t rank);

  const int32_t rank_;
  std::vector<Peer> peers_;
  std::shared_ptr<ThreadHub> hub_;
  Descriptor wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Watch watch_;
  std::atomic<uint64_t> operation_{0};
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace perseid::internal::collective
