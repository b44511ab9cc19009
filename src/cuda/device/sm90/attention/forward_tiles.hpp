// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Which tile of queries a block does next, and which tiles of keys that visits.
//
// Order. Heads go in sections whose keys and values fit into the L2 cache together. In a section
// the tiles with the most keys come first (the last rows, under a causal mask), so that what is
// left at the end is small. A block begins with the tile of its own number; the others it draws
// from a counter, each when it asks for the last keys of the one before.
#pragma once

#include "cuda/device/sm90/attention/config.hpp"
#include "cuda/device/sm90/attention/sequence.hpp"

namespace perseid::internal::cuda {

// Tiles of keys [first, last] are visited, from the last to the first; those of [free_first,
// free_end) need no mask. There is always one, if only to be masked as a whole.
struct AttentionTile : AttentionSequence {
  int32_t number;  // -1: there are no more tiles
  int32_t query;   // the first one; the first tile of a head may begin before its first query
  int32_t head, kv_head;
  int32_t first, last;
  int32_t free_first, free_end;
  int32_t split;
  int32_t turns;   // of each consumer in the tile, see VisitedKeys
  int32_t listed;  // not 0: in the block's list of tiles with non-finite results, or past it
};

// Tiles of keys that a consumer visits. It passes over the last and the first one where its own
// rows do not see them. All consumers have as many turns: as there are keys, or one less where each
// of them passes over one. Then they are up to a tile of keys apart, and those that begin with an
// earlier one are those that end with an earlier one. What else the first and last tiles of a
// matrix may ask for would have them wait for each other, with two stages, in the order in which
// keys and values come: they go through it in step.
template <AttentionForwardConfig C>
struct VisitedKeys {
  int32_t first, last;

  __device__ __forceinline__ int32_t count() const { return last - first + 1; }
  static __device__ __forceinline__ VisitedKeys of(const AttentionTile& tile, int consumer,
                                                   int pack) {
    VisitedKeys own{tile.first, tile.last};
    if constexpr (C.right && C.skips_masked_tiles()) {
      const int32_t query = tile.query + ((64 * consumer + 63) >> pack);
      const int32_t seen = max(query + tile.right - 1, 0) / C.keys;
      if (seen < own.last && own.count() > (C.left ? 2 : 1)) --own.last;
    }
    if constexpr (C.left && C.skips_masked_tiles()) {
      const int32_t query = tile.query + (64 * consumer >> pack);
      const int32_t seen = max(query + tile.left, 0) / C.keys;
      if (seen > own.first && own.count() > 2) ++own.first;
    }
    return own;
  }
};

// Tiles of keys that need no mask for the rows of a consumer.
template <AttentionForwardConfig C>
struct FreeKeys {
  int32_t first, end;

  __device__ __forceinline__ bool holds(int n) const { return n >= first && n < end; }
  static __device__ __forceinline__ FreeKeys of(const AttentionTile& tile, int consumer, int pack) {
    const int32_t query = tile.query + (64 * consumer >> pack);
    const int32_t last_query = tile.query + ((64 * consumer + 63) >> pack);
    const int32_t begin = C.left ? clamp(last_query + tile.left, 0, tile.kv_len) : 0;
    const int32_t end = C.right ? clamp(query + tile.right, 0, tile.kv_len) : tile.kv_len;
    return {(begin + C.keys - 1) / C.keys, end / C.keys};
  }
};

// From a tile's number to the tile. Numbers rise from one call to the next.
template <AttentionForwardConfig C>
class TileFinder {
 public:
  __device__ __forceinline__ explicit TileFinder(const AttentionForwardArguments& arguments)
      : a_(arguments) {}

  __device__ __forceinline__ AttentionTile find(int32_t number) {
    AttentionTile tile{};
    const int32_t whole = C.split ? find_split(number, tile) : number;
    bool found = whole < a_.batch_heads * a_.q_tiles;
    if (C.lengths && a_.ragged) {
      found = locate_in_ragged(whole, tile);
    } else if (found) {
      place(whole, tile);
    }
    tile.number = found ? number : -1;
    if (found) see_keys(tile);
    return tile;
  }

