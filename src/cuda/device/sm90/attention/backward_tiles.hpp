// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Work of attention backward on sm_90a: the raster order of key tiles and the steps of a tile.
//
// Raster order. Key heads form sections whose queries and gradients fit into the L2 cache together.
// Within a section the first key tiles of all heads come first: under a causal mask they have the
// most queries. A tile iterates over all query heads of its key head, so that its dK and dV stay in
// registers until they are complete. If C.shared_cursor, a tile starts at the step of another tile
// of its key head and ends there: tiles that drift apart would each read from memory what the
// others have had in the L2 cache. The order of its sums of dK and dV then depends on time.
//
// Deterministic: the sums of dQ get their summands in the order of the key tiles, from the last to
// the first. Blocks fetch their tiles in this order from a counter, so that a block waits only for
// running blocks. Under a causal mask the waits are short: blocks with consecutive tiles start at
// consecutive query blocks, where each is the first in order, and proceed one behind the other. But
// this order puts the longest tiles last, and few blocks would run at the end. So the last heads of
// the raster are reversed: from the first tile to the last, each from its last query block to its
// first. The choice of reversed heads is the same in every batch entry. In canonical order a tile
// has a block for each leaf of the queries (backward_leaves.hpp). Most of these have whole leaves,
// whose blocks start at the same query block in either order, so all heads are reversed.
#pragma once

#include "cuda/device/attention/backward_work.hpp"
#include "cuda/device/ptx/cluster.hpp"
#include "cuda/device/ptx/mbarrier.hpp"
#include "cuda/device/ptx/memory_order.hpp"
#include "cuda/device/raster_order.hpp"
#include "cuda/device/sm90/attention/backward_leaves.hpp"
#include "cuda/device/sm90/attention/config.hpp"

