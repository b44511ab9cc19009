// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The chunks of an operand that arrives while it is consumed, or of an output that leaves while it
// is produced, and the order in which they are visited: from the first one (the pivot) round.
#pragma once

#include "math/portable.hpp"

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

}  // namespace perseid::internal
