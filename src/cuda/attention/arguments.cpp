// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/arguments.hpp"

#include "base/status.hpp"
#include "math/constants.hpp"

namespace perseid::internal::cuda {
namespace {

ScoresInMemory scores_in_memory(const Tensor& tensor) {
  if (!tensor.present()) return {};
  ScoresInMemory scores;
  scores.data = tensor.data;
  const auto are_aligned = [&](int64_t elements) {
    const auto bytes = static_cast<size_t>(elements * size_of(tensor.dtype));
    bool aligned = reinterpret_cast<uintptr_t>(tensor.data) % bytes == 0 && tensor.stride[3] == 1;
    for (int d = 0; d < 3; ++d) aligned = aligned && tensor.stride[d] % elements == 0;
    return aligned;
  };
  for (int d = 0; d < 4; ++d) scores.stride[d] = tensor.stride[d];
  const int64_t vector = 16 / size_of(tensor.dtype);
  scores.pairs = are_aligned(2);
  scores.vectors = are_aligned(vector) && tensor.shape[3] % vector == 0;
  return scores;
}

LengthsInMemory lengths_in_memory(const Tensor& tensor) {
  if (!tensor.present()) return {};
  return {tensor.data, tensor.stride[0], tensor.dtype == DType::kI64};
}

// The gradient of a repeated bias is split (split-K) until there are so many blocks, about one for
// each multiprocessor. Where each batch entry has its own sum, the number of splits depends on one
// entry alone, and sums of whole tiles are not split: their partial sums are too large.
constexpr int64_t kEnoughBlocks = 132, kMostSplits = 64, kMostSplitsOfEntry = 16;

}  // namespace

int32_t heads_per_section(const AttentionProblem& problem, bool right, int32_t batch_heads,
                          int32_t group, int64_t most_bytes) {
  // Without a mask all tiles cost the same, and one head after another reads the least.
  int64_t section = 1;
  if (right) {
    const int64_t bytes = problem.kv_len * (problem.head_dim + problem.value_dim) * 2;
    while (2 * section * bytes <= most_bytes && section < batch_heads) section *= 2;
    section *= group;
  }
  return static_cast<int32_t>(min(section, max(int64_t{1}, int64_t{batch_heads})));
}

int32_t section_of_rank(int32_t heads, int32_t q_tiles, int32_t arriving) {
  constexpr int64_t kFewestTiles = 256;  // about two for each multiprocessor
  int64_t section = heads;
  while (section * q_tiles < kFewestTiles && section < arriving) section *= 2;
  return static_cast<int32_t>(min(section, int64_t{arriving}));
}

KeyOffsets key_offsets(const AttentionProblem& problem) {
  KeyOffsets offsets{-kLongest, kLongest};
  if (problem.window_left >= 0) offsets.left = -min(problem.window_left, kLongest);
  if (problem.window_right >= 0) offsets.right = min(problem.window_right, kLongest - 1) + 1;
  if (problem.causal != Causal::kNone) offsets.right = min(offsets.right, int64_t{1});
  return offsets;
}

int64_t tiles_of(const AttentionProblem& problem, bool of_keys, int64_t rows) {
  if (problem.ragged)
    return problem.batch == 0
               ? 0
               : (of_keys ? problem.total_kv : problem.total_q) / rows + problem.batch;
  return ceil_div(of_keys ? problem.kv_len : problem.q_len, rows);
}

int64_t heads_in_memory(const AttentionProblem& problem, bool of_keys) {
  return (problem.ragged ? 1 : problem.batch) * (of_keys ? problem.kv_heads : problem.heads);
}

BoundsByRow bounds_by_row(const AttentionProblem& problem) {
  const KeyOffsets offsets = key_offsets(problem);
  const QueryRows& rows = problem.rows;
  const int64_t shift = problem.bottom_right() ? problem.kv_len - rows.length(problem.q_len) : 0;
  // In canonical order every rank takes the kernel that one rank with all rows takes.
  const QueryRows seen = rows.canonical ? QueryRows() : rows;
  const int64_t count = rows.canonical ? rows.length(problem.q_len) : problem.q_len;
  const int64_t first = shift + seen.position(0, count),
                last = shift + seen.position(count - 1, count);
  const bool lengths = has_lengths(problem) || problem.max_lengths;
  return {offsets.left > -kLongest && (lengths || offsets.left + last > 0),
          offsets.right < kLongest && (lengths || offsets.right + first < problem.kv_len)};
}

std::string refuse_shard(const AttentionProblem& problem, bool any_first_row) {
  const QueryRows& rows = problem.rows;
  if (rows.all()) return "";
  if (const int64_t first = rows.position(0, problem.q_len);
      !any_first_row && has_dropout(problem) && first % kDropoutTileRows != 0)
    return concatenate("made for a rank whose rows begin at a multiple of ", kDropoutTileRows,
                       ", with dropout, got ", first);
  if (rows.length(problem.q_len) > kLongest)
    return concatenate("made for lengths up to ", kLongest, ", got ", rows.length(problem.q_len),
                       " rows of all ranks");
  return "";
}

bool counts_whole_rows(const AttentionProblem& problem) {
  // In canonical order every rank, and every piece, takes the kernel that one of them takes.
  const bool canonical = problem.rows.canonical;
  if (problem.rows.all() && !canonical) return false;
  const bool pieces = canonical ? problem.ragged : problem.rows.pieces_before > 0;
  return has_dropout(problem) || (pieces && (problem.bias || problem.visible));
}

Tensor with_batch(const Tensor& tensor) {
  if (tensor.rank == 4) return tensor;
  Tensor view = tensor;
  view.rank = 4;
  view.shape[0] = 1;
  view.stride[0] = 0;
  for (int d = 0; d < 3; ++d) {
    view.shape[d + 1] = tensor.shape[d];
    view.stride[d + 1] = tensor.stride[d];
  }
  return view;
}

Tensor with_element(const Tensor& tensor) {
  if (!tensor.present()) return tensor;
  Tensor numbers = tensor;
  numbers.shape[numbers.rank] = numbers.stride[numbers.rank] = 1;
  ++numbers.rank;
  return with_batch(numbers);
}

bool has_aligned_rows(const Tensor& tensor, int64_t elements) {
  const Tensor rows = with_batch(tensor);
  const auto bytes = static_cast<size_t>(elements * size_of(rows.dtype));
  bool aligned = reinterpret_cast<uintptr_t>(rows.data) % bytes == 0 && rows.stride[3] == 1;
  for (int d = 0; d < 3; ++d)
    aligned = aligned && (rows.shape[d] <= 1 || rows.stride[d] % elements == 0);
  return aligned;
}

RowsInMemory rows_in_memory(const Tensor& tensor) {
  RowsInMemory rows{tensor.data, {}};
  for (int d = 0; d < 4; ++d) rows.stride[d] = tensor.stride[d];
  return rows;
}

AttentionArguments arguments_of(const AttentionProblem& problem) {
  AttentionArguments arguments;
  const bool bottom_right = problem.bottom_right();
  const QueryRows& rows = problem.rows;
  // In a ragged batch the kernel adds all that depends on lengths; with lengths, those of keys.
  const int64_t first = problem.ragged ? 0 : rows.position(0, problem.q_len);
  const int64_t keys = has_lengths(problem) ? problem.q_len : problem.kv_len;
  const int64_t queries = problem.ragged ? problem.q_len : rows.length(problem.q_len);
  const int64_t shift = first + (bottom_right ? keys - queries : 0);
  const KeyOffsets offsets = key_offsets(problem);
  arguments.q_len = static_cast<int32_t>(problem.q_len);
  arguments.kv_len = static_cast<int32_t>(problem.kv_len);
  arguments.batch = static_cast<int32_t>(problem.batch);
  arguments.heads = static_cast<int32_t>(problem.heads);
  arguments.group = static_cast<int32_t>(problem.group());
  arguments.head_dim = static_cast<int32_t>(problem.head_dim);
  arguments.value_dim = static_cast<int32_t>(problem.value_dim);
  arguments.left = static_cast<int32_t>(offsets.left + shift);
  arguments.right = static_cast<int32_t>(offsets.right + shift);
  arguments.bottom_right = bottom_right && has_lengths(problem);
  arguments.first_row = static_cast<int32_t>(first);
  if (rows.zigzag && !problem.ragged) {
    arguments.second_piece = static_cast<int32_t>(problem.q_len / 2);
    arguments.gap = static_cast<int32_t>(rows.position(problem.q_len / 2, problem.q_len) - first) -
                    arguments.second_piece;
  } else {
    arguments.second_piece = static_cast<int32_t>(kLongest);
  }
  if (problem.ragged) {
    arguments.two_pieces = rows.zigzag;
    arguments.piece = static_cast<int32_t>(rows.rank);
    arguments.pieces = static_cast<int32_t>(rows.ranks * (rows.zigzag ? 2 : 1));
    arguments.pieces_before = static_cast<int32_t>(rows.pieces_before);
  }
  arguments.scale_log2_f64 = problem.scale * kLog2E;
  arguments.scale_log2 = static_cast<float>(arguments.scale_log2_f64);
  arguments.ragged = problem.ragged;
  arguments.total_q = static_cast<int32_t>(problem.total_q);
  arguments.total_kv = static_cast<int32_t>(problem.total_kv);
  arguments.kv_starts = problem.kv_starts;
  arguments.kv_batch = static_cast<int32_t>(problem.kv_batch);
  return arguments;
}

template <class Tensors>
void bind(const Tensors& tensors, AttentionArguments* arguments) {
  arguments->query_rows = rows_in_memory(with_batch(tensors.query));
  arguments->key_rows = rows_in_memory(with_batch(tensors.key));
  arguments->value_rows = rows_in_memory(with_batch(tensors.value));
  arguments->out_rows = rows_in_memory(with_batch(tensors.out));
  arguments->cumulative_q = lengths_in_memory(tensors.cu_seqlens_q);
  // Where the second pieces begin lies between (collective/context_lengths.hpp).
  if (arguments->two_pieces) arguments->cumulative_q.stride /= 2;
  arguments->cumulative_kv = lengths_in_memory(tensors.cu_seqlens_kv);
  arguments->q_lens = lengths_in_memory(tensors.q_lens);
  arguments->kv_lens = lengths_in_memory(tensors.kv_lens);
  arguments->kv_index = lengths_in_memory(tensors.kv_index);
  arguments->bias = scores_in_memory(tensors.bias);
  arguments->visible = scores_in_memory(tensors.visible);
  arguments->dropout_threshold = tensors.dropout.threshold;
  arguments->dropout_factor = 256.0f / static_cast<float>(tensors.dropout.threshold);
  arguments->dropout_seed = tensors.dropout.seed;
  arguments->dropout_offset = tensors.dropout.offset;
  arguments->dropout_numbers = tensors.dropout.numbers;
}
BiasTiles divide_bias(const AttentionProblem& p, int64_t queries, int64_t keys) {
  BiasTiles bias;
  if (!p.grad_bias) return bias;
  const int64_t* shape = p.bias_shape;
  bias.sums_batch = shape[0] != p.batch;
  bias.sums_heads = shape[1] != p.heads;
  bias.sums_queries = shape[2] != p.q_len;
  bias.sums_keys = shape[3] != p.kv_len;
  bias.bias_heads = static_cast<int32_t>(shape[1]);
  bias.bias_q_tiles = static_cast<int32_t>(ceil_div(shape[2], queries));
  bias.bias_k_tiles = static_cast<int32_t>(ceil_div(shape[3], keys));
  const int64_t blocks_of_entry = shape[1] * bias.bias_q_tiles * bias.bias_k_tiles;
  const int64_t units = (bias.sums_batch ? p.batch : 1) * (bias.sums_heads ? p.heads : 1) *
                        (bias.sums_queries ? ceil_div(p.q_len, queries) : 1) *
                        (bias.sums_keys ? ceil_div(p.kv_len, keys) : 1);
  int64_t most = min(units, kMostSplits);
  if (!bias.sums_batch)
    most = bias.sums_queries || bias.sums_keys ? min(units, kMostSplitsOfEntry) : 1;
  const int64_t wanted = ceil_div(kEnoughBlocks, max(blocks_of_entry, int64_t{1}));
  bias.num_splits = static_cast<int32_t>(max(min(wanted, most), int64_t{1}));
  bias.bias_blocks = static_cast<int32_t>(shape[0] * blocks_of_entry);
  bias.blocks = bias.bias_blocks * bias.num_splits;
  return bias;
}

std::string refuse_bias_tiles(const AttentionProblem& p, int64_t queries, int64_t keys) {
  if (!p.grad_bias) return "";
  const int64_t* shape = p.bias_shape;
  const int64_t tiles =
      shape[0] * shape[1] * ceil_div(shape[2], queries) * ceil_div(shape[3], keys);
  const bool splits = shape[2] != p.q_len || shape[3] != p.kv_len;
  const int64_t most = splits ? kLongest / kMostSplitsOfEntry : kLongest;
  if (tiles <= most) return "";
  return concatenate("its gradient of bias is made for up to ", most, " tiles of ", queries,
                     " queries and ", keys, " keys, got bias_shape [", shape[0], ", ", shape[1],
                     ", ", shape[2], ", ", shape[3], "]");
}

void keep_splits(const BiasTiles& plan, BiasTiles* bias) {
  // A bias that is repeated along one query, or one key, has its sums in one row, or column.
  bias->sums_queries = bias->sums_queries || plan.sums_queries;
  bias->sums_keys = bias->sums_keys || plan.sums_keys;
  bias->num_splits = min(bias->num_splits, plan.num_splits);
  bias->blocks = bias->bias_blocks * bias->num_splits;
}

size_t bytes_of_splits(const BiasTiles& bias, int64_t queries, int64_t keys, int64_t bytes_of_sum) {
  if (bias.num_splits == 1) return 0;
  const int64_t sums = (bias.sums_queries ? 1 : queries) * (bias.sums_keys ? 1 : keys);
  return static_cast<size_t>(int64_t{bias.bias_blocks} * bias.num_splits * sums * bytes_of_sum);
}

template void bind(const AttentionForward&, AttentionArguments*);
template void bind(const AttentionBackward&, AttentionArguments*);

}  // namespace perseid::internal::cuda
