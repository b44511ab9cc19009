// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the host sides of attention forward and backward on sm_90 share: arguments of both
// directions, and tensors as TMA loads and stores them.
#pragma once

#include "cuda/device/sm90/attention/config.hpp"
#include "cuda/runtime/tensor_map.hpp"
#include "math/attention_problem.hpp"

namespace perseid::internal::cuda {

// The longest sequence: positions, their differences and sums of three fit in 32 bits.
inline constexpr int64_t kLongest = int64_t{1} << 29;

// Row q sees keys [q + left, q + right), clamped to the sequence; an unlimited bound lies far
// outside it. With bottom-right alignment both are kv_len - q_len larger.
struct KeyOffsets {
  int64_t left, right;
};
KeyOffsets key_offsets(const AttentionProblem& problem);

// Whether the lengths of each sequence are in device memory.
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
// longest of the tensor (device/sm90/attention/map_coordinates.hpp), so the map begins at row
// -longest.
BoxedTensor ragged_boxed(const Tensor& tensor, int64_t longest, int box_rows);
RowsInMemory rows_in_memory(const Tensor& tensor);

// The arguments that the problem determines; bind() adds the tensors of an execution.
AttentionArguments arguments_of(const AttentionProblem& problem);
// Sets the tensors that both directions read.
template <class Tensors>  // AttentionForward or AttentionBackward
void bind(const Tensors& tensors, AttentionArguments* arguments);

}  // namespace perseid::internal::cuda
