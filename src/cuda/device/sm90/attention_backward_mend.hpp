// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Rows of gradients that are computed again, one at a time by a warp.
//
// A weight of 0 times something that is NaN or infinite is NaN, so that the tensor cores let what
// masked keys and queries hold into gradients that have nothing to do with them. This cannot be
// told from the products, but from their results: where masks are and a row of a gradient is not
// finite, it is computed here from what is visible and nothing else. Where that is not finite
// either, it soon shows: the work ends with the first pair after which no element can change.
#pragma once

#include "cuda/device/sm90/attention_backward_blocks.hpp"
#include "cuda/device/sm90/attention_row.hpp"

namespace perseid::cuda {

template <AttentionBackwardConfig C>
struct MendedPair {
  using Element = typename ElementOf<C.dtype>::Type;
  WarpRow<C.dtype, C.key_dim> query, key;
  WarpRow<C.dtype, C.value_dim> grad_out, value;

  __device__ __forceinline__ void load_query(const AttentionBackwardProblem& a,
                                             const AttentionSequence& sequence, int32_t head,
                                             int32_t row) {
    const int32_t entry = entry_of<C.lengths>(a, sequence.batch);
    row += sequence.q_begin;
    query.load(row_at<Element>(a.query_rows, entry, head, row), a.head_dim);
    grad_out.load(row_at<Element>(a.grad_out_rows, entry, head, row), a.value_dim);
  }
  __device__ __forceinline__ void load_key(const AttentionBackwardProblem& a,
                                           const AttentionSequence& sequence, int32_t kv_head,
                                           int32_t row) {
    const int32_t entry = entry_of<C.lengths>(a, sequence.batch);
    row += sequence.kv_begin;
    key.load(row_at<Element>(a.key_rows, entry, kv_head, row), a.head_dim);
    value.load(row_at<Element>(a.value_rows, entry, kv_head, row), a.value_dim);
  }
  // The weight as values have it, and the gradient of the score. Queries and keys count in their
  // sequence.
  __device__ __forceinline__ float2 grade(const AttentionBackwardProblem& a,
                                          const AttentionSequence& sequence, int32_t head,
                                          int32_t query_number, int32_t key_number) const {
    const int32_t batch = sequence.batch;
    const int64_t at = statistics_at<C>(a, sequence, head, query_number);
    const float bias = bias_log2<C.bias>(a, batch, head, query_number, key_number);
    const bool kept = is_kept<C.dropout>(a, batch, head, query_number, key_number);
    const float weight =
        ptx::approximate_exp2(fmaf(query.product(key), a.scale_log2, bias - a.lse_log2[at]));
    const float factor = kept ? dropout_factor<C.dropout>(a) : 0;
    const float product = grad_out.product(value);
    return {weight * factor, weight * ((kept ? product * factor : 0) - a.delta[at])};
  }
};

template <AttentionBackwardConfig C>
__device__ __forceinline__ void mend_query(const AttentionBackwardProblem& a,
                                           const AttentionSequence& sequence, int32_t head,
                                           int32_t query) {
  MendedPair<C> pair;
  decltype(pair.query) gradient;
  gradient.clear();
  pair.load_query(a, sequence, head, query);
  const int32_t begin = C.left ? max(query + sequence.left, 0) : 0;
  const int32_t end = C.right ? min(query + sequence.right, sequence.kv_len) : sequence.kv_len;
  for (int32_t key = begin; key < end && !gradient.is_lost(a.head_dim); ++key) {
    if (!is_visible<C.visible>(a, sequence.batch, head, query, key)) continue;
    pair.load_key(a, sequence, head / a.group, key);
    gradient.add(pair.grade(a, sequence, head, query, key).y, pair.key);
  }
  gradient.store(row_at<typename MendedPair<C>::Element>(a.grad_query_rows,
                                                         entry_of<C.lengths>(a, sequence.batch),
                                                         head, sequence.q_begin + query),
                 a.head_dim, a.scale);
}

template <AttentionBackwardConfig C>
__device__ __noinline__ void mend_key(const AttentionBackwardProblem& a, int32_t batch,
                                      int32_t kv_head, int32_t key) {
  const AttentionSequence sequence = find_sequence<C.lengths>(a, batch);
  using Element = typename MendedPair<C>::Element;
  MendedPair<C> pair;
  decltype(pair.key) grad_key;
  decltype(pair.value) grad_value;
  grad_key.clear();
  grad_value.clear();
  pair.load_key(a, sequence, kv_head, key);
  const int32_t q_len = sequence.q_len;
  const int32_t begin = C.right ? max(key - sequence.right + 1, 0) : 0;
  const int32_t end = key >= sequence.kv_len ? 0
                      : C.left               ? min(key - sequence.left + 1, q_len)
                                             : q_len;
  bool lost = false;
  for (int32_t head = kv_head * a.group; head < (kv_head + 1) * a.group; ++head)
    for (int32_t query = begin; query < end && !lost; ++query) {
      if (!is_visible<C.visible>(a, sequence.batch, head, query, key)) continue;
      pair.load_query(a, sequence, head, query);
      const float2 grade = pair.grade(a, sequence, head, query, key);
      // A dropped weight is 0, whatever the gradient holds.
      if (!C.dropout || is_kept<C.dropout>(a, sequence.batch, head, query, key))
        grad_value.add(grade.x, pair.grad_out);
      grad_key.add(grade.y, pair.query);
      lost = grad_key.is_lost(a.head_dim) && grad_value.is_lost(a.value_dim);
    }
  const int32_t entry = entry_of<C.lengths>(a, sequence.batch), row = sequence.kv_begin + key;
  if (a.grad_key_rows.data != nullptr)
    grad_key.store(row_at<Element>(a.grad_key_rows, entry, kv_head, row), a.head_dim, a.scale);
  if (a.grad_value_rows.data != nullptr)
    grad_value.store(row_at<Element>(a.grad_value_rows, entry, kv_head, row), a.value_dim, 1);
}

}  // namespace perseid::cuda
