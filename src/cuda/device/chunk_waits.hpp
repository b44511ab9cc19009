// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Operands that arrive in chunks while a kernel runs, and outputs that leave in chunks
// (perseid/async.h). sm_90 and up.
//
// Arrival. Whoever delivers a chunk writes its data, then its signal, with release order at system
// scope. The producer polls the signal with acquire order at system scope, so that it sees the
// data, and executes a proxy fence, which orders what it has acquired before the TMA loads that it
// issues next.
//
// End of a wait. A block whose wait passes the deadline, or sees the abort word, waits no more: it
// loads whatever is in memory and computes to its end, so that no block of a cluster waits for
// another. The first one writes what is missing into the reports, and sets `failed` before it
// issues such loads; the others wait no more when they see it. The results are undefined.
//
// Departure. A storing thread waits until its TMA stores have written, executes a proxy fence and
// counts the part of the output that it has stored, with acquire and release order. The one that
// completes a chunk writes its signal with release order at system scope: the writes of all that
// have counted are visible before it. Nothing is signalled once `failed` is set.
#pragma once

#include "math/tile_order.hpp"
#if defined(__CUDACC_RTC__)
#include "cuda/device/ptx/memory_order.hpp"
#include "cuda/device/ptx/tma.hpp"
#endif

namespace perseid::internal::cuda {

// As perseid_wait_record; the host checks that.
struct WaitReport {
  int32_t status, rank, operand, chunk;
  uint32_t expected, seen;
};
// Parts of a chunk of an output, each stored by one thread.
inline constexpr int32_t kMostParts = (1 << 24) - 1;

inline constexpr int32_t kReportedTimeout = 6, kReportedPeerLost = 7;  // perseid_status

// Tables of chunks are in memory of the device.
struct DeviceArrival {
  const uint32_t* signals = nullptr;  // null: the operand is present
  const uint32_t* epoch_ptr = nullptr;
  const uint32_t* abort = nullptr;  // memory of the host
  uint64_t deadline_ns = 0;
  ChunkTable<int32_t> chunks;
  uint32_t epoch = 0;
  int32_t operand = 0;  // for reports
  bool along_k = false;
  ChunkRange<int32_t> read = {0, 0x7fffffff};  // others are not missing
};
struct DeviceDeparture {
  uint32_t* signals = nullptr;  // null: nobody waits for chunks
  const uint32_t* epoch_ptr = nullptr;
  ChunkTable<int32_t> chunks;
  uint32_t epoch = 0;
  bool of_columns = false;  // else of rows
};
struct AsyncArguments {
  DeviceArrival arrivals[2];
  DeviceDeparture departure;
  // In the workspace, which may hold anything when the kernel begins: `failed` is the launch's
  // stamp if a wait has failed (null: one thread waits alone); after it, for each chunk of the
  // output, the upper bits of the stamp and how many parts are stored.
  uint64_t* failed = nullptr;
  uint64_t launch = 0;          // a number of random bits
  WaitReport* reports[3] = {};  // memory of the host; some may be null
};

#if defined(__CUDACC_RTC__)

__device__ __forceinline__ uint32_t read_epoch(const uint32_t* epoch_ptr, uint32_t epoch) {
  return epoch_ptr == nullptr ? epoch : ptx::load_relaxed_system(epoch_ptr);
}

// Of a launch; a captured one has another in each replay, since its epochs are others.
__device__ __forceinline__ uint64_t stamp_of(const AsyncArguments& arguments) {
  uint64_t stamp = arguments.launch;
  for (const DeviceArrival& arrival : arguments.arrivals)
    if (arrival.signals != nullptr)
      stamp = stamp * 0x9e3779b97f4a7c15u + read_epoch(arrival.epoch_ptr, arrival.epoch);
  const DeviceDeparture& departure = arguments.departure;
  if (departure.signals != nullptr)
    stamp = stamp * 0x9e3779b97f4a7c15u + read_epoch(departure.epoch_ptr, departure.epoch);
  return stamp;
}

// The waits of one thread for one operand.
class ArrivalWaits {
 public:
  // After what the kernels before have written is visible.
  __device__ __forceinline__ ArrivalWaits(const AsyncArguments& arguments, int operand)
      : arguments_(arguments), arrival_(arguments.arrivals[operand]) {
    if (arrival_.signals == nullptr) return;
    epoch_ = read_epoch(arrival_.epoch_ptr, arrival_.epoch);
    begin_ = ptx::nanoseconds();
  }

