// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Operands that arrive in chunks while a kernel runs, and outputs that leave in chunks
// (perseid/async.h).
//
// Arrival. Whoever delivers a chunk writes its data, then its signal, with release order at system
// scope. One thread polls the signal with acquire order at system scope, so that it sees the data.
// Before TMA loads it executes a proxy fence, which orders what it has acquired before them; a
// barrier of the block shows the data to loads of other threads.
//
// End of a wait. A block whose wait passes the deadline, or sees the abort word, waits no more: it
// loads whatever is in memory and computes to its end, so that no block of a cluster waits for
// another. The first one writes what is missing into the reports, and sets `failed` before it
// issues such loads; the others wait no more when they see it. The results are undefined.
//
// Times. A launch that is asked for them adds how long it waits for each chunk. A wait for a chunk
// that is there reads no timer.
//
// Departure. A storing thread waits until its TMA stores have written and executes a proxy fence,
// or until a barrier has shown it the stores of its block. It counts the part of the output that is
// stored, with acquire and release order. The one that
// completes a chunk writes its signal with release order at system scope: the writes of all that
// have counted are visible before it. Nothing is signalled once `failed` is set.
#pragma once

#include "math/tile_order.hpp"
#if defined(__CUDACC_RTC__) || defined(PERSEID_EMULATED_GPU)
#include "cuda/device/ptx/memory_order.hpp"
#include "cuda/device/ptx/tma.hpp"
#endif

namespace perseid::internal::cuda {

// As perseid_wait_record; the host checks that.
struct WaitReport {
  int32_t status, rank, operand, chunk;
  uint32_t expected, seen;
};
// How long launches have waited for a chunk; zeros: not at all. Nanoseconds of the global timer.
struct ChunkWait {
  uint64_t waited;      // by all waiters together
  uint64_t not_before;  // the complement of when the first wait began
  uint64_t until;       // when the last one ended
  uint64_t waiters;     // of the launch: its blocks, or more of each
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
  ChunkWait* waits = nullptr;                  // one for each chunk, where somebody asks
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
  // A counter like these, of the tiles that blocks have taken; null: the schedule is static
  // (sm90/matmul/scheduler.hpp).
  uint64_t* taken = nullptr;
  uint64_t launch = 0;          // a number of random bits
  WaitReport* reports[3] = {};  // memory of the host; some may be null
};
// The arguments of a launch that waits for some of the chunks. The deadline counts from the `first`
// launch on, which writes its time to `begin`.
struct ChunkWaitArguments {
  AsyncArguments async;
  ChunkRange<int32_t> chunks[2];
  uint64_t* begin = nullptr;
  bool first = true;
};
// Waits before any of them is noted. `until` of the one behind them becomes the time.
struct ChunkWaitsArguments {
  ChunkWait* waits = nullptr;
  int32_t count = 0;
};

#if defined(__CUDACC_RTC__) || defined(PERSEID_EMULATED_GPU)

__device__ __forceinline__ uint32_t read_epoch(const uint32_t* epoch_ptr, uint32_t epoch) {
  return epoch_ptr == nullptr ? epoch : ptx::load_relaxed_system(epoch_ptr);
}

// Tells launches apart; each replay of a captured one has another, since its epochs are others.
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

// A thread has waited for the chunk, as one of so many of its block. Returns the time.
inline __device__ __noinline__ uint64_t note_wait(const DeviceArrival& arrival, int chunk,
                                                  uint64_t begin, int waiters = 1) {
  const uint64_t end = ptx::nanoseconds();
  ChunkWait& wait = arrival.waits[chunk];
  atomicAdd(&wait.waited, end - begin);
  atomicMax(&wait.not_before, ~begin);
  atomicMax(&wait.until, end);
  wait.waiters = static_cast<uint64_t>(gridDim.x) * static_cast<uint32_t>(waiters);
  return end;
}

// What a wait does now and then.
class ArrivalChecks {
 protected:
  static constexpr int kPollsPerCheck = 32, kPauseNs = 40;
  static constexpr uint32_t kWholeWarp = 0xffffffffu;

