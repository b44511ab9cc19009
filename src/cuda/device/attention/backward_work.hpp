// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Work of attention backward on every architecture: tiles of keys, their steps, and the numbering
// of query blocks in the workspace. C: a configuration of attention backward, which has C.queries
// of a block.
#pragma once

#include "cuda/device/attention/sequence.hpp"

namespace perseid::internal::cuda {

// ---- Blocks of queries ----

// The number of a query block in the workspace. Blocks of one head are adjacent; those of a ragged
// batch are numbered by padded position (sequence.hpp).
template <auto C, class Real>
__device__ __forceinline__ int64_t block_number(const AttentionGradientsOf<Real>& a,
                                                const AttentionSequence& sequence, int32_t head,
                                                int32_t block) {
  if (C.lengths && a.ragged)
    return int64_t{head} * a.q_blocks +
           first_padded_block(sequence.q_begin, sequence.batch, C.queries) + block;
  return (int64_t{sequence.batch} * a.heads + head) * a.q_blocks + block;
}
// The index of a query's lse and delta.
template <auto C, class Real>
__device__ __forceinline__ int64_t statistics_at(const AttentionGradientsOf<Real>& a,
                                                 const AttentionSequence& sequence, int32_t head,
                                                 int32_t query) {
  return block_number<C>(a, sequence, head, 0) * C.queries + query;
}

struct QueryBlock {
  AttentionSequence sequence;
  int32_t head, query;  // the first one
};
// By whole warps. A padded position without a block yields one behind the end of a sequence.
template <auto C, class Real>
__device__ __forceinline__ QueryBlock find_block(const AttentionGradientsOf<Real>& a,
                                                 int64_t number) {
  const int64_t batch_head = number / a.q_blocks;
  const auto position = static_cast<int32_t>(number % a.q_blocks);
  if (C.lengths && a.ragged) {
    const int32_t batch =
        max(sequence_of_block(a.cumulative_q, a.total_q, a.batch, C.queries, position), 0);
    const AttentionSequence found = find_sequence<C.lengths, has_rank_pieces<C>()>(a, batch);
    const int32_t block = position - first_padded_block(found.q_begin, batch, C.queries);
    return {found, static_cast<int32_t>(batch_head), block < 0 ? found.q_len : block * C.queries};
  }
  return {find_sequence<C.lengths>(a, static_cast<int32_t>(batch_head / a.heads)),
          static_cast<int32_t>(batch_head % a.heads), position * C.queries};
}

// ---- Tiles of keys ----

// Keys [key, key + C.keys()) of a key head; query blocks [first, end) of each query head.
struct BackwardTile : AttentionSequence {
  int32_t key, kv_head;
  int32_t first, end;
  bool reversed;      // if C.reverse_order(): from the first tile and the last query block on
  int32_t start = 0;  // the first step, if C.shared_cursor
  // On sm_90, if C.leaves: of which leaf of queries, and that blocks from `second_piece` on stand
  // so many further.
  int32_t leaf = 0, second_piece = 0, blocks_between = 0;
  // On sm_90, if C.rank_pieces: the sequence is that of the first piece. Blocks of queries from
  // this one on are the second piece's, whose positions are larger by `gap`.
  int32_t piece_blocks = 0, gap = 0;
};

// One step of the mainloop: one block of queries of one query head.
struct BackwardStep {
  int32_t head, block;
};

}  // namespace perseid::internal::cuda
