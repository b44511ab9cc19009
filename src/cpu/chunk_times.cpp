// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/chunk_times.hpp"

#include <algorithm>
#include <chrono>

namespace perseid::internal::cpu {
namespace {

// What the worker that is this thread does.
struct Work {
  ChunkTimes* times = nullptr;
  int64_t chunk = 0, since = 0;
};
thread_local Work work;

}  // namespace

int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void ChunkTimes::Use::add(int64_t from, int64_t to) {
  begin = sum == 0 ? from : std::min(begin, from);
  end = std::max(end, to);
  sum += std::max<int64_t>(to - from, 1);
}

void ChunkTimes::clear() { std::fill(chunks_.begin(), chunks_.end(), Chunk()); }

void ChunkTimes::work_on(const ChunkRange<int64_t>& range) {
  rest();
  work = {this, range.last, nanoseconds_now()};
  const std::lock_guard lock(mutex_);
  for (int64_t chunk = range.first; chunk <= range.last; ++chunk)
    if (at(chunk).arrived == 0) at(chunk).arrived = work.since;
}

void ChunkTimes::rest() {
  if (work.times == this) {
    const int64_t now = nanoseconds_now();
    const std::lock_guard lock(mutex_);
    at(work.chunk).computed.add(work.since, now);
  }
  work = {};
}

void ChunkTimes::note_wait(int64_t chunk, int64_t begin, int64_t end) {
  const std::lock_guard lock(mutex_);
  at(chunk).waited.add(begin, end);
}

}  // namespace perseid::internal::cpu
