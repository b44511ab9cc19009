// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Rows of queries and the KV tiles that they visit. C: a configuration of attention forward.
#pragma once

#include "cuda/device/attention/sequence.hpp"

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

}  // namespace perseid::internal::cuda
