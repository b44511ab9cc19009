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
// finds another number in `ready` writes launch + 1 there (launches are even), by compare and
// swap, so that one block alone prepares the counter, and then the launch's number. Nobody waits
// but for a block that is running already. The last block to finish clears `ready`: a captured
// launch, which has the same number whenever it is replayed, finds its counter unprepared again.
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

template <AttentionForwardConfig C>
__device__ __forceinline__ AttentionTile find_tile(const AttentionForwardArguments& a,
                                                   int32_t number) {
  AttentionTile tile{};
  if (number >= a.tiles) {
    tile.query = -1;
    return tile;
  }
  const int32_t section_tiles = a.heads_per_section * a.q_tiles;
  const int32_t first_head = number / section_tiles * a.heads_per_section;
  const int32_t section_heads = min(a.heads_per_section, a.batch_heads - first_head);
  const int32_t place = number % section_tiles;
  const int32_t queries = C.rows() >> a.pack;
  const int32_t head = first_head + place % section_heads;
  tile.query = (a.q_tiles - 1 - place / section_heads) * queries;
  tile.batch = head / a.heads;
  tile.head = head % a.heads;
  tile.kv_head = tile.head / a.group;

  const int32_t last_query = min(tile.query + queries, a.q_len) - 1;
  const auto end_of = [&](int32_t query) {
    return C.right ? clamp(query + a.right, 0, a.kv_len) : a.kv_len;
  };
  const auto begin_of = [&](int32_t query) {
    return C.left ? clamp(query + a.left, 0, a.kv_len) : 0;
  };
  const int32_t begin = begin_of(tile.query), end = end_of(last_query);
  if (begin >= end) {
    tile.free_first = 1;
    return tile;
  }
  tile.first = begin / C.keys;
  tile.last = (end - 1) / C.keys;
  tile.free_first = (begin_of(last_query) + C.keys - 1) / C.keys;
  tile.free_end = end_of(tile.query) / C.keys;
  return tile;
}

}  // namespace perseid::cuda
