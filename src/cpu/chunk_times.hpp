// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Where the workers of an execution spend their time, by the chunks of an operand that arrives or
// of an output that leaves. Times are nanoseconds of the clock that all processes of a host share.
#pragma once

#include <mutex>
#include <vector>

#include "math/chunks.hpp"

namespace perseid::internal::cpu {

int64_t nanoseconds_now();

class ChunkTimes {
 public:
  // From the first worker's begin to the last one's end, and how long all of them together.
  struct Use {
    int64_t begin = 0, end = 0, sum = 0;

    void add(int64_t from, int64_t to);
  };
  struct Chunk {
    Use computed, waited;
    int64_t arrived = 0;  // seen by a worker for the first time; 0: by none
  };

  explicit ChunkTimes(int64_t count) : chunks_(static_cast<size_t>(count)) {}
  void clear();
  const std::vector<Chunk>& chunks() const { return chunks_; }

  // By a worker. What it does from now on belongs to the last chunk of the range, which is here, or
  // to none.
  void work_on(const ChunkRange<int64_t>& range);
  void rest();
  void note_wait(int64_t chunk, int64_t begin, int64_t end);

 private:
  Chunk& at(int64_t chunk) { return chunks_[static_cast<size_t>(chunk)]; }

  std::mutex mutex_;
  std::vector<Chunk> chunks_;
};

}  // namespace perseid::internal::cpu
