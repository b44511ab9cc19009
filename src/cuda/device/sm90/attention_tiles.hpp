// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Which tile of queries a block does next, and which tiles of keys that visits.
//
// Order. Heads go in sections whose keys and values fit into the L2 cache together. In a section
// the tiles with the most keys come first (the last rows, under a causal mask), so that what is
// left at the end is small. A block begins with the tile of its own number; the others it draws
// from a counter, one tile ahead of what it is doing.
//
// The counter. Its memory may hold anything when the kernel begins, and several launches may be
// under way, each with memory of its own. A launch has a number of 64 random bits. A block that
// finds another number in `ready` writes launch + 1 there (launches are even), by compare and swap,
// so that one block alone prepares the counter, and then the launch's number. Nobody waits but for
// a block that is running already. The last block to finish clears `ready`: a captured launch,
// which has the same number whenever it is replayed, finds its counter unprepared again.
#pragma once

#include "cuda/device/ptx/barrier.hpp"
#include "cuda/device/sm90/attention_config.hpp"

namespace perseid::cuda {

// Tiles of keys [first, last] are visited, from the last to the first; those of [free_first,
// free_end) need no mask. There is always one, if only to be masked as a whole.
struct AttentionTile {
  int32_t query;  // the first one; -1: there are no more tiles
  int32_t head, kv_head, batch;
  int32_t first, last;
  int32_t free_first, free_end;
  // Of its sequence: lengths, where they begin in packed tensors, and what its rows see.
  int32_t q_len, kv_len, q_begin, kv_begin;
  int32_t left, right;
  int32_t part;
};

class TileNumbers {
 public:
  __device__ __forceinline__ explicit TileNumbers(const AttentionForwardArguments& arguments)
      : arguments_(arguments), drawing_(arguments.tiles > static_cast<int32_t>(gridDim.x)) {}

  __device__ __forceinline__ int32_t first() const { return static_cast<int32_t>(blockIdx.x); }
  __device__ __forceinline__ int32_t draw() {
    if (!drawing_) return arguments_.tiles;
    if (!open_) open();
    return static_cast<int32_t>(atomicAdd(&arguments_.counter->next, 1u) + gridDim.x);
  }
  // After the last draw.
  __device__ __forceinline__ void close() {
    if (!drawing_) return;
    TileCounter& counter = *arguments_.counter;
    if (atomicAdd(&counter.finished, 1u) == gridDim.x - 1) ptx::store_release(&counter.ready, 0);
  }

 private:
  __device__ __forceinline__ void open() {
    TileCounter& counter = *arguments_.counter;
    const uint64_t launch = arguments_.launch;
    uint64_t seen = ptx::load_acquire(&counter.ready);
    while (seen != launch) {
      if (seen != launch + 1 && atomicCAS(&counter.ready, seen, launch + 1) == seen) {
        counter.next = 0;
        counter.finished = 0;
        counter.unusual = 0;
        ptx::store_release(&counter.ready, launch);
        break;
      }
      seen = ptx::load_acquire(&counter.ready);
    }
    open_ = true;
  }

  const AttentionForwardArguments& arguments_;
  bool drawing_;
  bool open_ = false;
};

__device__ __forceinline__ int32_t read_length(const LengthsInMemory& lengths, int32_t index,
                                               int32_t most) {
  const int64_t at = index * lengths.stride;
  const int64_t value = lengths.wide ? static_cast<const int64_t*>(lengths.data)[at]
                                     : static_cast<const int32_t*>(lengths.data)[at];
  return static_cast<int32_t>(clamp(value, int64_t{0}, int64_t{most}));
}

// What a tile or row has to know of its sequence, which is the batch entry `batch`.
template <AttentionForwardConfig C>
__device__ __forceinline__ void find_sequence(const AttentionForwardArguments& a, int32_t batch,
                                              AttentionTile& tile) {
  tile.batch = batch;
  tile.q_len = a.q_len;
  tile.kv_len = a.kv_len;
  if constexpr (C.lengths) {
    if (a.ragged) {
      tile.q_begin = read_length(a.cumulative_q, batch, a.total_q);
      const int32_t q_end = read_length(a.cumulative_q, batch + 1, a.total_q);
      tile.q_len = clamp(q_end - tile.q_begin, 0, a.q_len);
      tile.kv_begin = read_length(a.cumulative_kv, batch, a.total_kv);
      const int32_t kv_end = read_length(a.cumulative_kv, batch + 1, a.total_kv);
      tile.kv_len = clamp(kv_end - tile.kv_begin, 0, a.kv_len);
    }
    if (a.kv_lens.data != nullptr)
      tile.kv_len = min(tile.kv_len, read_length(a.kv_lens, batch, a.kv_len));
  }
  const int32_t shift = a.bottom_right ? tile.kv_len - tile.q_len : 0;
  tile.left = a.left + shift;
  tile.right = a.right + shift;
}

// From a tile's number to the tile. Numbers rise.
template <AttentionForwardConfig C>
class TileFinder {
 public:
  __device__ __forceinline__ explicit TileFinder(const AttentionForwardArguments& arguments)
      : a_(arguments) {}

