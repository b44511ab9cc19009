// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Rows of queries and the KV tiles that they visit. C: a configuration of attention forward.
#pragma once

#include "cuda/device/attention/sequence.hpp"
#include "cuda/device/raster_order.hpp"

namespace perseid::internal::cuda {

// Some rows of queries in one head. They visit KV tiles [first, last], from the last to the first;
// those of [unmasked_first, unmasked_end) need no mask. Rows without visible keys visit one tile,
// which is masked as a whole.
struct QueryTile : AttentionSequence {
  int32_t query;  // the first row
  int32_t head, kv_head;
  int32_t first, last;
  int32_t unmasked_first, unmasked_end;
};

// For rows from tile.query to last_query. Tile: QueryTile, or one with the same members.
template <auto C, class Tile>
__device__ __forceinline__ void find_kv_tiles(Tile& tile, int32_t last_query) {
  const auto end_of = [&](int32_t query) {
    return C.right ? clamp(query + tile.right, 0, tile.kv_len) : tile.kv_len;
  };
  const auto begin_of = [&](int32_t query) {
    return C.left ? clamp(query + tile.left, 0, tile.kv_len) : 0;
  };
  const int32_t begin = begin_of(max(tile.query, 0)), end = end_of(last_query);
  // A tile may lie behind the last of the queries that have lengths.
  if (begin >= end || (C.lengths && last_query < tile.query)) {
    tile.unmasked_first = 1;
  } else {
    tile.first = begin / C.keys;
    tile.last = (end - 1) / C.keys;
    tile.unmasked_first = (begin_of(last_query) + C.keys - 1) / C.keys;
    tile.unmasked_end = end_of(tile.query) / C.keys;
  }
}

// The queries of a number in the raster order, C.block_rows() of a head; the longest tiles come
// first. By whole warps. Returns whether there are any.
template <auto C>
__device__ __forceinline__ bool find_query_tile(const typename decltype(C)::Arguments& a,
                                                int32_t number, QueryTile& tile) {
  if (C.lengths && a.ragged) {
    const auto row = static_cast<int32_t>(quotient(a.by_heads, static_cast<uint32_t>(number)));
    const int32_t position = a.q_tiles - 1 - row;
    const int32_t batch =
        sequence_of_block(a.cumulative_q, a.total_q, a.batch, C.block_rows(), position);
    if (batch < 0) return false;
    static_cast<AttentionSequence&>(tile) = find_sequence<C.lengths>(a, batch);
    tile.head = number - row * a.heads;
    tile.query =
        (position - first_padded_block(tile.q_begin, batch, C.block_rows())) * C.block_rows();
  } else {
    const TileCoordinate at =
        tile_in_sections(number, a.q_tiles, a.batch_heads, a.heads_per_section, a.by_section);
    const auto batch = static_cast<int32_t>(quotient(a.by_heads, static_cast<uint32_t>(at.head)));
    static_cast<AttentionSequence&>(tile) = find_sequence<C.lengths>(a, batch);
    tile.head = at.head - batch * a.heads;
    tile.query = (a.q_tiles - 1 - at.tile) * C.block_rows();
  }
  tile.kv_head = static_cast<int32_t>(quotient(a.by_group, static_cast<uint32_t>(tile.head)));
  return tile.query < tile.q_len;
}

// Keeps the KV tiles that a split of the keys has, which may be none.
template <class Arguments>
__device__ __forceinline__ void keep_split(const Arguments& a, int32_t split, QueryTile& tile) {
  tile.first = max(tile.first, split * a.split_tiles);
  tile.last = min(tile.last, (split + 1) * a.split_tiles - 1);
}

}  // namespace perseid::internal::cuda