  // chunks.chunk_of(x), or the last chunk, by a search that cuts into 32 parts instead of two.
  static __device__ __forceinline__ int32_t chunk_by_warp(const ChunkTable<int32_t>& chunks,
                                                          int x) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int low = 0, high = chunks.count;  // begin[low] <= x < begin[high]
    while (high - low > 1) {
      const int part = (high - low + 31) / 32, at = low + lane * part;
      const bool begins_before = at < high && chunks.begin[at] <= x;
      low += (__popc(__ballot_sync(kWholeWarp, begins_before)) - 1) * part;
      high = min(high, low + part);
    }
    return low;
  }
  // Whether the wait for this chunk ends without it, since it is over here or in another block.
  static __device__ __forceinline__ bool has_failed(const AsyncArguments& arguments,
                                                    const DeviceArrival& arrival, uint64_t begin,
                                                    uint32_t epoch, int chunk) {
    if (arguments.failed != nullptr && ptx::load_relaxed(arguments.failed) == stamp_of(arguments))
      return true;
    const bool aborts = arrival.abort != nullptr && ptx::load_relaxed_system(arrival.abort) != 0;
    if (!aborts && ptx::nanoseconds() - begin <= arrival.deadline_ns) return false;
    report(arguments, arrival, epoch, chunk, aborts ? kReportedPeerLost : kReportedTimeout);
    return true;
  }
  // Reports the first chunk that is missing, in the order of visits.
  static __device__ __noinline__ void report(const AsyncArguments& arguments,
                                             const DeviceArrival& arrival, uint32_t epoch,
                                             int chunk, int32_t status) {
    const uint64_t stamp = stamp_of(arguments);
    if (arguments.failed != nullptr && atomicExch(arguments.failed, stamp) == stamp) return;
    uint32_t seen = ptx::load_acquire_system(arrival.signals + chunk);
    for (int visit = 0; visit < arrival.chunks.count; ++visit) {
      const int visited = arrival.chunks.chunk_of_visit(visit);
      if (visited < arrival.read.first || arrival.read.last < visited) continue;
      const uint32_t signal = ptx::load_acquire_system(arrival.signals + visited);
      if (epoch_reached(signal, epoch)) continue;
      chunk = visited;
      seen = signal;
      break;
    }
    for (WaitReport* const to : arguments.reports) {
      if (to == nullptr) continue;
      to->rank = -1;
      to->operand = arrival.operand;
      to->chunk = chunk;
      to->expected = epoch;
      to->seen = seen;
      ptx::store_release_system(reinterpret_cast<uint32_t*>(&to->status),
                                static_cast<uint32_t>(status));
    }
  }
};

// The waits for one operand, of a warp or of one thread, which the calls below say. What is not
// inlined takes and returns values: an object whose address a call takes would lie in local memory,
// and so would all that it refers to. kWaiters: how many of a block keep it from its work; 0: none.
template <int kWaiters = 1>
class ArrivalWaits : ArrivalChecks {
 public:
  __device__ __forceinline__ ArrivalWaits(const AsyncArguments& arguments, int operand)
      : arguments_(arguments), arrival_(arguments.arrivals[operand]) {}
  // After what the kernels before have written is visible; before any wait.
  __device__ __forceinline__ void start() {
    if (arrival_.signals != nullptr) begin_ = ptx::nanoseconds();
  }
  __device__ __forceinline__ void start_at(uint64_t begin) { begin_ = begin; }

  // ---- By a whole warp ----

