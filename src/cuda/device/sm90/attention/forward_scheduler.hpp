// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The tile scheduler of attention forward: the Q tile of a number, and its KV tiles.
//
// Raster order. Heads form sections whose keys and values fit into the L2 cache together. In a
// section the Q tiles with the most keys come first (under a causal mask those of the last rows),
// so that the last tiles of the launch are short. A block begins with the tile of its own number
// and draws the others from a counter, each while it issues the last loads of the one before. A
// cluster draws as one block; its blocks have neighbouring Q tiles of a head, which load the same
// KV tiles: those of the longest.
#pragma once

#include "cuda/device/attention/query_tile.hpp"
#include "cuda/device/sm90/attention/rank_pieces.hpp"

namespace perseid::internal::cuda {

// A Q tile in one head. It visits KV tiles [first, last], from the last to the first; those of
// [unmasked_first, unmasked_end) need no mask. A tile without visible keys visits one, which is
// masked as a whole.
struct AttentionTile : AttentionSequence {
  int32_t number;  // -1: there are no more tiles
  int32_t query;   // the first row; negative where the head's partial tile is its first one
  int32_t head, kv_head;
  int32_t first, last;
  int32_t unmasked_first, unmasked_end;
  int32_t split;       // of the keys; if C.value_parts > 1, the part of the columns
  int32_t iterations;  // of every consumer in the ping-pong order, see VisitedTiles
  int32_t listed;      // not 0: in the block's list of tiles with non-finite results, or past it
};

// What consumers know of a Q tile. The producer has no registers for more than the rest of it.
struct AnnouncedTile : AttentionTile {
  float* lse;  // of the first row; null: not wanted, or not of this part of the columns
};

// The first column of the values and results of a Q tile.
template <AttentionForwardConfig C>
__device__ __forceinline__ int32_t first_column(const AttentionTile& tile) {
  return C.value_parts > 1 ? tile.split * C.value_dim : 0;
}

// Keys [begin, end) that some query of a Q tile sees.
template <AttentionForwardConfig C>
struct TileKeys {
  int32_t begin, end;

  static __device__ __forceinline__ TileKeys of(const AttentionTile& tile, int pack) {
    const int32_t last_query = min(tile.query + (C.rows() >> pack), tile.q_len) - 1;
    return {C.left ? clamp(max(tile.query, 0) + tile.left, 0, tile.kv_len) : 0,
            C.right ? clamp(last_query + tile.right, 0, tile.kv_len) : tile.kv_len};
  }
};

// The key of its sequence with whose tile the order of a Q tile's visits begins.
template <AttentionForwardConfig C>
__device__ __forceinline__ int32_t pivot_of(const AttentionForwardArguments& a,
                                            const AttentionTile& tile) {
  if constexpr (C.rank_pieces) return a.piece * keys_of_piece(a, tile);
  return a.pivot - tile.kv_begin;
}

// The KV tile that is visited as tile n of a Q tile. Chunks that arrive change the order of those
// that need no mask, which is then ascending from the pivot chunk round:
//
//   n         tile.last .. unmasked_end | unmasked_end - 1 .. unmasked_first | .. tile.first
//   visited   the same                  | start, start + 1, .. round         | the same
//
// Split-KV keeps the order within a split, and visits splits from the pivot round.
template <AttentionForwardConfig C>
__device__ __forceinline__ int32_t kv_tile_of(const AttentionForwardArguments& a,
                                              const AttentionTile& tile, int32_t n) {
  if constexpr (!C.async || C.split) return n;
  const int32_t first = tile.unmasked_first, end = tile.unmasked_end;
  if (n < first || n >= end) return n;
  return CyclicTiles<int32_t>::from(first, end, pivot_of<C>(a, tile), C.keys).at(end - 1 - n);
}

// float32: the position of the numbers of a sequence's first key. With heads / group in place of
// kv_heads, ptxas of CUDA 13.0 compiled a wrong quotient where the producer had few registers.
template <AttentionForwardConfig C>
__device__ __forceinline__ int32_t first_number(const AttentionForwardArguments& a,
                                                const AttentionTile& tile) {
  const int32_t rows = C.lengths && a.ragged ? a.total_kv : a.kv_len;
  const int32_t entry = key_entry_of<C.lengths>(a, tile.batch);
  return (entry * a.kv_heads + tile.kv_head) * rows + tile.kv_begin;
}

// KV tiles that a consumer visits. It skips the last and the first one where its own rows see
// nothing of them, at most one at either end, and visits at least one tile, or two where it could
// skip at both ends. All consumers take equally many iterations: as many as there are KV tiles, or
// one less if each of them skips one. Then they work up to one KV tile away from each other, and a
// consumer that begins earlier ends earlier. (With more skipped tiles at the ends of a matrix, and
// two stages, consumers would wait for each other in the order in which K and V arrive.)
template <AttentionForwardConfig C>
struct VisitedTiles {
  int32_t first, last;

