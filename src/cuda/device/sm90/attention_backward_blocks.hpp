// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The blocks of queries of attention backward on sm_90: what is kept for each lies in the workspace
// by their numbers, those of one head side by side; of ragged batches, by their places.
#pragma once

#include "cuda/device/sm90/attention_backward_config.hpp"
#include "cuda/device/sm90/attention_sequence.hpp"

namespace perseid::cuda {

template <AttentionBackwardConfig C>
__device__ __forceinline__ int64_t block_number(const AttentionBackwardProblem& a,
                                                const AttentionSequence& sequence, int32_t head,
                                                int32_t block) {
  if (C.lengths && a.ragged)
    return int64_t{head} * a.q_blocks + first_place(sequence.q_begin, sequence.batch, C.queries) +
           block;
  return (int64_t{sequence.batch} * a.heads + head) * a.q_blocks + block;
}
// Where a query has its lse and delta.
template <AttentionBackwardConfig C>
__device__ __forceinline__ int64_t statistics_at(const AttentionBackwardProblem& a,
                                                 const AttentionSequence& sequence, int32_t head,
                                                 int32_t query) {
  return block_number<C>(a, sequence, head, 0) * C.queries + query;
}

struct BackwardBlock {
  AttentionSequence sequence;
  int32_t head, query;  // the first one
};
// By whole warps. A place that nobody has is a block behind the end of some sequence.
template <AttentionBackwardConfig C>
__device__ __forceinline__ BackwardBlock find_block(const AttentionBackwardProblem& a,
                                                    int64_t number) {
  const int64_t batch_head = number / a.q_blocks;
  const auto place = static_cast<int32_t>(number % a.q_blocks);
  if (C.lengths && a.ragged) {
    const int32_t batch = max(sequence_at(a.cumulative_q, a.total_q, a.batch, C.queries, place), 0);
    const AttentionSequence found = find_sequence<C.lengths>(a, batch);
    const int32_t block = place - first_place(found.q_begin, batch, C.queries);
    return {found, static_cast<int32_t>(batch_head), block < 0 ? found.q_len : block * C.queries};
  }
  return {find_sequence<C.lengths>(a, static_cast<int32_t>(batch_head / a.heads)),
          static_cast<int32_t>(batch_head % a.heads), place * C.queries};
}

}  // namespace perseid::cuda
