// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The chunks of an operand that arrives while it is consumed, or of an output that is sent while it
// is produced, and the order in which they are visited: cyclic, from the pivot on.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal::cpu {
class ChunkTimes;  // cpu/chunk_times.hpp
}
namespace perseid::internal::cuda {
struct ChunkWait;  // cuda/device/chunk_waits.hpp
}

namespace perseid::internal {

// Whether a signal has reached an epoch. Epochs count up and wrap at 2^32: the difference decides,
// so a signal may be up to 2^31 - 1 epochs ahead.
PERSEID_INLINE constexpr bool epoch_reached(uint32_t signal, uint32_t epoch) {
  return static_cast<int32_t>(signal - epoch) >= 0;
}

// The chunks `first` to `last`, both included; none where last < first.
template <class Index>
struct ChunkRange {
  Index first = 0, last = -1;

  PERSEID_INLINE constexpr bool empty() const { return last < first; }
};

// Index: int32_t or int64_t; it holds 2 * count and every boundary.
template <class Index>
struct ChunkTable {
  const Index* begin = nullptr;  // count + 1 boundaries: from 0, each above the one before
  Index count = 0;               // 0: no chunks, everything is present
  Index first = 0;               // visited first, 0 <= first < count

  PERSEID_INLINE constexpr bool present() const { return count > 0; }

  // The chunk that is visited as number `visit` (from 0), and its inverse.
  PERSEID_INLINE constexpr Index chunk_of_visit(Index visit) const {
    const Index chunk = first + visit;
    return chunk < count ? chunk : chunk - count;
  }
  PERSEID_INLINE constexpr Index visit_of_chunk(Index chunk) const {
    return chunk >= first ? chunk - first : chunk - first + count;
  }

  // The chunk that holds element x, 0 <= x < begin[count].
  PERSEID_INLINE constexpr Index chunk_of(Index x) const {
    Index low = 0, high = count;  // begin[low] <= x < begin[high]
    while (high - low > 1) {
      const Index middle = low + (high - low) / 2;
      if (begin[middle] <= x) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // The chunks that hold elements of [from, to). What lies past the last chunk belongs to none.
  PERSEID_INLINE constexpr ChunkRange<Index> covering(Index from, Index to) const {
    if (count == 0) return {};
    to = min(to, begin[count]);
    if (from >= to) return {};
    return {chunk_of(from), chunk_of(to - 1)};
  }

  // The visit after which all of a range that is not empty is present.
  PERSEID_INLINE constexpr Index last_visit(ChunkRange<Index> range) const {
    const bool wraps = range.first < first && first <= range.last;
    return wraps ? count - 1 : visit_of_chunk(range.last);
  }
};

// Tiles [begin, end) along the rows of an operand, in the order of visits: from the first tile that
// lies behind the boundary where the pivot chunk begins, round. A tile that the pivot chunk shares
// with the chunk before it comes last, for that chunk is visited last.
template <class Index>
struct CyclicTiles {
  Index begin = 0, end = 0, start = 0;

  // pivot: the first row of the pivot chunk, negative where it lies before the first tile's row 0.
  static PERSEID_INLINE constexpr CyclicTiles from(Index begin, Index end, Index pivot,
                                                   Index tile) {
    const Index start = (max(pivot, Index{0}) + tile - 1) / tile;
    return {begin, end, begin < start && start < end ? start : begin};
  }
  PERSEID_INLINE constexpr Index count() const { return max(end - begin, Index{0}); }
  PERSEID_INLINE constexpr Index at(Index visit) const {
    const Index tile = start + visit;
    return tile < end ? tile : tile - (end - begin);
  }
};

// Which dimension the chunks of an operand cut: of a product c[m, n] = a[m, k] b[k, n], or the rows
// of attention's key and value.
enum class ChunkDim : uint32_t { kNone = 0, kM = 1, kN = 2, kK = 3, kKv = 4 };

// The chunks of an operand, as a plan has them.
struct ChunkCut {
  ChunkDim dim = ChunkDim::kNone;
  const int64_t* begin = nullptr;  // of the plan, as in ChunkTable
  int64_t count = 0;

  PERSEID_INLINE constexpr bool present() const { return dim != ChunkDim::kNone; }
  // The chunks where they cut `which`; else none.
  PERSEID_INLINE constexpr ChunkTable<int64_t> along(ChunkDim which, int64_t first) const {
    if (dim != which || !present()) return {};
    return {begin, count, first};
  }
};

// What one execution is told of an operand that arrives in chunks. Signals and epoch_ptr are in
// memory of the device, the abort word is in memory of the host.
struct Arrival {
  const uint32_t* signals = nullptr;  // one for each chunk
  uint32_t epoch = 0;
  const uint32_t* epoch_ptr = nullptr;  // where the epoch is, if not null
  int64_t first = 0;                    // the pivot
  uint64_t deadline_ns = 0;             // from the start of the work
  const uint32_t* abort = nullptr;
  void* record = nullptr;            // a perseid_wait_record, where the caller gave one
  cpu::ChunkTimes* times = nullptr;  // on the CPU, where somebody asks
  cuda::ChunkWait* waits = nullptr;  // on a GPU: in its memory, one for each chunk
};

// What one execution is told of an output that leaves in chunks.
struct Departure {
  uint32_t* signals = nullptr;
  uint32_t epoch = 0;
  const uint32_t* epoch_ptr = nullptr;
  int64_t first = 0;
  cpu::ChunkTimes* times = nullptr;  // on the CPU, where somebody asks
};

// What takes the times of an execution with chunks, where somebody asks.
struct ChunkTimers {
  cpu::ChunkTimes* cpu = nullptr;
  cuda::ChunkWait* gpu = nullptr;
};

// How the waits of an execution ended.
enum class WaitEnd : uint32_t { kArrived, kTimeout, kAborted };

// The first chunk that was missing, in the order of visits.
struct Missing {
  WaitEnd end = WaitEnd::kArrived;
  int32_t operand = 0;  // 0: a, or key and value; 1: b
  int64_t chunk = -1;
  uint32_t expected = 0, seen = 0;
};

}  // namespace perseid::internal
