// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward on sm_90a in canonical order: gradients of keys have the same bits on any
// number of ranks. The queries of all ranks are cut into eight leaves (math/leaf_tree.hpp), each of
// one piece of neighbouring rows, or in zigzag placement of two. A rank has some of them:
//
//   2 leaves of a rank, in zigzag placement     leaf 0 | leaf 1 | leaf 1 | leaf 0
//
// A block of attention_backward has a tile of keys and one leaf, and the pieces of a leaf consist
// of whole blocks of queries: so the sum of a tile and a leaf has the same summands in the same
// order, whoever computes it. Leaf 0 is stored to the gradients, the others to buffers, all in
// float32. attention_backward_leaves, the last launch, adds them in pairs of neighbours; other
// ranks' sums are added to these in the same way, later.
//
// Blocks with one tile and all of its leaves are neighbours in the raster order, so that they read
// the keys together. Sums of dQ need no leaves: a query has one sum, whose summands are in the
// order of the key tiles, which all ranks have (deterministic mode); the blocks of different leaves
// have no query in common and never wait for one another.
#pragma once

#include "cuda/device/attention/backward_fixup.hpp"
#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/sm90/attention/config.hpp"

namespace perseid::internal::cuda {

// Of the blocks [first, end) of a tile, keeps those of its leaf.
__device__ __forceinline__ void keep_leaf(const QueryLeaves& leaves, BackwardTile* tile) {
  const auto piece = [&](int32_t number, int32_t* count) {
    const int32_t begin = max(tile->first, number * leaves.blocks);
    *count = max(min(tile->end, (number + 1) * leaves.blocks) - begin, 0);
    return begin;
  };
  int32_t in_first = 0, in_second = 0;
  const int32_t first = piece(tile->leaf, &in_first);
  const int32_t second =
      leaves.mirrored ? piece(2 * leaves.count - 1 - tile->leaf, &in_second) : first + in_first;
  tile->first = in_first > 0 ? first : second;
  tile->second_piece = tile->first + in_first;
  tile->blocks_between = second - tile->second_piece;
  tile->end = tile->first + in_first + in_second;
}

// What a block sums of the gradients of keys: see SumOfQueries.
template <AttentionBackwardConfig C>
struct SumOfLeaf {
  const QueryLeaves* leaves;
  int32_t leaf;

  __device__ __forceinline__ bool has(int32_t query) const {
    const int32_t piece = query / C.queries / leaves->blocks;
    return piece == leaf || (leaves->mirrored && piece == 2 * leaves->count - 1 - leaf);
  }
  __device__ __forceinline__ RowsInMemory grad_key(const AttentionGradients& a) const {
    return leaf == 0 ? a.grad_key_rows : buffer_of(leaves->grad_key, a);
  }
  __device__ __forceinline__ RowsInMemory grad_value(const AttentionGradients& a) const {
    return leaf == 0 ? a.grad_value_rows : buffer_of(leaves->grad_value, a);
  }

 private:
  __device__ __forceinline__ RowsInMemory buffer_of(RowsInMemory rows,
                                                    const AttentionGradients& a) const {
    rows.data = static_cast<float*>(rows.data) + (leaf - 1) * a.batch * rows.stride[0];
    return rows;
  }
};

template <AttentionBackwardConfig C>
__device__ __forceinline__ auto sum_of(const AttentionBackwardArguments& a,
                                       const BackwardTile& tile) {
  if constexpr (C.leaves)
    return SumOfLeaf<C>{&a.leaves, tile.leaf};
  else
    return SumOfQueries{};
}

// ---- The last launch ----

// Four elements of a row of key or value, of leaf 0 and of the others, whose buffers are so many
// vectors apart.
template <int kCount>
__device__ __forceinline__ void add_leaves(float4* to, const float4* others, int64_t apart) {
  float4 sum[kCount];
  sum[0] = *to;
#pragma unroll
  for (int leaf = 1; leaf < kCount; ++leaf) sum[leaf] = others[(leaf - 1) * apart];
#pragma unroll
  for (int width = 1; width < kCount; width *= 2)
#pragma unroll
    for (int leaf = 0; leaf < kCount; leaf += 2 * width) {
      sum[leaf].x += sum[leaf + width].x;
      sum[leaf].y += sum[leaf + width].y;
      sum[leaf].z += sum[leaf + width].z;
      sum[leaf].w += sum[leaf + width].w;
    }
  *to = sum[0];
}

// A thread adds four elements of a row, and all loads come before the first sum. The bound is
// memory.
template <AttentionBackwardConfig C>
__global__ void __launch_bounds__(kRowThreads)
    attention_backward_leaves(const __grid_constant__ LeafSumArguments a) {
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  const int64_t vector = int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (vector >= a.vectors) return;
  const int32_t of_key = a.head_dim / 4, of_row = of_key + a.value_dim / 4;
  const auto column = static_cast<int32_t>(vector % of_row);
  const int64_t number = vector / of_row;  // of the row in a buffer
  const bool is_key = column < of_key;
  const RowsInMemory &rows = is_key ? a.grad_key : a.grad_value,
                     &buffers = is_key ? a.leaves.grad_key : a.leaves.grad_value;
  if (rows.data == nullptr) return;
  const int64_t head = number / a.kv_len;
  const int32_t first = 4 * (is_key ? column : column - of_key);
  auto* const to = reinterpret_cast<float4*>(
      row_at<float>(rows, head / a.kv_heads, head % a.kv_heads, number % a.kv_len) + first);
  const auto* const from = reinterpret_cast<const float4*>(static_cast<const float*>(buffers.data) +
                                                           number * buffers.stride[2] + first);
  const int64_t apart = a.vectors / of_row * buffers.stride[2] / 4;
  if (a.leaves.count == 2)
    add_leaves<2>(to, from, apart);
  else if (a.leaves.count == 4)
    add_leaves<4>(to, from, apart);
  else
    add_leaves<8>(to, from, apart);
}

}  // namespace perseid::internal::cuda