namespace perseid::internal::cuda {

// ---- Tiles of keys ----

// If C.rank_pieces: the blocks of both pieces that see the tile, one piece after the other.
template <AttentionBackwardConfig C>
__device__ __forceinline__ void find_blocks_of_pieces(const AttentionBackwardArguments& a,
                                                      BackwardTile* tile) {
  const auto see = [&](int32_t gap, int32_t* first, int32_t* end) {
    const int32_t left = tile->left + gap, right = tile->right + gap;
    const int32_t first_query = C.right ? max(tile->key - right + 1, 0) : 0;
    int32_t last_query =
        C.left ? min(tile->key + C.keys() - left, tile->q_len) - 1 : tile->q_len - 1;
    if (tile->key >= tile->kv_len) last_query = -1;
    *first = first_query / C.queries;
    *end = last_query >= first_query ? last_query / C.queries + 1 : *first;
  };
  see(0, &tile->first, &tile->end);
  tile->second_piece = tile->end;
  tile->piece_blocks = 1 << 30;
  if (!a.two_pieces) return;
  tile->piece_blocks = (tile->q_len + C.queries - 1) / C.queries;
  tile->gap = (a.pieces - 1 - 2 * a.piece) * tile->q_len;
  int32_t first, end;
  see(tile->gap, &first, &end);
  tile->blocks_between = tile->piece_blocks + first - tile->end;
  tile->end += end - first;
}

// By whole warps.
template <AttentionBackwardConfig C>
__device__ __forceinline__ BackwardTile find_backward_tile(const AttentionBackwardArguments& a,
                                                           int32_t number) {
  const int32_t leaves = C.leaves ? a.leaves.count : 1;
  TileCoordinate raster;
  if constexpr (C.async)
    raster = {a.order[number] % a.batch_heads, a.order[number] / a.batch_heads};
  else
    raster = tile_in_sections(number, a.k_tiles * leaves, a.batch_heads, a.heads_per_section);
  BackwardTile tile;
  tile.leaf = raster.tile % leaves;
  raster.tile /= leaves;
  const bool by_head = (C.bias != DType::kNone || C.reverse_order()) && a.by_head;
  int32_t batch = by_head ? raster.head % a.batch : raster.head / a.kv_heads;
  const bool ragged = C.lengths && a.ragged;
  tile.kv_head = ragged ? raster.head : by_head ? raster.head / a.batch : raster.head % a.kv_heads;
  tile.reversed = C.reverse_order() && tile.kv_head >= a.forward_heads;
  int32_t own = C.deterministic && !tile.reversed ? a.k_tiles - 1 - raster.tile : raster.tile;
  if (ragged)
    batch = max(sequence_of_block(a.cumulative_kv, a.total_kv, a.batch, C.keys(), own), 0);
  static_cast<AttentionSequence&>(tile) =
      find_sequence<C.lengths, C.rank_pieces>(a, C.rank_pieces && a.two_pieces ? 2 * batch : batch);
  if (ragged) own -= first_padded_block(tile.kv_begin, batch, C.keys());
  // A padded position without a tile yields one behind the last key.
  tile.key = own < 0 ? tile.kv_rows : own * C.keys();
  if constexpr (C.rank_pieces) {
    find_blocks_of_pieces<C>(a, &tile);
    return tile;
  }
  const int32_t first_query = C.right ? query_from<C>(a, max(tile.key - tile.right + 1, 0)) : 0;
  int32_t last_query = C.left
                           ? min(query_from<C>(a, tile.key + C.keys() - tile.left), tile.q_len) - 1
                           : tile.q_len - 1;
  if (C.lengths && tile.key >= tile.kv_len) last_query = -1;
  tile.first = first_query / C.queries;
  tile.end = last_query >= first_query ? last_query / C.queries + 1 : tile.first;
  if constexpr (C.leaves) keep_leaf(a.leaves, &tile);
  return tile;
}

// The block of queries that is number i of a tile, from tile.first on.
template <AttentionBackwardConfig C>
__device__ __forceinline__ int32_t query_block(const BackwardTile& tile, int32_t i) {
  return (C.leaves || C.rank_pieces) && i >= tile.second_piece ? i + tile.blocks_between : i;
}

// ---- The queries of a block, of which a tile may have those of two pieces ----

template <AttentionBackwardConfig C>
__device__ __forceinline__ bool is_in_second_piece(const BackwardTile& tile, int32_t block) {
  return C.rank_pieces && block >= tile.piece_blocks;
}
// The first of them, counted from that of its piece.
template <AttentionBackwardConfig C>
__device__ __forceinline__ int32_t first_query(const BackwardTile& tile, int32_t block) {
  return (is_in_second_piece<C>(tile, block) ? block - tile.piece_blocks : block) * C.queries;
}
// How much further than first_query() they stand.
template <AttentionBackwardConfig C>
__device__ __forceinline__ int32_t gap_of_block(const AttentionArguments& a,
                                                const BackwardTile& tile, int32_t block) {
  if constexpr (C.rank_pieces) return is_in_second_piece<C>(tile, block) ? tile.gap : 0;
  return gap_before<C>(a, block * C.queries);
}
// The number in the workspace.
template <AttentionBackwardConfig C>
__device__ __forceinline__ int64_t number_of_block(const AttentionBackwardProblem& a,
                                                   const BackwardTile& tile, int32_t head,
                                                   int32_t block) {
  if (!is_in_second_piece<C>(tile, block)) return block_number<C>(a, tile, head, block);
  return int64_t{head} * a.q_blocks +
         first_padded_block(tile.q_begin + tile.q_len, tile.batch + 1, C.queries) + block -
         tile.piece_blocks;
}

// If C.shared_cursor: the step, counted over all query heads, that a tile of the key head has
// reached.
__device__ __forceinline__ uint64_t* cursor_of(const AttentionBackwardArguments& a,
                                               const BackwardTile& tile) {
  return a.cursor + tile.batch * a.kv_heads + tile.kv_head;
}

// visit(step number, step) for all of the block's steps of a tile, in order.
template <AttentionBackwardConfig C, class Visit>
__device__ __forceinline__ void for_each_step(const AttentionBackwardArguments& a,
                                              const BackwardTile& tile, Visit&& visit) {
  int number = 0;
  const int32_t heads = C.clusters ? a.group >> a.cluster_log2 : a.group;
  if constexpr (C.shared_cursor) {
    const int32_t blocks = max(tile.end, 1);
    int32_t g = tile.start / blocks, i = tile.start % blocks;
    while (number < heads * tile.end) {
      visit(number++, BackwardStep{tile.kv_head * a.group + g, i});
      if (++i < blocks) continue;
      i = 0;
      if (++g == heads) g = 0;
    }
    return;
  }
  const int32_t first = C.clusters ? static_cast<int32_t>(ptx::block_of_cluster()) * heads : 0;
  for (int32_t g = first; g < first + heads; ++g)
    for (int32_t i = tile.first; i < tile.end; ++i)
      visit(number++, BackwardStep{tile.kv_head * a.group + g,
                                   query_block<C>(tile, C.reverse_order() && tile.reversed
                                                            ? tile.end - 1 - (i - tile.first)
                                                            : i)});
}

// ---- Order of the summands of dQ, in deterministic mode ----

// The last tile of keys that a query block sees.
template <AttentionBackwardConfig C>
__device__ __forceinline__ int32_t last_tile(const AttentionArguments& a, const BackwardTile& tile,
                                             int32_t block) {
  const int32_t last = min(first_query<C>(tile, block) + C.queries, tile.q_len) - 1;
  const int32_t end = last + gap_of_block<C>(a, tile, block) + tile.right;
  return ((C.right ? min(end, tile.kv_len) : tile.kv_len) - 1) / C.keys();
}

// How many tiles add to a query block before this one.
template <AttentionBackwardConfig C>
__device__ __forceinline__ int32_t dq_summands_before(const AttentionArguments& a,
                                                      const BackwardTile& tile, int32_t block) {
  const int32_t own = tile.key / C.keys();
  return C.reverse_order() && tile.reversed ? own : last_tile<C>(a, tile, block) - own;
}

}  // namespace perseid::internal::cuda
