// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the tests of context-parallel attention share, on CPUs and on GPUs: a problem over ranks,
// its tensors, and those of a rank.
#pragma once

#include <algorithm>
#include <cmath>

#include "collective_tools.hpp"

namespace context_attention_tools {

using namespace collective_tools;
using perseid::Attention;
using perseid::AttentionOptions;
using perseid::Context;
using perseid::ContextAttention;
using perseid::Layout;
using perseid::Mask;
using perseid::Sharding;
using perseid::Workspace;

inline double value_of(const Matrix& matrix, size_t i) {
  const std::byte* at = matrix.bytes.data() + i * static_cast<size_t>(bytes_of(matrix.dtype));
  if (matrix.dtype == perseid::f64) {
    double value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint32_t bits = 0;
  if (matrix.dtype == perseid::f32) {
    std::memcpy(&bits, at, sizeof bits);
  } else {  // bf16
    uint16_t upper = 0;
    std::memcpy(&upper, at, sizeof upper);
    bits = uint32_t{upper} << 16;
  }
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return double{value};
}

struct Problem {
  int32_t ranks = 2;
  DType dtype = perseid::f64;
  Layout layout = perseid::bshd;
  Sharding placement = Sharding::kZigzag;
  Mask mask = perseid::causal_bottom_right();
  int64_t batch = 1, heads = 2, kv_heads = 1;
  int64_t q_len = 0, kv_len = 0;  // of whole sequences
  int64_t head_dim = 16, value_dim = 8;
  double dropout = 0;
  std::vector<int32_t> lengths = {};  // ragged: of whole sequences, of queries and keys alike
  std::vector<int64_t> shards = {};   // uneven: rows of each rank, of queries and keys alike
  bool bias = false, visible = false, kv_lens = false;
  bool grad_bias = false;    // of a bias that all batch entries share
  bool ragged_rows = false;  // of bias; else one for all queries of ragged batches
  int64_t chunks = 1;
  bool backward = true;
  bool accumulate = false;
  bool deterministic = false;

  bool ragged() const { return !lengths.empty(); }
  int64_t longest() const {
    return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  }
  // Bias and visible have a row for each query.
  bool has_score_rows() const { return !ragged() || ragged_rows; }
  bool bias_has_rows() const { return bias && has_score_rows(); }
  size_t rows_dim(bool lse = false) const {
    const size_t batched = ragged() ? 0 : 1;
    return batched + (lse || layout == perseid::bhsd ? 1 : 0);
  }
};

// Rows of a sequence of `length` that begins with row `begin`.
inline void add_rows(const Problem& problem, int32_t rank, int64_t begin, int64_t length,
                     std::vector<int64_t>* rows) {
  const auto add = [&](int64_t from, int64_t to) {
    for (int64_t row = from; row < to; ++row) rows->push_back(begin + row);
  };
  if (problem.placement == Sharding::kZigzag) {
    const int64_t piece = length / (2 * problem.ranks), last = 2 * problem.ranks - 1 - rank;
    add(rank * piece, (rank + 1) * piece);
    add(last * piece, (last + 1) * piece);
  } else if (!problem.shards.empty()) {
    int64_t from = 0;
    for (int32_t r = 0; r < rank; ++r) from += problem.shards[static_cast<size_t>(r)];
    add(from, from + problem.shards[static_cast<size_t>(rank)]);
  } else {
    add(rank * length / problem.ranks, (rank + 1) * length / problem.ranks);
  }
}
// The rows of a whole tensor that a rank has.
inline std::vector<int64_t> rows_of(const Problem& problem, int32_t rank, int64_t length) {
  std::vector<int64_t> rows;
  int64_t begin = 0;
  if (!problem.ragged()) add_rows(problem, rank, 0, length, &rows);
  for (const int64_t sequence : problem.lengths) {
    add_rows(problem, rank, begin, sequence, &rows);
    begin += sequence;
  }
  return rows;
}

// Some rows of a dimension, copied.
inline Matrix take(const Matrix& whole, size_t dim, const std::vector<int64_t>& rows) {
  std::vector<int64_t> shape = whole.shape;
  shape[dim] = static_cast<int64_t>(rows.size());
  Matrix part(shape, whole.dtype);
  auto outer = size_t{1}, inner = static_cast<size_t>(bytes_of(whole.dtype));
  for (size_t d = 0; d < dim; ++d) outer *= static_cast<size_t>(shape[d]);
  for (size_t d = dim + 1; d < shape.size(); ++d) inner *= static_cast<size_t>(shape[d]);
  const auto length = static_cast<size_t>(whole.shape[dim]);
  for (size_t o = 0; o < outer; ++o)
    for (size_t i = 0; i < rows.size(); ++i)
      std::memcpy(part.bytes.data() + (o * rows.size() + i) * inner,
                  whole.bytes.data() + (o * length + static_cast<size_t>(rows[i])) * inner, inner);
  return part;
}

inline void expect_near(const char* name, const Matrix& result, const Matrix& wanted) {
  ASSERT_EQ(result.shape, wanted.shape) << name;
  const double tolerance = wanted.dtype == perseid::f64   ? 1e-12
                           : wanted.dtype == perseid::f32 ? 1e-5
                                                          : 0x1p-6;
  const size_t count = wanted.bytes.size() / static_cast<size_t>(bytes_of(wanted.dtype));
  for (size_t i = 0; i < count; ++i) {
    const double got = value_of(result, i), expected = value_of(wanted, i);
    if (got == expected) continue;  // infinities too
    ASSERT_NEAR(got, expected, tolerance * std::max(1.0, std::abs(expected)))
        << name << ", element " << i << " of " << testing::PrintToString(wanted.shape);
  }
}

// The rows of bias or visible that a rank has: [batch or 1, heads, rows, keys].
inline Matrix take_scores(const Problem& problem, const Matrix& whole, int32_t rank) {
  if (whole.bytes.empty()) return whole;
  if (!problem.ragged()) return take(whole, 2, rows_of(problem, rank, problem.q_len));
  std::vector<int64_t> shape = whole.shape;
  shape[2] /= problem.ranks;
  Matrix part(shape, whole.dtype);
  const auto row = static_cast<size_t>(shape[3] * bytes_of(whole.dtype));
  for (int64_t sequence = 0; sequence < shape[0]; ++sequence) {
    std::vector<int64_t> rows;
    add_rows(problem, rank, 0, problem.lengths[static_cast<size_t>(sequence)], &rows);
    for (int64_t head = 0; head < shape[1]; ++head) {
      const auto entry = static_cast<size_t>(sequence * shape[1] + head);
      for (size_t i = 0; i < rows.size(); ++i)
        std::memcpy(
            part.bytes.data() + (entry * static_cast<size_t>(shape[2]) + i) * row,
            whole.bytes.data() +
                (entry * static_cast<size_t>(whole.shape[2]) + static_cast<size_t>(rows[i])) * row,
            row);
    }
  }
  return part;
}

// Tensors of a problem: all rows, or those of a rank. Rows: in memory of the CPU or of a GPU.
template <class Rows>
struct TensorsOf {
  Rows query, key, value, bias, visible, lengths, kv_lens, out, lse, grad_out, grad_query, grad_key,
      grad_value, grad_bias;

  perseid::AttentionForward forward(const Problem& problem) const {
    return {.query = query.tensor(),
            .key = key.tensor(),
            .value = value.tensor(),
            .bias = problem.bias ? bias.tensor() : Tensor(),
            .visible = problem.visible ? visible.tensor() : Tensor(),
            .cu_seqlens_q = problem.ragged() ? lengths.tensor() : Tensor(),
            .cu_seqlens_kv = problem.ragged() ? lengths.tensor() : Tensor(),
            .kv_lens = problem.kv_lens ? kv_lens.tensor() : Tensor(),
            .out = out.tensor(),
            .lse = lse.tensor(),
            .seed = 7,
            .offset = 3};
  }
  perseid::AttentionBackward backward(const Problem& problem) const {
    const perseid::AttentionForward with = forward(problem);
    return {.query = with.query,
            .key = with.key,
            .value = with.value,
            .bias = with.bias,
            .visible = with.visible,
            .cu_seqlens_q = with.cu_seqlens_q,
            .cu_seqlens_kv = with.cu_seqlens_kv,
            .kv_lens = with.kv_lens,
            .out = with.out,
            .lse = with.lse,
            .grad_out = grad_out.tensor(),
            .grad_query = grad_query.tensor(),
            .grad_key = grad_key.tensor(),
            .grad_value = grad_value.tensor(),
            .grad_bias = problem.grad_bias ? grad_bias.tensor() : Tensor(),
            .seed = with.seed,
            .offset = with.offset};
  }
};

using Tensors = TensorsOf<Matrix>;

inline Matrix whole_numbers(const std::vector<int32_t>& numbers) {
  Matrix matrix({static_cast<int64_t>(numbers.size())}, perseid::i32);
  matrix.bytes.resize(numbers.size() * sizeof(int32_t));
  if (!numbers.empty()) std::memcpy(matrix.bytes.data(), numbers.data(), matrix.bytes.size());
  return matrix;
}

inline std::vector<int64_t> score_shape(const Problem& problem, int64_t heads) {
  if (!problem.ragged()) return {1, heads, problem.q_len, problem.kv_len};
  const int64_t longest = problem.longest();
  return {problem.batch, heads, longest, longest};
}
// Three of four keys, for the queries of a problem.
inline Matrix visible_of(const Problem& problem, uint64_t seed) {
  if (!problem.visible) return Matrix({1, 1, 0, 0}, perseid::u8);
  Matrix visible(problem.has_score_rows() ? score_shape(problem, 1)
                                          : std::vector<int64_t>{1, 1, 1, problem.longest()},
                 perseid::u8);
  std::mt19937_64 engine(seed);
  for (std::byte& byte : visible.bytes) byte = std::byte{engine() % 4 != 0};
  return visible;
}

inline Tensors make(const Problem& problem, uint64_t seed) {
  const auto shape = [&](int64_t rows, int64_t heads, int64_t dim) {
    std::vector<int64_t> sizes;
    if (!problem.ragged()) sizes.push_back(problem.batch);
    const bool rows_first = problem.layout == perseid::bshd;
    sizes.insert(sizes.end(), {rows_first ? rows : heads, rows_first ? heads : rows, dim});
    return sizes;
  };
  const auto random = [&](int64_t rows, int64_t heads, int64_t dim, uint64_t number) {
    return Matrix::random(shape(rows, heads, dim), problem.dtype, seed * 100 + number);
  };
  const DType lse_dtype = problem.dtype == perseid::f64 ? perseid::f64 : perseid::f32;
  const int64_t q = problem.q_len, kv = problem.kv_len;
  std::vector<int32_t> cumulative = {0}, kv_lens;
  for (const int32_t length : problem.lengths) cumulative.push_back(cumulative.back() + length);
  for (int32_t i = 0; i < problem.batch; ++i)
    kv_lens.push_back(static_cast<int32_t>(problem.kv_len) * (i + 1) / (i + 2));
  std::vector<int64_t> bias_shape{1, problem.heads, 0, 0};
  if (problem.bias_has_rows())
    bias_shape = score_shape(problem, problem.heads);
  else if (problem.bias)
    bias_shape = {1, problem.heads, 1, problem.longest()};
  return {.query = random(q, problem.heads, problem.head_dim, 1),
          .key = random(kv, problem.kv_heads, problem.head_dim, 2),
          .value = random(kv, problem.kv_heads, problem.value_dim, 3),
          .bias = Matrix::random(bias_shape, problem.dtype, seed * 100 + 4),
          .visible = visible_of(problem, seed * 100 + 10),
          .lengths = whole_numbers(cumulative),
          .kv_lens = whole_numbers(kv_lens),
          .out = Matrix(shape(q, problem.heads, problem.value_dim), problem.dtype),
          .lse = Matrix(problem.ragged() ? std::vector<int64_t>{problem.heads, q}
                                         : std::vector<int64_t>{problem.batch, problem.heads, q},
                        lse_dtype),
          .grad_out = random(q, problem.heads, problem.value_dim, 5),
          // What gradients are added to, where they are.
          .grad_query = random(q, problem.heads, problem.head_dim, 9),
          .grad_key = random(kv, problem.kv_heads, problem.head_dim, 6),
          .grad_value = random(kv, problem.kv_heads, problem.value_dim, 7),
          .grad_bias = Matrix::random(bias_shape, problem.dtype, seed * 100 + 8)};
}

inline Tensors take(const Problem& problem, const Tensors& whole, int32_t rank) {
  const std::vector<int64_t> q = rows_of(problem, rank, problem.q_len),
                             kv = rows_of(problem, rank, problem.kv_len);
  const size_t dim = problem.rows_dim();
  return {.query = take(whole.query, dim, q),
          .key = take(whole.key, dim, kv),
          .value = take(whole.value, dim, kv),
          .bias = problem.bias_has_rows() ? take_scores(problem, whole.bias, rank) : whole.bias,
          .visible =
              problem.has_score_rows() ? take_scores(problem, whole.visible, rank) : whole.visible,
          .lengths = whole.lengths,
          .kv_lens = whole.kv_lens,
          .out = take(whole.out, dim, q),
          .lse = take(whole.lse, problem.rows_dim(true), q),
          .grad_out = take(whole.grad_out, dim, q),
          .grad_query = take(whole.grad_query, dim, q),
          .grad_key = take(whole.grad_key, dim, kv),
          .grad_value = take(whole.grad_value, dim, kv),
          .grad_bias = problem.bias_has_rows() ? take_scores(problem, whole.grad_bias, rank)
                                               : whole.grad_bias};
}

inline AttentionOptions options_of(const Problem& problem, int64_t q_rows, int64_t kv_rows,
                                   int64_t parts) {
  const int64_t longest = problem.longest();
  AttentionOptions options{.dtype = problem.dtype,
                           .layout = problem.layout,
                           .batch = problem.batch,
                           .heads = problem.heads,
                           .kv_heads = problem.kv_heads,
                           .q_len = problem.ragged() ? longest / parts : q_rows,
                           .kv_len = problem.ragged() ? longest / parts : kv_rows,
                           .head_dim = problem.head_dim,
                           .value_dim = problem.value_dim,
                           .mask = problem.mask,
                           .dropout = problem.dropout,
                           .visible = problem.visible,
                           .kv_lens = problem.kv_lens,
                           .ragged = problem.ragged(),
                           .total_q = problem.ragged() ? q_rows : 0,
                           .total_kv = problem.ragged() ? kv_rows : 0,
                           .backward = problem.backward,
                           .deterministic = problem.deterministic};
  if (problem.bias_has_rows())
    options.bias = problem.ragged()
                       ? std::array{problem.batch, problem.heads, longest / parts, longest}
                       : std::array{int64_t{1}, problem.heads, q_rows, problem.kv_len};
  else if (problem.bias)
    options.bias = {1, problem.heads, 1, longest};
  if (problem.backward)
    options.gradients = PERSEID_GRAD_QUERY | PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE;
  if (problem.grad_bias) options.gradients |= PERSEID_GRAD_BIAS;
  if (problem.accumulate) options.accumulate = options.gradients;
  return options;
}

}  // namespace context_attention_tools
