// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the host does alike for attention forward and backward on sm_90: the arguments that both
// have, and the tensors that the copy engine reaches.
#pragma once

#include "cuda/device/sm90/attention/config.hpp"
#include "cuda/runtime/tensor_map.hpp"
#include "math/attention_problem.hpp"

namespace perseid::internal::cuda {

// Positions and offsets between them, and sums of three, in 32 bits.
inline constexpr int64_t kLongest = int64_t{1} << 29;

// Row q sees keys [q + left, q + right), cut to the sequence; without bounds far outside of it.
// Where masks begin at the bottom right, both are kv_len - q_len larger.
struct KeyOffsets {
  int64_t left, right;
};
KeyOffsets key_offsets(const AttentionProblem& problem);

// Whether each sequence has lengths that only the GPU knows.
inline bool has_lengths(const AttentionProblem& problem) {
  return problem.ragged || problem.kv_lens;
}
// Whether the first and the last key that a row sees depend on the row.
struct BoundsByRow {
  bool left, right;
};
BoundsByRow bounds_by_row(const AttentionProblem& problem);

// A ragged tensor, [heads, total, dim], as one of a single batch entry.
Tensor with_batch(const Tensor& tensor);
// [batch, heads, rows, dim] as {dim, 2^pack heads, rows, heads >> pack, batch}.
BoxedTensor boxed(const Tensor& tensor, int pack, int box_rows);
// [heads, total, dim] as {dim, 1, longest, heads, total + 1}: row r of entry e is row e + r -
// longest of the tensor (device/sm90/attention/sequence.hpp). Such a map begins where the tensor's
// row -longest would be.
BoxedTensor ragged_boxed(const Tensor& tensor, int64_t longest, int box_rows);
RowsInMemory rows_in_memory(const Tensor& tensor);

// All but the tensors.
AttentionArguments arguments_of(const AttentionProblem& problem);
// What both directions read.
template <class Tensors>  // AttentionForward or AttentionBackward
void bind(const Tensors& tensors, AttentionArguments* arguments);

}  // namespace perseid::internal::cuda
