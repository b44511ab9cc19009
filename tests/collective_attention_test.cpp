// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Context-parallel attention over threads as ranks, against the attention of one rank that has all
// rows: masks, placements, GQA, ragged batches and dropout, forward and backward, and what happens
// where ranks differ or are missing.
#include <cmath>

#include "collective_tools.hpp"

extern thread_local int64_t allocations_of_this_thread;  // of counting_new.cpp

namespace {

using namespace collective_tools;
using perseid::Attention;
using perseid::AttentionOptions;
using perseid::Context;
using perseid::ContextAttention;
using perseid::Direction;
using perseid::Layout;
using perseid::Mask;
using perseid::Sharding;
using perseid::Workspace;

double value_of(const Matrix& matrix, size_t i) {
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
  int32_t ranks;
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
  bool bias = false, kv_lens = false;
  int64_t chunks = 1;
  bool backward = true;
  bool accumulate = false;

  bool ragged() const { return !lengths.empty(); }
  size_t rows_dim(bool lse = false) const {
    const size_t batched = ragged() ? 0 : 1;
    return batched + (lse || layout == perseid::bhsd ? 1 : 0);
  }
};

// Rows of a sequence of `length` that begins with row `begin`.
void add_rows(const Problem& problem, int32_t rank, int64_t begin, int64_t length,
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
// Of a whole tensor those of a rank.
std::vector<int64_t> rows_of(const Problem& problem, int32_t rank, int64_t length) {
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
Matrix take(const Matrix& whole, size_t dim, const std::vector<int64_t>& rows) {
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

void expect_near(const char* name, const Matrix& result, const Matrix& wanted) {
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

// Tensors of a problem: all rows, or those of a rank.
struct Tensors {
  Matrix query, key, value, bias, lengths, kv_lens, out, lse, grad_out, grad_query, grad_key,
      grad_value;

  perseid::AttentionForward forward(const Problem& problem) const {
    return {.query = query.tensor(),
            .key = key.tensor(),
            .value = value.tensor(),
            .bias = problem.bias ? bias.tensor() : Tensor(),
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
            .cu_seqlens_q = with.cu_seqlens_q,
            .cu_seqlens_kv = with.cu_seqlens_kv,
            .kv_lens = with.kv_lens,
            .out = with.out,
            .lse = with.lse,
            .grad_out = grad_out.tensor(),
            .grad_query = grad_query.tensor(),
            .grad_key = grad_key.tensor(),
            .grad_value = grad_value.tensor(),
            .seed = with.seed,
            .offset = with.offset};
  }
};

Matrix whole_numbers(const std::vector<int32_t>& numbers) {
  Matrix matrix({static_cast<int64_t>(numbers.size())}, perseid::i32);
  matrix.bytes.resize(numbers.size() * sizeof(int32_t));
  if (!numbers.empty()) std::memcpy(matrix.bytes.data(), numbers.data(), matrix.bytes.size());
  return matrix;
}

Tensors make(const Problem& problem, uint64_t seed) {
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
  return {.query = random(q, problem.heads, problem.head_dim, 1),
          .key = random(kv, problem.kv_heads, problem.head_dim, 2),
          .value = random(kv, problem.kv_heads, problem.value_dim, 3),
          .bias = Matrix::random({1, problem.heads, q, kv}, problem.dtype, seed * 100 + 4),
          .lengths = whole_numbers(cumulative),
          .kv_lens = whole_numbers(kv_lens),
          .out = Matrix(shape(q, problem.heads, problem.value_dim), problem.dtype),
          .lse = Matrix(problem.ragged() ? std::vector<int64_t>{problem.heads, q}
                                         : std::vector<int64_t>{problem.batch, problem.heads, q},
                        lse_dtype),
          .grad_out = random(q, problem.heads, problem.value_dim, 5),
          .grad_query = Matrix(shape(q, problem.heads, problem.head_dim), problem.dtype),
          // What gradients are added to, where they are.
          .grad_key = random(kv, problem.kv_heads, problem.head_dim, 6),
          .grad_value = random(kv, problem.kv_heads, problem.value_dim, 7)};
}

Tensors take(const Problem& problem, const Tensors& whole, int32_t rank) {
  const std::vector<int64_t> q = rows_of(problem, rank, problem.q_len),
                             kv = rows_of(problem, rank, problem.kv_len);
  const size_t dim = problem.rows_dim();
  return {.query = take(whole.query, dim, q),
          .key = take(whole.key, dim, kv),
          .value = take(whole.value, dim, kv),
          .bias = take(whole.bias, 2, q),
          .lengths = whole.lengths,
          .kv_lens = whole.kv_lens,
          .out = take(whole.out, dim, q),
          .lse = take(whole.lse, problem.rows_dim(true), q),
          .grad_out = take(whole.grad_out, dim, q),
          .grad_query = take(whole.grad_query, dim, q),
          .grad_key = take(whole.grad_key, dim, kv),
          .grad_value = take(whole.grad_value, dim, kv)};
}

AttentionOptions options_of(const Problem& problem, int64_t q_rows, int64_t kv_rows,
                            int64_t parts) {
  int64_t longest = 0;
  for (const int64_t length : problem.lengths) longest = std::max(longest, length);
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
                           .kv_lens = problem.kv_lens,
                           .ragged = problem.ragged(),
                           .total_q = problem.ragged() ? q_rows : 0,
                           .total_kv = problem.ragged() ? kv_rows : 0,
                           .backward = problem.backward};
  if (problem.bias) options.bias = {1, problem.heads, q_rows, problem.kv_len};
  if (problem.backward)
    options.gradients = PERSEID_GRAD_QUERY | PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE;
  if (problem.accumulate) options.accumulate = PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE;
  return options;
}

// Two executions with different operands; nothing of them allocates.
void expect_as_one_rank(Problem problem) {
  SCOPED_TRACE(testing::Message() << problem.ranks << " ranks, q_len " << problem.q_len
                                  << ", kv_len " << problem.kv_len << ", chunks " << problem.chunks
                                  << ", dtype " << static_cast<int>(problem.dtype));
  if (problem.ragged()) {
    problem.batch = static_cast<int64_t>(problem.lengths.size());
    problem.q_len = problem.kv_len = 0;
    for (const int64_t length : problem.lengths) problem.q_len = problem.kv_len += length;
  }
  const Context context = Context::cpu(2);
  std::vector<Tensors> wholes;
  for (uint64_t repeat = 0; repeat < 2; ++repeat) {
    Tensors whole = make(problem, repeat);
    const Attention attention(Context::cpu(1),
                              options_of(problem, problem.q_len, problem.kv_len, 1));
    Workspace workspace;
    attention.reserve(workspace);
    wholes.push_back(whole);
    attention.forward(nullptr, wholes.back().forward(problem), workspace);
    if (problem.backward) attention.backward(nullptr, wholes.back().backward(problem), workspace);
  }
  on_threads(problem.ranks, [&](const Group& group) {
    const int32_t rank = group.rank();
    std::unique_ptr<ContextAttention> plan;
    Workspace workspace;
    for (uint64_t repeat = 0; repeat < 2; ++repeat) {
      const Tensors own = take(problem, make(problem, repeat), rank);
      const Tensors wanted = take(problem, wholes[repeat], rank);
      if (plan == nullptr) {
        plan = std::make_unique<ContextAttention>(
            context, group,
            perseid::ContextAttentionOptions{
                .attention = options_of(problem, own.query.shape[problem.rows_dim()],
                                        own.key.shape[problem.rows_dim()], problem.ranks),
                .placement = problem.placement,
                .chunks = problem.chunks});
        plan->reserve(workspace);
      }
      const auto forward = own.forward(problem);
      const auto backward = own.backward(problem);
      const int64_t before = allocations_of_this_thread;
      plan->forward(nullptr, forward, workspace);
      if (problem.backward) plan->backward(nullptr, backward, workspace);
      const int64_t allocations = allocations_of_this_thread - before;
      EXPECT_EQ(allocations, 0) << "rank " << rank;
      SCOPED_TRACE(testing::Message() << "rank " << rank << ", execution " << repeat);
      expect_near("out", own.out, wanted.out);
      expect_near("lse", own.lse, wanted.lse);
      if (!problem.backward) continue;
      expect_near("grad_query", own.grad_query, wanted.grad_query);
      expect_near("grad_key", own.grad_key, wanted.grad_key);
      expect_near("grad_value", own.grad_value, wanted.grad_value);
    }
  });
}

TEST(ContextAttention, MasksAndPlacements) {
  for (const Mask& mask :
       {Mask{}, perseid::causal_bottom_right(), perseid::causal_top_left(),
        perseid::causal_bottom_right() & perseid::window(70, -1), perseid::window(30, 41)})
    for (const int32_t ranks : {1, 2, 3})
      for (const Sharding placement : {Sharding::kContiguous, Sharding::kZigzag})
        expect_as_one_rank({.ranks = ranks,
                            .placement = placement,
                            .mask = mask,
                            .q_len = 36 * 2 * ranks,
                            .kv_len = 50 * 2 * ranks});
}

TEST(ContextAttention, LongerThanABlock) {
  expect_as_one_rank({.ranks = 2, .q_len = 1100, .kv_len = 1100, .chunks = 3});
  expect_as_one_rank({.ranks = 3,
                      .mask = perseid::causal_bottom_right() & perseid::window(100, -1),
                      .heads = 4,
                      .kv_heads = 2,
                      .q_len = 900,
                      .kv_len = 960,
                      .chunks = 2});
}

TEST(ContextAttention, TypesAndLayouts) {
  for (const DType dtype : {perseid::bf16, perseid::f32})
    for (const Layout layout : {perseid::bshd, perseid::bhsd})
      expect_as_one_rank({.ranks = 2,
                          .dtype = dtype,
                          .layout = layout,
                          .batch = 2,
                          .heads = 4,
                          .kv_heads = 2,
                          .q_len = 240,
                          .kv_len = 240,
                          .head_dim = 32,
                          .value_dim = 32});
}

TEST(ContextAttention, UnevenShards) {
  expect_as_one_rank({.ranks = 3,
                      .placement = Sharding::kContiguous,
                      .batch = 2,
                      .q_len = 150,
                      .kv_len = 150,
                      .shards = {70, 0, 80},
                      .chunks = 4});
  expect_as_one_rank({.ranks = 3,
                      .placement = Sharding::kContiguous,
                      .mask = {},
                      .q_len = 4,
                      .kv_len = 4,
                      .shards = {1, 2, 1},
                      .chunks = 4});
}

// Pieces of 50 rows begin and end within the tiles of 16 rows that dropout is drawn in.
TEST(ContextAttention, DropsWhatOneRankDrops) {
  for (const Sharding placement : {Sharding::kContiguous, Sharding::kZigzag})
    expect_as_one_rank({.ranks = 2,
                        .placement = placement,
                        .batch = 2,
                        .q_len = 200,
                        .kv_len = 200,
                        .dropout = 0.3});
  expect_as_one_rank({.ranks = 3, .dropout = 0.5, .lengths = {66, 0, 102}});
}

TEST(ContextAttention, RaggedBatches) {
  for (const Sharding placement : {Sharding::kContiguous, Sharding::kZigzag}) {
    expect_as_one_rank({.ranks = 2, .placement = placement, .lengths = {40, 0, 300, 4}});
    expect_as_one_rank({.ranks = 3,
                        .layout = perseid::bhsd,
                        .placement = placement,
                        .mask = perseid::causal_bottom_right() & perseid::window(50, -1),
                        .lengths = {120, 6, 60}});
  }
}

TEST(ContextAttention, BiasAndLengths) {
  expect_as_one_rank({.ranks = 2, .q_len = 120, .kv_len = 160, .bias = true});
  expect_as_one_rank({.ranks = 2, .batch = 3, .q_len = 120, .kv_len = 160, .kv_lens = true});
}

TEST(ContextAttention, AddsToGradients) {
  for (const DType dtype : {perseid::bf16, perseid::f64})
    expect_as_one_rank({.ranks = 2, .dtype = dtype, .q_len = 80, .kv_len = 80, .accumulate = true});
}

TEST(ContextAttention, ForwardAlone) {
  expect_as_one_rank({.ranks = 2, .q_len = 80, .kv_len = 80, .backward = false});
}

TEST(ContextAttention, NothingToDo) {
  expect_as_one_rank({.ranks = 2, .q_len = 0, .kv_len = 80});
  expect_as_one_rank({.ranks = 2, .q_len = 80, .kv_len = 0});
  expect_as_one_rank({.ranks = 2, .lengths = {0, 0}});
}

// The same bits in every run, though the ranks are never in step.
TEST(ContextAttention, RepeatsItsBits) {
  const Problem problem{.ranks = 3,
                        .dtype = perseid::bf16,
                        .heads = 4,
                        .kv_heads = 2,
                        .q_len = 360,
                        .kv_len = 360,
                        .dropout = 0.1};
  std::vector<std::vector<std::byte>> first(3);
  for (int run = 0; run < 4; ++run)
    on_threads(3, [&](const Group& group) {
      const Tensors own = take(problem, make(problem, 1), group.rank());
      const ContextAttention plan(
          Context::cpu(run % 2 + 1), group,
          {.attention = options_of(problem, 120, 120, 3), .placement = Sharding::kZigzag});
      Workspace workspace;
      plan.reserve(workspace);
      std::this_thread::sleep_for(std::chrono::milliseconds(group.rank() * run));
      plan.forward(nullptr, own.forward(problem), workspace);
      plan.backward(nullptr, own.backward(problem), workspace);
      std::vector<std::byte> bits = own.out.bytes;
      for (const Matrix* result : {&own.lse, &own.grad_query, &own.grad_key, &own.grad_value})
        bits.insert(bits.end(), result->bytes.begin(), result->bytes.end());
      auto& wanted = first[static_cast<size_t>(group.rank())];
      if (run == 0) wanted = bits;
      EXPECT_EQ(bits, wanted) << "rank " << group.rank() << ", run " << run;
    });
}

perseid::ContextAttentionOptions causal_of(int64_t rows) {
  return {.attention = {.heads = 2,
                        .q_len = rows,
                        .kv_len = rows,
                        .head_dim = 16,
                        .mask = perseid::causal_bottom_right(),
                        .backward = true},
          .placement = Sharding::kZigzag};
}

TEST(ContextAttention, RefusesWhatDiffersOnAllRanks) {
  const Context context = Context::cpu(1);
  const auto refused = [&](const auto& options_of_rank) {
    std::vector<Ended> ends(3);
    on_threads(3, [&](const Group& group) {
      const int32_t rank = group.rank();
      ends[static_cast<size_t>(rank)] =
          ended([&] { ContextAttention(context, group, options_of_rank(rank)); });
    });
    for (const Ended& end : ends) {
      EXPECT_EQ(end.status, PERSEID_INVALID_ARGUMENT);
      EXPECT_EQ(end.sentence, ends[0].sentence);
    }
    return ends[0].sentence;
  };
  EXPECT_EQ(refused([](int32_t rank) { return causal_of(rank == 1 ? 6 : 8); }),
            "context-attention: q_len is 6 on rank 1 and 8 on rank 0; pass the same on all ranks");
  EXPECT_EQ(refused([](int32_t rank) {
              auto options = causal_of(8);
              if (rank == 2) options.attention.mask = {};
              return options;
            }),
            "context-attention: causal is 0 on rank 2 and 2 on rank 0; pass the same on all ranks");
  EXPECT_EQ(refused([](int32_t rank) { return causal_of(rank == 1 ? 7 : 8); }),
            "rank 1: context-attention: attention.q_len is 7, expected an even number, as a rank "
            "holds two equal pieces of a sequence; pad it, or use PERSEID_CONTIGUOUS");
  EXPECT_EQ(refused([](int32_t rank) {
              auto options = causal_of(8);
              if (rank == 0) options.attention.heads = 3, options.attention.kv_heads = 2;
              if (rank != 0) options.attention.kv_heads = 2;
              return options;
            }),
            "context-attention: heads is 2 on rank 1 and 3 on rank 0; pass the same on all ranks");
}

TEST(ContextAttention, RefusesLengthsThatDoNotDivide) {
  const Problem problem{.ranks = 2, .lengths = {10}};
  on_threads(1, [&](const Group& group) {
    const ContextAttention plan(Context::cpu(1), group,
                                {.attention = {.heads = 1,
                                               .q_len = 5,
                                               .kv_len = 5,
                                               .head_dim = 8,
                                               .ragged = true,
                                               .total_q = 5,
                                               .total_kv = 5}});
    const Matrix rows = Matrix::random({5, 1, 8}, perseid::f32, 1), lengths = whole_numbers({0, 5});
    Workspace workspace;
    plan.reserve(workspace);
    const auto call = [&](const Matrix& cumulative) {
      return ended([&] {
        plan.forward(nullptr,
                     {.query = rows.tensor(),
                      .key = rows.tensor(),
                      .value = rows.tensor(),
                      .cu_seqlens_q = cumulative.tensor(),
                      .cu_seqlens_kv = cumulative.tensor(),
                      .out = Matrix({5, 1, 8}, perseid::f32).tensor()},
                     workspace);
      });
    };
    EXPECT_EQ(call(lengths).status, PERSEID_OK);
    const Ended beyond = call(whole_numbers({0, 6}));
    EXPECT_EQ(beyond.status, PERSEID_INVALID_ARGUMENT);
  });
  on_threads(2, [&](const Group& group) {
    const Matrix rows = Matrix::random({5, 1, 8}, perseid::f32, 1), lengths = whole_numbers({0, 9});
    const ContextAttention plan(Context::cpu(1), group,
                                {.attention = {.heads = 1,
                                               .q_len = 5,
                                               .kv_len = 5,
                                               .head_dim = 8,
                                               .ragged = true,
                                               .total_q = 5,
                                               .total_kv = 5}});
    Workspace workspace;
    plan.reserve(workspace);
    const Matrix out({5, 1, 8}, perseid::f32);
    const Ended end = ended([&] {
      plan.forward(nullptr,
                   {.query = rows.tensor(),
                    .key = rows.tensor(),
                    .value = rows.tensor(),
                    .cu_seqlens_q = lengths.tensor(),
                    .cu_seqlens_kv = lengths.tensor(),
                    .out = out.tensor()},
                   workspace);
    });
    EXPECT_EQ(end.sentence,
              "context-attention: cu_seqlens_q[1] is 9, expected a multiple of 2, the pieces of a "
              "sequence; pad the sequences");
  });
}

// A rank that does not come ends the calls of the others, which go on without it.
TEST(ContextAttention, GoesOnWithoutASilentRank) {
  const Context context = Context::cpu(1);
  const Problem problem{
      .ranks = 3, .dtype = perseid::f32, .kv_heads = 2, .q_len = 24, .kv_len = 24, .value_dim = 16};
  on_threads(3, [&](const Group& group) {
    const Tensors own = take(problem, make(problem, 1), group.rank());
    const ContextAttention plan(context, group, causal_of(8));
    Workspace workspace;
    plan.reserve(workspace);
    if (group.rank() == 2) return;
    perseid_wait_record record{};
    const Ended end = ended([&] {
      plan.forward(nullptr, own.forward(problem), workspace, 300ms, &record);
      // A rank may not need the missing keys; backward needs its part.
      plan.backward(nullptr, own.backward(problem), workspace, 300ms);
    });
    EXPECT_TRUE(end.status == PERSEID_TIMEOUT || end.status == PERSEID_PEER_LOST) << end.status;
    EXPECT_NE(end.sentence.find("rank 2"), std::string::npos) << end.sentence;
    EXPECT_LT(end.seconds, 3);
    const Group survivors = group.shrink(500ms);
    const Problem two{.ranks = 2,
                      .dtype = perseid::f32,
                      .kv_heads = 2,
                      .q_len = 16,
                      .kv_len = 16,
                      .value_dim = 16};
    const Tensors again = take(two, make(two, 2), survivors.rank());
    const ContextAttention second(context, survivors, causal_of(8));
    second.forward(nullptr, again.forward(two), workspace);
    second.backward(nullptr, again.backward(two), workspace);
  });
}

}  // namespace