  // Until these chunks have arrived. A proxy fence orders loads by TMA after it.
  __device__ __forceinline__ void await(ChunkRange<int32_t> range) {
    if (arrival_.signals == nullptr || range.empty()) return;
    if (known_.first <= range.first && range.last <= known_.last) return;
    for (int chunk = range.first; chunk <= range.last; ++chunk) await_chunk(chunk);
    known_ = range;
  }
  // The same for the chunks of these visits.
  __device__ __forceinline__ void await_visits(ChunkRange<int32_t> visits) {
    if (arrival_.signals == nullptr) return;
    for (int visit = max(visits.first, visited_); visit <= visits.last; ++visit)
      await_chunk(arrival_.chunks.chunk_of_visit(visit));
    visited_ = max(visited_, visits.last + 1);
  }
  // Until rows [from, to) have arrived, of an operand that is cut along them. TMA may read them
  // afterwards. The whole warp.
  __device__ __forceinline__ void await_rows(int from, int to) {
    if ((rows_.first <= from && to <= rows_.last) || from >= to) return;
    await_more_rows(from, to);
  }
  // The chunks of k up to this depth, of an operand that is cut along k. TMA may read them
  // afterwards.
  __device__ __forceinline__ void await_depth(int depth) {
    if (arrival_.signals == nullptr) return;
    bool waited = false;
    while (depth_ < depth && next_ < arrival_.chunks.count) {
      await_chunk(next_);
      depth_ = arrival_.chunks.begin[++next_];
      waited = true;
    }
    if (waited) ptx::fence_proxy_async_global();
  }

 private:
  // Not inlined: between two chunks the caller's loop does not need its registers.
  __device__ __noinline__ void await_more_rows(int from, int to) {
    const ChunkRange<int32_t> range = arrival_.chunks.covering(from, to);
    for (int chunk = range.first; chunk <= range.last; ++chunk) await_chunk(chunk);
    ptx::fence_proxy_async_global();
    // Rows that have arrived stay one range, as far as chunks adjoin.
    const ChunkRange<int32_t> arrived{arrival_.chunks.begin[range.first],
                                      arrival_.chunks.begin[range.last + 1]};
    const bool adjoins = arrived.first <= rows_.last && rows_.first <= arrived.last;
    rows_ = adjoins ? ChunkRange<int32_t>{min(rows_.first, arrived.first),
                                          max(rows_.last, arrived.last)}
                    : arrived;
  }
  __device__ __forceinline__ void await_chunk(int chunk) {
    constexpr int kPollsPerCheck = 32, kPauseNs = 40;
    uint32_t seen = ptx::load_acquire_system(arrival_.signals + chunk);
    for (int polls = 1; !failed_ && !epoch_reached(seen, epoch_); ++polls) {
      __nanosleep(kPauseNs);
      seen = ptx::load_acquire_system(arrival_.signals + chunk);
      if (polls % kPollsPerCheck != 0) continue;
      if (arguments_.failed != nullptr &&
          ptx::load_relaxed(arguments_.failed) == stamp_of(arguments_))
        failed_ = true;
      else if (arrival_.abort != nullptr && ptx::load_relaxed_system(arrival_.abort) != 0)
        fail(chunk, seen, kReportedPeerLost);
      else if (ptx::nanoseconds() - begin_ > arrival_.deadline_ns)
        fail(chunk, seen, kReportedTimeout);
    }
  }
  // Reports the first chunk that is missing, in the order of visits.
  __device__ __noinline__ void fail(int chunk, uint32_t seen, int32_t status) {
    failed_ = true;
    const uint64_t stamp = stamp_of(arguments_);
    if (arguments_.failed != nullptr && atomicExch(arguments_.failed, stamp) == stamp) return;
    for (int visit = 0; visit < arrival_.chunks.count; ++visit) {
      const int visited = arrival_.chunks.chunk_of_visit(visit);
      if (visited < arrival_.read.first || arrival_.read.last < visited) continue;
      const uint32_t signal = ptx::load_acquire_system(arrival_.signals + visited);
      if (epoch_reached(signal, epoch_)) continue;
      chunk = visited;
      seen = signal;
      break;
    }
    for (WaitReport* const report : arguments_.reports) {
      if (report == nullptr) continue;
      report->rank = -1;
      report->operand = arrival_.operand;
      report->chunk = chunk;
      report->expected = epoch_;
      report->seen = seen;
      ptx::store_release_system(reinterpret_cast<uint32_t*>(&report->status),
                                static_cast<uint32_t>(status));
    }
  }

