// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The blocks of queries of attention backward on sm_90: what is kept for each lies in the workspace
// by their numbers, those of one head side by side.
#pragma once

#include "cuda/device/sm90/attention_backward_config.hpp"
#include "cuda/device/sm90/attention_sequence.hpp"

namespace perseid::cuda {

template <AttentionBackwardConfig C>
__device__ __forceinline__ int64_t block_number(const AttentionBackwardProblem& a,
                                                const AttentionSequence& sequence, int32_t head,
                                                int32_t block) {
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
template <AttentionBackwardConfig C>
__device__ __forceinline__ BackwardBlock find_block(const AttentionBackwardProblem& a,
                                                    int64_t number) {
  const int64_t batch_head = number / a.q_blocks;
  return {find_sequence<C.lengths>(a, static_cast<int32_t>(batch_head / a.heads)),
          static_cast<int32_t>(batch_head % a.heads),
          static_cast<int32_t>(number % a.q_blocks) * C.queries};
}

}  // namespace perseid::cuda