  __device__ __forceinline__ int32_t count() const { return last - first + 1; }
  static __device__ __forceinline__ VisitedTiles of(const AttentionTile& tile, int consumer,
                                                    int pack) {
    VisitedTiles own{tile.first, tile.last};
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

// KV tiles that need no mask for the rows of one consumer: [first, end).
template <AttentionForwardConfig C>
struct UnmaskedTiles {
  int32_t first, end;

  __device__ __forceinline__ bool contains(int n) const { return n >= first && n < end; }
  static __device__ __forceinline__ UnmaskedTiles of(const AttentionTile& tile, int consumer,
                                                     int pack) {
    const int32_t query = tile.query + (64 * consumer >> pack);
    const int32_t last_query = tile.query + ((64 * consumer + 63) >> pack);
    const int32_t begin = C.left ? clamp(last_query + tile.left, 0, tile.kv_len) : 0;
    const int32_t end = C.right ? clamp(query + tile.right, 0, tile.kv_len) : tile.kv_len;
    return {(begin + C.keys - 1) / C.keys, end / C.keys};
  }
};

// The Q tile of a number. Numbers increase from one call of find() to the next.
template <AttentionForwardConfig C>
class TileFinder {
 public:
  __device__ __forceinline__ explicit TileFinder(const AttentionForwardArguments& arguments)
      : a_(arguments) {}

  __device__ __forceinline__ AttentionTile find(int32_t number) {
    AttentionTile tile{};
    int32_t whole = C.split ? find_split(number, tile) : number;
    if constexpr (C.value_parts > 1) {
      tile.split = number % C.value_parts;
      whole = number / C.value_parts;
    }
    bool found = whole < a_.batch_heads * a_.q_tiles;
    if (C.lengths && a_.ragged) {
      found = locate_in_ragged(whole, tile);
    } else if (found) {
      locate(whole, tile);
    }
    tile.number = found ? number : -1;
    if (found) find_kv_tiles(tile);
    return tile;
  }

  // Lets the next number be any.
  __device__ __forceinline__ void restart() { batch_ = before_ = tiles_ = 0; }

 private:
  // Raster of split-KV: a split of all heads of a batch entry, which are neighbors in memory, then
  // the next split. Where keys arrive in chunks, a split of all batch entries. Sequences of ragged
  // batches differ in their number of tiles: there splits come first. Returns the tile's number in
  // its split.
  __device__ __forceinline__ int32_t find_split(int32_t number, AttentionTile& tile) const {
    if (C.lengths && a_.ragged) {
      tile.split = number % a_.num_splits;
      return number / a_.num_splits;
    }
    if constexpr (C.async) {
      const int32_t tiles = a_.batch_heads * a_.q_tiles, visit = number / tiles;
      if (visit >= a_.num_splits) return tiles;  // there are no more
      tile.split =
          CyclicTiles<int32_t>::from(0, a_.num_splits, a_.pivot, a_.split_tiles * C.keys).at(visit);
      return number % tiles;
    }
    const int32_t heads = a_.heads * a_.q_tiles;
    tile.split = number / heads % a_.num_splits;
    return number / heads / a_.num_splits * heads + number % heads;
  }
  __device__ __forceinline__ void locate(int32_t number, AttentionTile& tile) const {
    const TileCoordinate at = tile_in_sections(number / C.cluster, a_.q_tiles / C.cluster,
                                               a_.batch_heads, a_.heads_per_section);
    const int32_t position = at.tile * C.cluster + number % C.cluster;
    tile.query = (a_.q_tiles - 1 - position) * queries() - a_.rows_before;
    tile.head = at.head % a_.heads;
    static_cast<AttentionSequence&>(tile) = find_sequence<C.lengths>(a_, at.head / a_.heads);
    if constexpr (C.sharded) {
      const int32_t gap = gap_before<C>(a_, tile.query);
      tile.left += gap;
      tile.right += gap;
    }
  }

  // Raster of ragged batches: one sequence after another, or one piece of it, in each the last rows
  // of all heads first. The cursor is at the one of the last number. Returns whether the tile
  // exists.
  __device__ __forceinline__ bool locate_in_ragged(int32_t number, AttentionTile& tile) {
    const int32_t end_of_batch = raster_sequences<C>(a_);
    for (; batch_ < end_of_batch; ++batch_, before_ += tiles_) {
      const int32_t batch = raster_sequence<C>(a_, batch_);
      const int32_t begin = read_length(a_.cumulative_q, batch, a_.total_q);
      const int32_t end = read_length(a_.cumulative_q, batch + 1, a_.total_q);
      tiles_ = (clamp(end - begin, 0, a_.q_len) + queries() - 1) / queries() * a_.heads;
      if (number < before_ + tiles_) break;
    }
    if (batch_ >= end_of_batch) return false;
    const int32_t own = number - before_;
    tile.query = (tiles_ - 1 - own) / a_.heads * queries();
    tile.head = own % a_.heads;
    static_cast<AttentionSequence&>(tile) =
        find_sequence<C.lengths, C.rank_pieces>(a_, raster_sequence<C>(a_, batch_));
    return true;
  }

  __device__ __forceinline__ void find_kv_tiles(AttentionTile& tile) const {
    tile.kv_head = tile.head / a_.group;
    // Without queries there is no row of scores to read.
    if (C.lengths && (C.visible || C.bias != DType::kNone) && tile.q_len == 0) tile.kv_len = 0;
    const int32_t tiles = 1 + tile.number % C.cluster;  // to the end of the cluster's rows
    internal::cuda::find_kv_tiles<C>(tile, min(tile.query + tiles * queries(), tile.q_len) - 1);
    if constexpr (C.skips_masked_tiles()) {
      tile.iterations = tile.last - tile.first + 1;
      bool all = true;
      for (int consumer = 0; consumer < C.consumers; ++consumer)
        all =
            all && VisitedTiles<C>::of(tile, consumer, a_.pack_gqa).count() == tile.iterations - 1;
      if (all) --tile.iterations;
    }
    if constexpr (C.split) {
      const int32_t split_first = tile.split * a_.split_tiles;
      tile.first = max(tile.first, split_first);
      tile.last = min(tile.last, split_first + a_.split_tiles - 1);
      if (tile.first <= tile.last) return;
      // The split has no visible key: one KV tile, masked as a whole.
      tile.first = tile.last = split_first;
      tile.unmasked_first = split_first + 1;
    }
  }
  __device__ __forceinline__ int32_t queries() const { return C.rows() >> a_.pack_gqa; }

  const AttentionForwardArguments& a_;
  int32_t batch_ = 0;   // ragged: the sequence of the cursor, or a piece of one
  int32_t before_ = 0;  // tiles of earlier sequences
  int32_t tiles_ = 0;   // tiles of this sequence
};

}  // namespace perseid::internal::cuda