  const AsyncArguments& arguments_;
  const DeviceArrival& arrival_;
  uint64_t begin_ = 0;
  uint32_t epoch_ = 0;
  ChunkRange<int32_t> known_;          // have arrived
  ChunkRange<int32_t> rows_ = {0, 0};  // [first, last) have arrived
  int32_t visited_ = 0;                // visits of await_visits
  int32_t depth_ = 0, next_ = 0;
  bool failed_ = false;
};

// The chunks of an output that is stored in parts of `part_rows` x `part_columns` of a tile grid.
class DepartureSignals {
 public:
  __device__ __forceinline__ DepartureSignals(const AsyncArguments& arguments,
                                              const TileGrid<int32_t>& grid, int part_rows,
                                              int part_columns)
      : arguments_(arguments), grid_(grid), part_rows_(part_rows), part_columns_(part_columns) {}

  // The calling thread has issued the stores of this part, its last ones.
  __device__ __forceinline__ void depart(int row, int column) const {
    const DeviceDeparture& departure = arguments_.departure;
    if (departure.signals == nullptr || row >= grid_.m || column >= grid_.n) return;
    ptx::tma_store_wait();
    ptx::fence_proxy_async_global();
    const int begin = departure.of_columns ? column : row;
    const int size = departure.of_columns ? part_columns_ : part_rows_;
    const ChunkRange<int32_t> range = departure.chunks.covering(begin, begin + size);
    for (int chunk = range.first; chunk <= range.last; ++chunk) {
      const uint64_t stamp = stamp_of(arguments_);
      if (count_part(chunk, stamp) == parts_of(chunk) &&
          ptx::load_relaxed(arguments_.failed) != stamp)
        ptx::store_release_system(departure.signals + chunk,
                                  read_epoch(departure.epoch_ptr, departure.epoch));
    }
  }

 private:
  // The parts of the chunk that are stored by now.
  __device__ __forceinline__ uint32_t count_part(int chunk, uint64_t stamp) const {
    constexpr uint64_t kCount = kMostParts;
    uint64_t* const counter = arguments_.failed + 1 + chunk;
    uint64_t seen = ptx::load_relaxed(counter);
    for (;;) {
      const uint64_t count = (seen & ~kCount) == (stamp & ~kCount) ? seen & kCount : 0;
      const uint64_t before = ptx::compare_and_swap(counter, seen, (stamp & ~kCount) | (count + 1));
      if (before == seen) return static_cast<uint32_t>(count + 1);
      seen = before;
    }
  }
  __device__ __forceinline__ uint32_t parts_of(int chunk) const {
    const DeviceDeparture& departure = arguments_.departure;
    const int begin = departure.chunks.begin[chunk], end = departure.chunks.begin[chunk + 1];
    const auto parts = [](int size, int part) { return (size + part - 1) / part; };
    const int rows = departure.of_columns ? parts(grid_.m, part_rows_)
                                          : parts(end, part_rows_) - begin / part_rows_;
    const int columns = departure.of_columns ? parts(end, part_columns_) - begin / part_columns_
                                             : parts(grid_.n, part_columns_);
    return static_cast<uint32_t>(rows) * static_cast<uint32_t>(columns) *
           static_cast<uint32_t>(grid_.batch);
  }

  const AsyncArguments& arguments_;
  const TileGrid<int32_t>& grid_;
  const int part_rows_, part_columns_;
};

#endif

}  // namespace perseid::internal::cuda
