// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the host sides of attention share, forward and backward, on every architecture: which keys
// rows see, and the arguments of launches.
#pragma once

#include <string>

#include "cuda/device/attention/arguments.hpp"
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
  return problem.ragged || problem.q_lens || problem.kv_lens || problem.kv_index;
}
// Whether queries are a rank's pieces of every sequence of a ragged batch.
inline bool has_ragged_pieces(const AttentionProblem& problem) {
  return problem.ragged && !problem.rows.all();
}
// Whether dropout drops anything: its probability counts in 1/256.
inline bool has_dropout(const AttentionProblem& problem) {
  return dropout_threshold(problem.dropout) < 256;
}
// Whether query heads that share a key head are not packed into the rows of a tile: bias, mask and
// dropout differ between them, and in canonical order every rank takes the kernel of all rows.
inline bool keeps_heads_apart(const AttentionProblem& problem) {
  return problem.bias || problem.visible || has_dropout(problem) || problem.rows.canonical;
}
// The most heads in the rows of a tile, 2^kMaxPackGqa; the most queries whose keys are split, and
// the most splits.
inline constexpr int kMaxPackGqa = 4;
inline constexpr int64_t kFewRows = 64, kMaxSplits = 256;
// Tiles of so many rows of queries or keys of a head; ragged: padded positions in all sequences.
int64_t tiles_of(const AttentionProblem& problem, bool of_keys, int64_t rows);
// Query or key heads of all entries in memory.
int64_t heads_in_memory(const AttentionProblem& problem, bool of_keys);
// Whether the first and the last key that a row sees depend on the row.
struct BoundsByRow {
  bool left, right;
};
BoundsByRow bounds_by_row(const AttentionProblem& problem);

// Why kernels of any architecture do not take rows that are a rank's, as the end of a sentence; "".
// any_first_row: the first row need not begin a tile of dropout.
std::string refuse_shard(const AttentionProblem& problem, bool any_first_row);
// Whether kernels whose rows follow one another must know which rows of whole sequences they have:
// for dropout, or for bias and visible of the second of a rank's ragged pieces.
bool counts_whole_rows(const AttentionProblem& problem);

// A ragged tensor, [heads, total, dim], as one of a single batch entry.
Tensor with_batch(const Tensor& tensor);
// lse or its gradient, [batch, heads, q_len] or ragged, with rows of one element.
Tensor with_element(const Tensor& tensor);
RowsInMemory rows_in_memory(const Tensor& tensor);
// Whether rows are contiguous, and begin at a multiple of so many elements.
bool has_aligned_rows(const Tensor& tensor, int64_t elements);

// The arguments that the problem determines; bind() adds the tensors of an execution.
AttentionArguments arguments_of(const AttentionProblem& problem);
// Sets the tensors that both directions read.
template <class Tensors>  // AttentionForward or AttentionBackward
void bind(const Tensors& tensors, AttentionArguments* arguments);
// Binds the lse of forward.
template <class Arguments>
void bind_lse(const Tensor& lse, Arguments* arguments) {
  if (!lse.present()) return;
  arguments->lse = static_cast<decltype(arguments->lse)>(lse.data);
  for (int d = 0; d < lse.rank; ++d) arguments->lse_stride[3 - lse.rank + d] = lse.stride[d];
}
// The gradient of bias in tiles of queries x keys, and the workspace of their splits.
BiasTiles divide_bias(const AttentionProblem& problem, int64_t queries, int64_t keys);
// Why that gradient is not taken, as a sentence's end; "" where it is.
std::string refuse_bias_tiles(const AttentionProblem& problem, int64_t queries, int64_t keys);
// Of an execution with shorter lengths: no more splits than the plan has a workspace for.
void keep_splits(const BiasTiles& plan, BiasTiles* bias);
size_t bytes_of_splits(const BiasTiles& bias, int64_t queries, int64_t keys,
                       int64_t bytes_of_sum = sizeof(float));
// For forward's raster order, whose tiles have unequal work if `right`. Heads are those of tiles.
// The keys and values of a section, at two bytes an element, have at most `most_bytes`: they stay
// in the L2 cache.
inline constexpr int64_t kForwardSectionBytes = 1 << 25;
int32_t heads_per_section(const AttentionProblem& problem, bool right, int32_t batch_heads,
                          int32_t group, int64_t most_bytes = kForwardSectionBytes);
// The same where a rank has few tiles of each head, `q_tiles`: at the end of a section of few tiles
// long ones run alone. `arriving`: heads whose keys arrive together; no tile of a section waits for
// keys of later ones.
int32_t section_of_rank(int32_t heads, int32_t q_tiles, int32_t arriving);

}  // namespace perseid::internal::cuda