  // Until these chunks have arrived, and those of these visits, which are never behind those of an
  // earlier call. A proxy fence orders loads by TMA after it.
  __device__ __forceinline__ void await(ChunkRange<int32_t> chunks, ChunkRange<int32_t> visits) {
    if (arrival_.signals == nullptr) return;
    if (!chunks.empty() && (chunks.first < known_.first || known_.last < chunks.last))
      known_ = {chunks.first, await_by_warp(chunks, 0) - 1};
    if (visited_ <= visits.last)
      visited_ = await_by_warp({max(visits.first, visited_), visits.last}, arrival_.chunks.first);
  }
  // Until rows [from, to) have arrived, of an operand that is cut along them; not an empty range.
  // TMA may read them afterwards. `known`: rows [first, last) that have arrived; returns them with
  // the new ones, and with the chunks behind these that are here, as far as chunks adjoin.
  // `arrival`: the operand's, or that of some of its heads.
  __device__ __forceinline__ ChunkRange<int32_t> await_rows(const DeviceArrival& arrival, int from,
                                                            int to,
                                                            ChunkRange<int32_t> known) const {
    return await_rows(arguments_, arrival, begin_, from, to, known);
  }
  // Until the chunk has arrived, of such an arrival. TMA may read it afterwards. False: the wait
  // has failed.
  __device__ __forceinline__ bool await_chunk_of(const DeviceArrival& arrival, int chunk) const {
    const int missing = await_by_warp(arguments_, arrival, begin_, {chunk, chunk}, 0);
    ptx::fence_proxy_async_global();
    return missing <= arrival.chunks.count;
  }

  // ---- By one thread ----

  // Until the chunk has arrived.
  __device__ __forceinline__ void await_chunk(int chunk) {
    if (!failed_) failed_ = await_by_thread(arguments_, arrival_, begin_, chunk);
  }
  __device__ __forceinline__ bool failed() const { return failed_; }
  // The chunks of k up to this depth, of an operand that is cut along k. True: there were new ones;
  // a proxy fence orders loads by TMA after it.
  __device__ __forceinline__ bool await_depth(int depth) {
    if (arrival_.signals == nullptr || !arrival_.along_k) return false;
    bool waited = false;
    while (depth_ < depth && next_ < arrival_.chunks.count) {
      await_chunk(next_);
      depth_ = arrival_.chunks.begin[++next_];
      waited = true;
    }
    return waited;
  }

 private:
  // Whether the wait has failed.
  static __device__ __noinline__ bool await_by_thread(const AsyncArguments& arguments,
                                                      const DeviceArrival& arrival, uint64_t begin,
                                                      int chunk) {
    const uint32_t epoch = read_epoch(arrival.epoch_ptr, arrival.epoch);
    uint64_t since = 0;
    for (int polls = 1;; ++polls) {
      if (epoch_reached(ptx::load_acquire_system(arrival.signals + chunk), epoch)) {
        if (kWaiters > 0 && since != 0) note_wait(arrival, chunk, since, kWaiters);
        return false;
      }
      if (kWaiters > 0 && since == 0 && arrival.waits != nullptr) since = ptx::nanoseconds();
      __nanosleep(kPauseNs);
      if (polls % kPollsPerCheck == 0 && has_failed(arguments, arrival, begin, epoch, chunk))
        return true;
    }
  }
  // Every lane polls a visit, from the first missing one of the range on; visit v is of chunk
  // pivot + v, round. Returns the first visit behind the range that may be missing; after a wait
  // that has failed none is.
  static __device__ __noinline__ int32_t await_by_warp(const AsyncArguments& arguments,
                                                       const DeviceArrival& arrival, uint64_t begin,
                                                       ChunkRange<int32_t> range, int32_t pivot) {
    const int lane = static_cast<int>(threadIdx.x) % 32, count = arrival.chunks.count;
    const uint32_t epoch = read_epoch(arrival.epoch_ptr, arrival.epoch);
    int missing = range.first;
    uint64_t since = 0;
    for (int polls = 1;; ++polls) {
      const int visit = missing + lane, chunk = pivot + visit;
      bool here = false;
      if (visit < count)
        here = epoch_reached(
            ptx::load_acquire_system(arrival.signals + (chunk < count ? chunk : chunk - count)),
            epoch);
      const int of = pivot + missing;
      const int arrived = __clz(__brev(~__ballot_sync(kWholeWarp, here)));
      // Chunks that arrive with the one that is waited for count as that one.
      if (kWaiters > 0 && since != 0 && arrived > 0 && lane == 0)
        since = note_wait(arrival, of < count ? of : of - count, since, kWaiters);
      missing += arrived;
      if (missing > range.last) break;
      if (kWaiters > 0 && since == 0 && arrival.waits != nullptr) since = ptx::nanoseconds();
      __nanosleep(kPauseNs);
      if (polls % kPollsPerCheck != 0) continue;
      const bool fails =
          lane == 0 && has_failed(arguments, arrival, begin, epoch, of < count ? of : of - count);
      if (__any_sync(kWholeWarp, fails)) return 0x7fffffff;
    }
    __syncwarp();  // orders what all lanes have acquired before what each does next
    return missing;
  }
  __device__ __forceinline__ int32_t await_by_warp(ChunkRange<int32_t> range, int32_t pivot) const {
    return await_by_warp(arguments_, arrival_, begin_, range, pivot);
  }
  static __device__ __noinline__ ChunkRange<int32_t> await_rows(const AsyncArguments& arguments,
                                                                const DeviceArrival& arrival,
                                                                uint64_t begin, int from, int to,
                                                                ChunkRange<int32_t> known) {
    const ChunkTable<int32_t>& chunks = arrival.chunks;
    const ChunkRange<int32_t> range{chunk_by_warp(chunks, from), chunk_by_warp(chunks, to - 1)};
    const int missing = await_by_warp(arguments, arrival, begin, range, 0);
    if (missing > chunks.count) return {0, 0x7fffffff};
    ptx::fence_proxy_async_global();
    const ChunkRange<int32_t> arrived{chunks.begin[range.first], chunks.begin[missing]};
    if (arrived.first > known.last || known.first > arrived.last) return arrived;
    return {min(known.first, arrived.first), max(known.last, arrived.last)};
  }
  const AsyncArguments& arguments_;
  const DeviceArrival& arrival_;
  uint64_t begin_ = 0;
  ChunkRange<int32_t> known_;  // have arrived
  int32_t visited_ = 0;        // visits before have arrived, as far as they were awaited
  int32_t depth_ = 0, next_ = 0;
  bool failed_ = false;
};

