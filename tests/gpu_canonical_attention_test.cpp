// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Canonical order of attention on GPUs: one GPU and several have the same bits, forward and
// backward, and those of the float64 reference but for rounding.
#include <functional>

#include "gpu_context_attention_tools.hpp"

namespace {

using namespace gpu_context_attention_tools;

constexpr auto kAttentionDeadline = 30s;

class GpuCanonicalAttention : public GpuRanksTest {};

// The rows of a rank, by the GPUs of a group; executed twice.
Tensors attend(const Context& context, const Group& group, Problem problem) {
  const int32_t rank = group.rank();
  problem.ranks = group.size();
  Tensors own = take(problem, make(problem, 1), rank);
  const ContextAttention plan(
      context, group,
      {.attention = options_of(problem, own.query.shape[problem.rows_dim()],
                               own.key.shape[problem.rows_dim()], group.size()),
       .placement = problem.placement,
       .chunks = problem.chunks,
       .canonical = true});
  const TensorsOf<OnGpu> tensors = copy_to_gpu(context, own);
  const GpuWorkspace workspace(context, plan),
      of_backward(context, plan, perseid::Direction::kBackward);
  for (int run = 0; run < 2; ++run) {
    plan.forward(nullptr, with_host_lengths(problem, own, tensors.forward(problem)),
                 workspace.bytes(), kAttentionDeadline);
    if (problem.backward)
      plan.backward(nullptr, with_host_lengths(problem, own, tensors.backward(problem)),
                    of_backward.bytes(), kAttentionDeadline);
  }
  context.synchronize();
  return copy_from_gpu(tensors, std::move(own));
}

using Field = std::pair<const char*, Matrix Tensors::*>;
std::vector<Field> fields_of(const Problem& problem) {
  std::vector<Field> fields = {{"out", &Tensors::out}, {"lse", &Tensors::lse}};
  if (problem.backward)
    fields.insert(fields.end(), {{"grad_query", &Tensors::grad_query},
                                 {"grad_key", &Tensors::grad_key},
                                 {"grad_value", &Tensors::grad_value}});
  if (problem.backward && problem.grad_bias) fields.push_back({"grad_bias", &Tensors::grad_bias});
  return fields;
}

// Against the formula in float64, of long sequences in float32.
void expect_reference(const Problem& problem, const Tensors& result) {
  Tensors wanted = make(problem, 1);
  AttentionOptions options = options_of(problem, problem.q_len, problem.kv_len, 1);
  if (problem.q_len <= 512) options.implementation = "cpu:reference";
  const Attention attention(Context::cpu(2), options);
  Workspace workspace;
  attention.reserve(workspace);
  attention.forward(nullptr, wanted.forward(problem), workspace);
  if (problem.backward) attention.backward(nullptr, wanted.backward(problem), workspace);
  for (const auto& [name, field] : fields_of(problem))
    expect_near(name, result.*field, wanted.*field);
}

void expect_canonical(const Group& group, Problem problem) {
  const int32_t rank = group.rank();
  const Context context = context_of(rank);
  const Tensors whole = attend(context, Group::threads(1)[0], problem);
  if (rank == 0 && group.size() == 2 && !problem.accumulate) expect_reference(problem, whole);
  problem.ranks = group.size();
  const Tensors wanted = take(problem, whole, rank);
  const Tensors result = attend(context, group, problem);
  for (const auto& [name, field] : fields_of(problem)) {
    EXPECT_TRUE((result.*field).bytes == (wanted.*field).bytes) << name << " of rank " << rank;
    EXPECT_NE((result.*field).bytes, Matrix((result.*field).shape, (result.*field).dtype).bytes);
  }
}
void expect_canonical(const std::vector<Problem>& problems) {
  for (const int32_t ranks : rank_counts({2, 4, 8}))
    on_gpu_ranks(ranks, [&](const Group& group) {
      for (const Problem& problem : problems) {
        SCOPED_TRACE(testing::Message()
                     << ranks << " ranks, length " << problem.q_len << ", dims " << problem.head_dim
                     << " and " << problem.value_dim << ", heads " << problem.heads << ", type "
                     << static_cast<int>(problem.dtype) << ", placement "
                     << static_cast<int>(problem.placement) << ", dropout " << problem.dropout);
        expect_canonical(group, problem);
      }
    });
}

std::vector<Problem> all_of(DType dtype, std::vector<Problem> problems) {
  for (Problem& problem : problems) problem.dtype = dtype;
  return problems;
}

constexpr Sharding kContiguous = Sharding::kContiguous;

// ---- In one kernel a direction, on Hopper

// Under masks of whole tiles of queries; where all rows see the same keys of any pieces. Of other
// lengths under masks by the kernels of any GPU.
TEST_F(GpuCanonicalAttention, OfForwardIsThatOfOneGpu) {
  std::vector<Problem> problems = {
      square(2048, 128, {.heads = 4, .kv_heads = 2, .chunks = 2}),
      square(2048, 64, {.batch = 2, .dropout = 0.2}),
      square(4096, 128, {.mask = perseid::causal_bottom_right() & perseid::window(700, -1)}),
      square(1024, 64, {.placement = kContiguous, .chunks = 2}),
      square(1536, 64, {.mask = {}, .dropout = 0.2}),
      square(16 * 21, 128, {.mask = {}, .chunks = 2}),
      square(1280, 128, {.placement = kContiguous, .mask = {}, .chunks = 3}),
      square(1280, 128, {.placement = kContiguous}),
      square(1024, 64, {}),
      square(100, 64, {.placement = kContiguous})};
  for (Problem& problem : problems) problem.backward = false;
  expect_canonical(all_of(perseid::bf16, problems));
}

// Of grouped heads, in clusters; tiles of 128 queries; split by products, with gradients that are
// added to; every kind of mask, dropout and bias.
TEST_F(GpuCanonicalAttention, OfGradientsIsThatOfOneGpu) {
  Problem wide = square(1024, 192, {.placement = kContiguous});
  wide.value_dim = 128;
  wide.accumulate = true;
  expect_canonical(all_of(perseid::bf16,
                          {square(2048, 128, {.heads = 4, .kv_heads = 2, .chunks = 2}),
                           square(2048, 64, {.layout = perseid::bhsd, .batch = 2, .kv_lens = true}),
                           square(1024, 128, {.placement = kContiguous, .mask = {}}),
                           square(2048, 128, {.mask = perseid::window(300, 130)}),
                           square(2048, 64, {.heads = 3, .kv_heads = 3, .dropout = 0.2}),
                           square(1024, 64, {.placement = kContiguous, .bias = true}), wide}));
}

// ---- A plan for each leaf

// Everything that CPUs take: pieces of rows that fill no tile, bias and its gradient, visible,
// lengths of keys, dropout, windows, gradients that are added to, ragged batches, odd dims, and
// those that are cut.
std::vector<Problem> problems_of_leaves() {
  const Problem grouped{.batch = 2,
                        .heads = 4,
                        .kv_heads = 2,
                        .q_len = 16 * 9,
                        .kv_len = 16 * 21,
                        .head_dim = 64,
                        .value_dim = 64,
                        .chunks = 2};
  Problem accumulating = grouped;
  accumulating.accumulate = true;
  accumulating.dropout = 0.2;
  accumulating.layout = perseid::bhsd;
  const std::vector<int32_t> lengths = {16 * 7, 0, 16 * 21, 16, 16 * 3};
  return {
      grouped,
      accumulating,
      square(16 * 20, 64, {.mask = perseid::causal_top_left() & perseid::window(70, -1)}),
      square(8 * 25, 64, {.placement = kContiguous, .mask = {}, .heads = 4}),
      square(16 * 11, 64, {.mask = {}, .bias = true, .grad_bias = true}),
      square(8 * 9, 40, {.placement = kContiguous, .batch = 3, .visible = true, .kv_lens = true}),
      ragged(lengths, {.mask = {},
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 64,
                       .value_dim = 64,
                       .bias = true,
                       .visible = true}),
      ragged(lengths, {.placement = kContiguous,
                       .mask = perseid::causal_bottom_right() & perseid::window(33, -1),
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 64,
                       .value_dim = 64,
                       .dropout = 0.2,
                       .accumulate = true}),
      square(16 * 3, 13),
      square(16 * 2, 320, {.heads = 1}),
  };
}

class GpuCanonicalLeaves : public GpuCanonicalAttention,
                           public testing::WithParamInterface<DType> {};
INSTANTIATE_TEST_SUITE_P(, GpuCanonicalLeaves,
                         testing::Values(perseid::bf16, perseid::f32, perseid::f64));

TEST_P(GpuCanonicalLeaves, AreThoseOfOneGpu) {
  expect_canonical(all_of(GetParam(), problems_of_leaves()));
}

// Heads that cuda:reference alone takes. Behind the rows of a ragged batch's piece are those of
// others.
TEST_F(GpuCanonicalAttention, OfTheReferenceIsThatOfOneGpu) {
  std::vector<Problem> problems = {square(16, 2064, {.heads = 1})};
  for (const Sharding placement : {Sharding::kZigzag, kContiguous})
    problems.push_back(ragged(
        {16, 16 * 11},
        {.placement = placement, .heads = 1, .kv_heads = 1, .head_dim = 2064, .value_dim = 2064}));
  expect_canonical(all_of(perseid::f32, std::move(problems)));
}

}  // namespace