  __device__ __forceinline__ AttentionTile find(int32_t number) {
    AttentionTile tile{};
    tile.query = -1;
    if constexpr (C.split) {
      tile.part = number % a_.parts;
      number /= a_.parts;
    }
    if (C.lengths && a_.ragged) {
      place_in_ragged(number, tile);
    } else if (number < a_.batch_heads * a_.q_tiles) {
      place(number, tile);
    }
    if (tile.query >= 0) see_keys(tile);
    return tile;
  }

 private:
  __device__ __forceinline__ void place(int32_t number, AttentionTile& tile) const {
    const int32_t section_tiles = a_.heads_per_section * a_.q_tiles;
    const int32_t first_head = number / section_tiles * a_.heads_per_section;
    const int32_t section_heads = min(a_.heads_per_section, a_.batch_heads - first_head);
    const int32_t place = number % section_tiles;
    const int32_t head = first_head + place % section_heads;
    tile.query = (a_.q_tiles - 1 - place / section_heads) * queries();
    tile.head = head % a_.heads;
    find_sequence<C>(a_, head / a_.heads, tile);
  }

  // Sequences one after another, in each the last rows of all heads first. The cursor is at the
  // sequence of the last number.
  __device__ __forceinline__ void place_in_ragged(int32_t number, AttentionTile& tile) {
    for (; batch_ < a_.batch; ++batch_, before_ += tiles_) {
      const int32_t begin = read_length(a_.cumulative_q, batch_, a_.total_q);
      const int32_t end = read_length(a_.cumulative_q, batch_ + 1, a_.total_q);
      tiles_ = (clamp(end - begin, 0, a_.q_len) + queries() - 1) / queries() * a_.heads;
      if (number < before_ + tiles_) break;
    }
    if (batch_ >= a_.batch) return;
    const int32_t place = number - before_;
    tile.query = (tiles_ - 1 - place) / a_.heads * queries();
    tile.head = place % a_.heads;
    find_sequence<C>(a_, batch_, tile);
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
    const int32_t begin = begin_of(tile.query), end = end_of(last_query);
    if (begin >= end) {
      tile.free_first = 1;
    } else {
      tile.first = begin / C.keys;
      tile.last = (end - 1) / C.keys;
      tile.free_first = (begin_of(last_query) + C.keys - 1) / C.keys;
      tile.free_end = end_of(tile.query) / C.keys;
    }
    if constexpr (C.split) {
      const int32_t part_first = tile.part * a_.part_tiles;
      tile.first = max(tile.first, part_first);
      tile.last = min(tile.last, part_first + a_.part_tiles - 1);
      if (tile.first <= tile.last) return;
      // Nothing that a row sees: one tile, masked as a whole.
      tile.first = tile.last = part_first;
      tile.free_first = part_first + 1;
    }
  }
  __device__ __forceinline__ int32_t queries() const { return C.rows() >> a_.pack; }

  const AttentionForwardArguments& a_;
  int32_t batch_ = 0;   // ragged: the sequence of the cursor,
  int32_t before_ = 0;  // the tiles of those before it
  int32_t tiles_ = 0;   // and its own
};

}  // namespace perseid::cuda