// One more part of a chunk is stored; returns how many are. Hundreds of threads count at the same
// time: each adds once, since a compare-and-swap in a loop would let one of them through per round
// trip. stamp: of the launch.
__device__ __forceinline__ uint32_t count_part(uint64_t* counter, uint64_t stamp) {
  constexpr uint64_t kCount = kMostParts;
  const uint64_t zero = stamp & ~kCount;
  // The first one replaces what lies there from before this launch.
  for (uint64_t seen = ptx::load_relaxed(counter); (seen & ~kCount) != zero;) {
    const uint64_t before = ptx::compare_and_swap(counter, seen, zero);
    if (before == seen) break;
    seen = before;
  }
  return static_cast<uint32_t>(ptx::fetch_add(counter, 1) & kCount) + 1;
}

// The chunks of an output that is stored in parts of `part_rows` x `part_columns` of a tile grid.
class DepartureSignals {
 public:
  __device__ __forceinline__ DepartureSignals(const AsyncArguments& arguments,
                                              const TileGrid<int32_t>& grid, int part_rows,
                                              int part_columns)
      : arguments_(arguments), grid_(grid), part_rows_(part_rows), part_columns_(part_columns) {}

  // Whether anybody waits for the part.
  __device__ __forceinline__ bool wanted(int row, int column) const {
    return arguments_.departure.signals != nullptr && row < grid_.m && column < grid_.n;
  }
  // The part is stored, and wanted; by one thread.
  __device__ __forceinline__ void depart(int row, int column) const {
    depart(row, column, [&](int chunk) { return arguments_.departure.signals + chunk; });
  }
  // The same, where the signal of a chunk is elsewhere.
  template <class SignalOf>
  __device__ __forceinline__ void depart(int row, int column, const SignalOf& signal_of) const {
    const DeviceDeparture& departure = arguments_.departure;
    const int begin = departure.of_columns ? column : row;
    const int size = departure.of_columns ? part_columns_ : part_rows_;
    const ChunkRange<int32_t> range = departure.chunks.covering(begin, begin + size);
    for (int chunk = range.first; chunk <= range.last; ++chunk) {
      const uint64_t stamp = stamp_of(arguments_);
      if (count_part(arguments_.failed + 1 + chunk, stamp) == parts_of(chunk) &&
          ptx::load_relaxed(arguments_.failed) != stamp)
        ptx::store_release_system(signal_of(chunk),
                                  read_epoch(departure.epoch_ptr, departure.epoch));
    }
  }

 private:
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