  // The next number may be any.
  __device__ __forceinline__ void restart() { batch_ = before_ = tiles_ = 0; }

 private:
  // One part of all heads after another, which lie side by side in memory; ragged batches have
  // other numbers of tiles in each sequence. Returns the number that the tile has in its part.
  __device__ __forceinline__ int32_t find_split(int32_t number, AttentionTile& tile) const {
    if (C.lengths && a_.ragged) {
      tile.split = number % a_.num_splits;
      return number / a_.num_splits;
    }
    const int32_t heads = a_.heads * a_.q_tiles;
    tile.split = number / heads % a_.num_splits;
    return number / heads / a_.num_splits * heads + number % heads;
  }
  __device__ __forceinline__ void place(int32_t number, AttentionTile& tile) const {
    const TileCoordinate place =
        tile_in_sections(number, a_.q_tiles, a_.batch_heads, a_.heads_per_section);
    tile.query = (a_.q_tiles - 1 - place.tile) * queries() - a_.rows_before;
    tile.head = place.head % a_.heads;
    static_cast<AttentionSequence&>(tile) = find_sequence<C.lengths>(a_, place.head / a_.heads);
  }

  // Sequences one after another, in each the last rows of all heads first. The cursor is at the
  // sequence of the last number. Returns whether there is one.
  __device__ __forceinline__ bool locate_in_ragged(int32_t number, AttentionTile& tile) {
    for (; batch_ < a_.batch; ++batch_, before_ += tiles_) {
      const int32_t begin = read_length(a_.cumulative_q, batch_, a_.total_q);
      const int32_t end = read_length(a_.cumulative_q, batch_ + 1, a_.total_q);
      tiles_ = (clamp(end - begin, 0, a_.q_len) + queries() - 1) / queries() * a_.heads;
      if (number < before_ + tiles_) break;
    }
    if (batch_ >= a_.batch) return false;
    const int32_t place = number - before_;
    tile.query = (tiles_ - 1 - place) / a_.heads * queries();
    tile.head = place % a_.heads;
    static_cast<AttentionSequence&>(tile) = find_sequence<C.lengths>(a_, batch_);
    return true;
  }

  __device__ __forceinline__ void see_keys(AttentionTile& tile) const {
    tile.kv_head = tile.head / a_.group;
    const int32_t last_query = min(tile.query + queries(), tile.q_len) - 1;
    const auto end_of = [&](int32_t query) {
      return C.right ? clamp(query + tile.right, 0, tile.kv_len) : tile.kv_len;
    };
    const auto begin_of = [&](int32_t query) {
      return C.left ? clamp(query + tile.left, 0, tile.kv_len) : 0;
    };
    const int32_t begin = begin_of(max(tile.query, 0)), end = end_of(last_query);
    if (begin >= end) {
      tile.free_first = 1;
    } else {
      tile.first = begin / C.keys;
      tile.last = (end - 1) / C.keys;
      tile.free_first = (begin_of(last_query) + C.keys - 1) / C.keys;
      tile.free_end = end_of(tile.query) / C.keys;
    }
    if constexpr (C.skips_masked_tiles()) {
      tile.turns = tile.last - tile.first + 1;
      bool all = true;
      for (int consumer = 0; consumer < C.consumers; ++consumer)
        all = all && VisitedKeys<C>::of(tile, consumer, a_.pack_gqa).count() == tile.turns - 1;
      if (all) --tile.turns;
    }
    if constexpr (C.split) {
      const int32_t split_first = tile.split * a_.split_tiles;
      tile.first = max(tile.first, split_first);
      tile.last = min(tile.last, split_first + a_.split_tiles - 1);
      if (tile.first <= tile.last) return;
      // Nothing that a row sees: one tile, masked as a whole.
      tile.first = tile.last = split_first;
      tile.free_first = split_first + 1;
    }
  }
  __device__ __forceinline__ int32_t queries() const { return C.rows() >> a_.pack_gqa; }

  const AttentionForwardArguments& a_;
  int32_t batch_ = 0;   // ragged: the sequence of the cursor,
  int32_t before_ = 0;  // the tiles of those before it
  int32_t tiles_ = 0;   // and its own
};

}  // namespace perseid::internal::cuda
