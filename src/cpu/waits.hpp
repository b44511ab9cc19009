// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// How the workers of one execution wait: for the chunks of its operands, and for one another.
//
// A wait spins for kSpin, then sleeps on the word that it waits for (a futex on Linux), at most
// kLongestSleep at a time: whoever sets a signal need not know of sleepers, and the abort word, the
// deadline and the end of the execution are seen in between. The first wait that ends without its
// chunk ends the execution: every worker drains.
#pragma once

#include <chrono>

#include "math/chunks.hpp"

namespace perseid::internal::cpu {

using Clock = std::chrono::steady_clock;

PERSEID_INLINE uint32_t load_acquire(const uint32_t* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

// Stores with release order and wakes all that sleep on the word, in this process or another.
void set_signal(uint32_t* signal, uint32_t epoch);
// When a wait that begins now ends at the latest.
Clock::time_point deadline_after(uint64_t nanoseconds);
// `abort` may be null. kArrived: with acquire order.
WaitEnd wait_for_signal(const uint32_t* signal, uint32_t epoch, Clock::time_point deadline,
                        const uint32_t* abort);

// Words that workers share parts by: a part is made or worked on by one worker at a time, until it
// is done. Zeroed at first.
enum class Claim {
  kMine,     // the caller works on the part, then calls release()
  kDone,     // the part is done, and what was written to it is visible
  kDraining  // the execution has ended
};

class Waits {
 public:
  // Operand 0 is a, or key and value; 1 is b. Chunks along any dimension; none: `cut` is not
  // present.
  Waits(const ChunkCut& a, const Arrival& arrival_a, const ChunkCut& b, const Arrival& arrival_b,
        const ChunkCut& c, const Departure& departure_c);

  // The work reads these chunks of the operand alone: others are neither awaited by await_all() nor
  // missing.
  void limit(int operand, const ChunkRange<int64_t>& read) { operands_[operand].read = read; }

  // The chunks of an operand where they cut `dim`, else none.
  PERSEID_INLINE ChunkTable<int64_t> chunks(int operand, ChunkDim dim) const {
    return operands_[operand].cut.along(dim, operands_[operand].first);
  }
  PERSEID_INLINE ChunkTable<int64_t> chunks_of_output(ChunkDim dim) const {
    return output_.cut.along(dim, output_.first);
  }

  // Whether the chunks have all arrived, without waiting. An empty range has.
  PERSEID_INLINE bool are_here(int operand, const ChunkRange<int64_t>& range) const {
    const Operand& of = operands_[operand];
    for (int64_t chunk = range.first; chunk <= range.last; ++chunk)
      if (!epoch_reached(load_acquire(of.signals + chunk), of.epoch)) return false;
    return true;
  }
  // False: the execution has ended, drain.
  PERSEID_INLINE bool await(int operand, const ChunkRange<int64_t>& range) {
    if (times_ != nullptr) return await_timed(operand, range);
    return are_here(operand, range) || await_missing(operand, range);
  }
  bool await_all();

  // For ChunkTimes: what this worker does from now on belongs to these chunks of the output, or, as
  // rest() says, to none. await() says so of an operand's.
  PERSEID_INLINE void work_on(const ChunkRange<int64_t>& of_output) const {
    if (times_ != nullptr && output_.times != nullptr && !of_output.empty()) begin_work(of_output);
  }
  PERSEID_INLINE void rest() const {
    if (times_ != nullptr) end_work();
  }

  // Whether the execution is over before its work is done.
  PERSEID_INLINE bool ended() const { return load_acquire(&end_) != 0; }

  PERSEID_INLINE Claim claim(uint32_t* part) {
    return load_acquire(part) == kPartDone ? Claim::kDone : claim_open(part);
  }
  void release(uint32_t* part, bool done);

  // Says that a chunk of the output is written.
  void depart(int64_t chunk) const;
  void depart_all() const;

  // After the work: kArrived where it ran to its end.
  Missing missing() const;

 private:
  static constexpr uint32_t kPartFree = 0, kPartClaimed = 1, kPartAwaited = 2, kPartDone = 3;

  struct Operand {
    ChunkCut cut;
    const uint32_t* signals = nullptr;
    uint32_t epoch = 0;
    int64_t first = 0;
    const uint32_t* abort = nullptr;
    Clock::time_point deadline;
    ChunkRange<int64_t> read;
    ChunkTimes* times = nullptr;

    // In the order of visits; for each chunk that is read, until body(chunk) is true.
    template <class Body>
    void find_chunk(const Body& body) const {
      const ChunkTable<int64_t> table{nullptr, cut.count, first};
      for (int64_t visit = 0; visit < cut.count; ++visit) {
        const int64_t chunk = table.chunk_of_visit(visit);
        if (read.first <= chunk && chunk <= read.last && body(chunk)) return;
      }
    }
  };
  static Operand operand_of(const ChunkCut& cut, const Arrival& arrival);

  bool await_missing(int operand, const ChunkRange<int64_t>& range);
  bool await_timed(int operand, const ChunkRange<int64_t>& range);
  void begin_work(const ChunkRange<int64_t>& of_output) const;
  void end_work() const;
  Claim claim_open(uint32_t* part);

  struct Output {
    ChunkCut cut;
    uint32_t* signals = nullptr;
    uint32_t epoch = 0;
    int64_t first = 0;
    ChunkTimes* times = nullptr;
  };

  Operand operands_[2];
  Output output_;
  ChunkTimes* times_ = nullptr;  // of an operand or of the output
  // 0, or how the first wait in vain ended and for what: WaitEnd, operand << 2.
  uint32_t end_ = 0;
  int64_t missing_chunk_ = -1;  // of the wait that set end_
};

}  // namespace perseid::internal::cpu
