// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Context-parallel attention in canonical order over threads as ranks: the same bits for 1, 2, 4
// and 8 ranks, forward and backward, and what is refused.
#include "context_attention_tools.hpp"

extern thread_local int64_t allocations_of_this_thread;  // of counting_new.cpp

namespace {

using namespace context_attention_tools;

// The bits of one rank with all rows, on any number of ranks. Pieces of rows begin and end within
// groups of rows and blocks of keys.
void expect_canonical(const Problem& problem, const std::vector<int32_t>& sizes) {
  Tensors whole = make(problem, 1);
  AttentionOptions options = options_of(problem, problem.q_len, problem.kv_len, 1);
  options.implementation = "cpu:tiled";
  const Attention attention(Context::cpu(2), options);
  Workspace memory;
  attention.reserve(memory);
  attention.forward(nullptr, whole.forward(problem), memory);
  for (const int32_t ranks : sizes)
    on_threads(ranks, [&](const Group& group) {
      Problem part = problem;
      part.ranks = ranks;
      const Tensors own = take(part, make(part, 1), group.rank());
      const Tensors wanted = take(part, whole, group.rank());
      const ContextAttention plan(Context::cpu(1), group,
                                  {.attention = options_of(part, own.query.shape[part.rows_dim()],
                                                           own.key.shape[part.rows_dim()], ranks),
                                   .placement = part.placement,
                                   .chunks = part.chunks,
                                   .canonical = true});
      Workspace workspace;
      plan.reserve(workspace);
      if (group.rank() == 0) std::this_thread::sleep_for(2ms);
      plan.forward(nullptr, own.forward(part), workspace);
      EXPECT_EQ(own.out.bytes, wanted.out.bytes) << "rank " << group.rank() << " of " << ranks;
      EXPECT_EQ(own.lse.bytes, wanted.lse.bytes) << "rank " << group.rank() << " of " << ranks;
    });
}

TEST(ContextAttention, CanonicalOrderIsThatOfOneRank) {
  for (const DType dtype : {perseid::f32, perseid::bf16})
    for (const Sharding placement : {Sharding::kContiguous, Sharding::kZigzag})
      expect_canonical({.dtype = dtype,
                        .placement = placement,
                        .heads = 4,
                        .kv_heads = 2,
                        .q_len = 16 * 41,
                        .kv_len = 16 * 45,
                        .dropout = placement == Sharding::kZigzag ? 0.2 : 0,
                        .chunks = 2,
                        .backward = false},
                       {1, 2, 4, 8});
  const Problem windowed{.dtype = perseid::f32,
                         .mask = perseid::causal_top_left() & perseid::window(301, -1),
                         .q_len = 6 * 130,
                         .kv_len = 6 * 130,
                         .backward = false};
  expect_canonical(windowed, {1, 3});
  Problem others = windowed;
  others.mask = {};
  others.bias = true;
  expect_canonical(others, {2, 3});
  others = windowed;
  others.placement = Sharding::kContiguous;
  others.shards = {500, 3, 277};
  expect_canonical(others, {3});
  others = windowed;
  others.lengths = {520, 8, 264};
  others.batch = 3;
  others.q_len = others.kv_len = 792;
  expect_canonical(others, {2, 4});
}

// Gradients of all rows by ranks in canonical order, each with its number of threads.
Tensors canonical_gradients(Problem problem, int32_t ranks) {
  problem.ranks = ranks;
  Tensors whole = make(problem, 1);
  const auto put = [](Matrix& all, const Matrix& part, size_t dim,
                      const std::vector<int64_t>& rows) {
    auto outer = size_t{1}, inner = static_cast<size_t>(bytes_of(part.dtype));
    for (size_t d = 0; d < dim; ++d) outer *= static_cast<size_t>(part.shape[d]);
    for (size_t d = dim + 1; d < part.shape.size(); ++d)
      inner *= static_cast<size_t>(part.shape[d]);
    const auto length = static_cast<size_t>(all.shape[dim]);
    for (size_t o = 0; o < outer; ++o)
      for (size_t i = 0; i < rows.size(); ++i)
        std::memcpy(all.bytes.data() + (o * length + static_cast<size_t>(rows[i])) * inner,
                    part.bytes.data() + (o * rows.size() + i) * inner, inner);
  };
  on_threads(ranks, [&](const Group& group) {
    const int32_t rank = group.rank();
    const Tensors own = take(problem, make(problem, 1), rank);
    const size_t dim = problem.rows_dim();
    const ContextAttention plan(
        Context::cpu(rank % 2 + 1), group,
        {.attention = options_of(problem, own.query.shape[dim], own.key.shape[dim], ranks),
         .placement = problem.placement,
         .chunks = problem.chunks,
         .canonical = true});
    Workspace workspace;
    plan.reserve(workspace);
    if (rank == 0) std::this_thread::sleep_for(2ms);
    plan.forward(nullptr, own.forward(problem), workspace);
    const auto backward = own.backward(problem);
    const int64_t before = allocations_of_this_thread;
    plan.backward(nullptr, backward, workspace);
    if (!are_hosts()) {
      EXPECT_EQ(allocations_of_this_thread, before) << "rank " << rank;
    }
    const std::vector<int64_t> queries = rows_of(problem, rank, problem.q_len);
    const std::vector<int64_t> keys = rows_of(problem, rank, problem.kv_len);
    put(whole.grad_query, own.grad_query, dim, queries);
    put(whole.grad_key, own.grad_key, dim, keys);
    put(whole.grad_value, own.grad_value, dim, keys);
    if (problem.grad_bias) put(whole.grad_bias, own.grad_bias, 2, queries);
  });
  return whole;
}

// The same bits for 1, 2, 4 and 8 ranks, and those of the attention but for rounding.
void expect_canonical_gradients(Problem problem) {
  if (problem.ragged()) {
    problem.batch = std::ssize(problem.lengths);
    problem.q_len = problem.kv_len = 0;
    for (const int64_t length : problem.lengths) problem.q_len = problem.kv_len += length;
  }
  SCOPED_TRACE(testing::Message() << "placement " << static_cast<int>(problem.placement)
                                  << ", layout " << static_cast<int>(problem.layout) << ", dtype "
                                  << static_cast<int>(problem.dtype));
  Tensors plain = make(problem, 1);
  const Attention attention(Context::cpu(1), options_of(problem, problem.q_len, problem.kv_len, 1));
  Workspace memory;
  attention.reserve(memory);
  attention.forward(nullptr, plain.forward(problem), memory);
  attention.backward(nullptr, plain.backward(problem), memory);
  const Tensors alone = canonical_gradients(problem, 1);
  expect_near("grad_query", alone.grad_query, plain.grad_query);
  expect_near("grad_key", alone.grad_key, plain.grad_key);
  expect_near("grad_value", alone.grad_value, plain.grad_value);
  if (problem.grad_bias) expect_near("grad_bias", alone.grad_bias, plain.grad_bias);
  for (const int32_t ranks : {2, 4, 8}) {
    const Tensors together = canonical_gradients(problem, ranks);
    EXPECT_EQ(together.grad_query.bytes, alone.grad_query.bytes) << ranks << " ranks";
    EXPECT_EQ(together.grad_key.bytes, alone.grad_key.bytes) << ranks << " ranks";
    EXPECT_EQ(together.grad_value.bytes, alone.grad_value.bytes) << ranks << " ranks";
    EXPECT_EQ(together.grad_bias.bytes, alone.grad_bias.bytes) << ranks << " ranks";
  }
}

TEST(ContextAttention, CanonicalGradientsAreThoseOfOneRank) {
  for (const DType dtype : {perseid::f32, perseid::bf16, perseid::f64})
    for (const Sharding placement : {Sharding::kContiguous, Sharding::kZigzag})
      expect_canonical_gradients(
          {.dtype = dtype,
           .layout = placement == Sharding::kZigzag ? perseid::bhsd : perseid::bshd,
           .placement = placement,
           .batch = 2,
           .heads = 4,
           .kv_heads = 2,
           .q_len = 16 * 9,
           .kv_len = 16 * 21,
           .dropout = placement == Sharding::kZigzag ? 0.2 : 0,
           .chunks = 2,
           .accumulate = dtype == perseid::f32});
  // Keys that some leaves do not see, and a bias of each query.
  const Problem windowed{.dtype = perseid::f32,
                         .mask = perseid::causal_top_left() & perseid::window(70, -1),
                         .q_len = 16 * 20,
                         .kv_len = 16 * 20};
  expect_canonical_gradients(windowed);
  Problem others = windowed;
  others.mask = {};
  others.bias = others.grad_bias = true;
  expect_canonical_gradients(others);
  others.batch = 3;
  others.accumulate = true;
  others.placement = Sharding::kContiguous;
  expect_canonical_gradients(others);
  others.bias = others.grad_bias = others.accumulate = false;
  others.visible = true;
  expect_canonical_gradients(others);
  others.visible = false;
  others.kv_lens = true;
  others.batch = 2;
  expect_canonical_gradients(others);
}

// A leaf is a piece of every sequence, also of those that are empty or of a row in each piece.
TEST(ContextAttention, CanonicalGradientsOfRaggedBatches) {
  for (const DType dtype : {perseid::f32, perseid::bf16})
    for (const Sharding placement : {Sharding::kContiguous, Sharding::kZigzag}) {
      Problem problem{.dtype = dtype,
                      .layout = placement == Sharding::kZigzag ? perseid::bhsd : perseid::bshd,
                      .placement = placement,
                      .heads = 4,
                      .kv_heads = 2,
                      .lengths = {16 * 7, 0, 16 * 21, 16, 16 * 3}};
      expect_canonical_gradients(problem);
      problem.mask = perseid::causal_bottom_right() & perseid::window(33, -1);
      problem.dropout = 0.2;
      problem.accumulate = true;
      expect_canonical_gradients(problem);
      problem.mask = {};
      problem.dropout = 0;
      problem.bias = problem.visible = true;
      expect_canonical_gradients(problem);
    }
}

TEST(ContextAttention, RefusesGradientsWithoutACanonicalOrder) {
  const auto expect_refused = [](int32_t ranks, const perseid::ContextAttentionOptions& options,
                                 const char* why) {
    on_threads(ranks, [&](const Group& group) {
      const Ended end =
          ended([&] { const ContextAttention unused(Context::cpu(1), group, options); });
      EXPECT_EQ(end.status, PERSEID_UNSUPPORTED) << end.sentence;
      EXPECT_NE(end.sentence.find(why), std::string::npos) << end.sentence;
    });
  };
  perseid::ContextAttentionOptions options{
      .attention = {.heads = 1, .q_len = 8, .kv_len = 4, .head_dim = 8, .backward = true},
      .canonical = true};
  expect_refused(3, options, "3 ranks, expected 1, 2, 4 or 8 ranks");
  options.attention.q_len = 6;
  expect_refused(2, options,
                 "q_len is 6 on each of 2 ranks, expected a multiple of 4 with gradients in "
                 "canonical order, which cuts a sequence into 8 equal pieces; pad the queries");
  options.attention.q_len = 8;
  options.attention.bias = {1, 1, 1, 8};
  options.attention.gradients = PERSEID_GRAD_BIAS;
  expect_refused(2, options, "bias_shape[2] is 1, expected q_len, 8, in canonical order");
  options.attention.bias = {1, 1, 8, 8};
  options.attention.gradients = PERSEID_GRAD_QUERY;
  options.attention.ragged = true;
  options.attention.total_q = options.attention.total_kv = 8;
  expect_refused(2, options, "ragged is 1 and bias_shape[2] is 8, expected 1");
  options.attention = {.heads = 1, .q_len = 8, .kv_len = 4, .head_dim = 8, .backward = true};
  on_threads(2, [&](const Group& group) {
    perseid::ContextAttentionOptions own = options;
    own.attention.q_len = group.rank() == 0 ? 8 : 12;
    const Ended end = ended([&] { const ContextAttention unused(Context::cpu(1), group, own); });
    EXPECT_EQ(end.status, PERSEID_UNSUPPORTED) << end.sentence;
    EXPECT_NE(end.sentence.find("q_len is 12 on rank 1 and 8 on rank 0, expected the same on all"),
              std::string::npos)
        << end.sentence;
  });
}

// Of which one rank alone may not be able to give the sums.
TEST(ContextAttention, RefusesGradientsOfOneRanksBiasOnAll) {
  std::vector<Ended> ends(2);
  on_threads(2, [&](const Group& group) {
    const int32_t rank = group.rank();
    Problem problem{.dtype = perseid::f32, .q_len = 64, .kv_len = 64, .bias = true};
    problem.grad_bias = true;
    perseid::ContextAttentionOptions options{.attention = options_of(problem, 32, 32, 1),
                                             .placement = problem.placement,
                                             .deadline = 5s,
                                             .canonical = true};
    if (rank == 0) options.attention.bias = {1, 2, 1, 64};
    const auto make = [&] { ContextAttention(Context::cpu(1), group, options); };
    ends[static_cast<size_t>(rank)] = ended(make);
    options.attention.bias = {1, 2, 32, 64};
    EXPECT_EQ(ended(make).sentence, "");
  });
  for (const Ended& end : ends) {
    EXPECT_EQ(end.status, PERSEID_UNSUPPORTED);
    EXPECT_EQ(end.sentence, ends[0].sentence);
    EXPECT_NE(end.sentence.find("rank 0: context-attention: gradients has PERSEID_GRAD_BIAS and "
                                "bias_shape[2] is 1, expected q_len, 32"),
              std::string::npos)
        << end.sentence;
  }
}

TEST(ContextAttention, RefusesRaggedBatchesThatHaveNoLeaves) {
  Problem problem{.dtype = perseid::f32, .lengths = {32, 40}, .visible = true};
  problem.batch = 2;
  problem.q_len = problem.kv_len = 72;
  on_threads(2, [&](const Group& group) {
    Tensors own = take(problem, make(problem, 1), group.rank());
    own.visible = Matrix({1, 1, 1, 48}, perseid::u8, 1);
    perseid::ContextAttentionOptions options{.attention = options_of(problem, 36, 36, 2),
                                             .placement = problem.placement,
                                             .canonical = true};
    options.attention.q_len = options.attention.kv_len = 24;
    const ContextAttention plan(Context::cpu(1), group, options);
    Workspace workspace;
    plan.reserve(workspace);
    const auto expect_refused = [&](const char* why) {
      const Ended end = ended([&] { plan.backward(nullptr, own.backward(problem), workspace); });
      EXPECT_EQ(end.status, PERSEID_INVALID_ARGUMENT) << end.sentence;
      EXPECT_NE(end.sentence.find(why), std::string::npos) << end.sentence;
    };
    expect_refused("cu_seqlens_q[2] is 72, expected a multiple of 16, the pieces");
    own.lengths = whole_numbers({0, 32, 64});
    own.visible = Matrix({1, 1, 24, 48}, perseid::u8, 1);
    expect_refused("visible has a row for each query, expected one for all of them");
  });
}

}  // namespace
