// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention in canonical order on GPUs: one GPU and several have the same bits.
#include "gpu_context_attention_tools.hpp"

namespace {

using namespace collective_tools;

constexpr auto kAttentionDeadline = 30s;

class GpuCanonicalOrder : public GpuRanksTest {};

using context_attention_tools::ContextAttention;
using context_attention_tools::Tensors;
using context_attention_tools::TensorsOf;

// The rows of a rank, by the GPUs of a group; executed twice.
Tensors attend(const Context& context, const Group& group,
               context_attention_tools::Problem problem) {
  const int32_t rank = group.rank();
  problem.ranks = group.size();
  Tensors own =
      context_attention_tools::take(problem, context_attention_tools::make(problem, 1), rank);
  const ContextAttention plan(context, group,
                              {.attention = context_attention_tools::options_of(
                                   problem, own.query.shape[problem.rows_dim()],
                                   own.key.shape[problem.rows_dim()], group.size()),
                               .placement = problem.placement,
                               .chunks = problem.chunks,
                               .canonical = true});
  const TensorsOf<OnGpu> tensors = gpu_context_attention_tools::copy_to_gpu(context, own);
  const GpuWorkspace workspace(context, plan),
      of_backward(context, plan, perseid::Direction::kBackward);
  for (int run = 0; run < 2; ++run) {
    plan.forward(nullptr, tensors.forward(problem), workspace.bytes(), kAttentionDeadline);
    if (problem.backward)
      plan.backward(nullptr, tensors.backward(problem), of_backward.bytes(), kAttentionDeadline);
  }
  context.synchronize();
  return gpu_context_attention_tools::copy_from_gpu(tensors, std::move(own));
}

context_attention_tools::Problem square(int64_t length, int64_t dim,
                                        context_attention_tools::Problem problem = {}) {
  problem.dtype = perseid::bf16;
  problem.q_len = problem.kv_len = length;
  problem.head_dim = problem.value_dim = dim;
  return problem;
}

TEST_F(GpuCanonicalOrder, OfAttentionIsThatOfOneGpu) {
  using perseid::Sharding;
  for (context_attention_tools::Problem problem :
       {square(2048, 128, {.heads = 4, .kv_heads = 2, .chunks = 2}), square(1024, 64, {.batch = 2}),
        square(1536, 64, {.dropout = 0.2}),
        square(4096, 128, {.mask = perseid::causal_bottom_right() & perseid::window(700, -1)}),
        square(1280, 128, {.placement = Sharding::kContiguous, .mask = {}, .chunks = 3}),
        square(100, 64, {.placement = Sharding::kContiguous})}) {
    SCOPED_TRACE(testing::Message() << "length " << problem.q_len << ", dim " << problem.head_dim);
    problem.backward = false;
    for (const int32_t ranks : rank_counts({2, 4}))
      on_gpu_ranks(ranks, [&](const Group& group) {
        const Context context = context_of(group.rank());
        const Tensors whole = attend(context, Group::threads(1)[0], problem);
        context_attention_tools::Problem shared = problem;
        shared.ranks = group.size();
        const Tensors wanted = context_attention_tools::take(shared, whole, group.rank());
        const Tensors result = attend(context, group, problem);
        EXPECT_TRUE(result.out.bytes == wanted.out.bytes) << "rank " << group.rank();
        EXPECT_TRUE(result.lse.bytes == wanted.lse.bytes) << "rank " << group.rank();
        EXPECT_NE(result.out.bytes, Matrix(result.out.shape, perseid::bf16).bytes);
      });
  }
}

// Of grouped heads, in clusters; tiles of 128 queries; split by products, with gradients that are
// added to; every kind of mask, dropout and bias.
std::vector<context_attention_tools::Problem> problems_of_gradients() {
  using perseid::Sharding;
  const Sharding contiguous = Sharding::kContiguous;
  context_attention_tools::Problem wide = square(1024, 192, {.placement = contiguous});
  wide.value_dim = 128;
  wide.accumulate = true;
  return {square(2048, 128, {.heads = 4, .kv_heads = 2, .chunks = 2}),
          square(2048, 64, {.layout = perseid::bhsd, .batch = 2, .kv_lens = true}),
          square(1024, 128, {.placement = contiguous, .mask = {}}),
          square(2048, 128, {.mask = perseid::window(300, 130)}),
          square(2048, 64, {.heads = 3, .kv_heads = 3, .dropout = 0.2}),
          square(1024, 64, {.placement = contiguous, .bias = true}),
          wide};
}

void expect_gradients_of_one_gpu(const Group& group, context_attention_tools::Problem problem) {
  const int32_t rank = group.rank();
  const Context context = context_of(rank);
  const Tensors whole = attend(context, Group::threads(1)[0], problem);
  problem.ranks = group.size();
  const Tensors wanted = context_attention_tools::take(problem, whole, rank);
  const Tensors result = attend(context, group, problem);
  for (const auto& [name, field] : {std::pair{"out", &Tensors::out},
                                    {"grad_query", &Tensors::grad_query},
                                    {"grad_key", &Tensors::grad_key},
                                    {"grad_value", &Tensors::grad_value}})
    EXPECT_TRUE((result.*field).bytes == (wanted.*field).bytes) << name << " of rank " << rank;
  if (rank != 0 || group.size() != 2 || problem.accumulate) return;
  Tensors on_cpu = context_attention_tools::make(problem, 1);
  const perseid::Attention attention(
      Context::cpu(2),
      context_attention_tools::options_of(problem, problem.q_len, problem.kv_len, 1));
  perseid::Workspace workspace;
  attention.reserve(workspace);
  attention.forward(nullptr, on_cpu.forward(problem), workspace);
  attention.backward(nullptr, on_cpu.backward(problem), workspace);
  context_attention_tools::expect_near("grad_query", whole.grad_query, on_cpu.grad_query);
  context_attention_tools::expect_near("grad_key", whole.grad_key, on_cpu.grad_key);
  context_attention_tools::expect_near("grad_value", whole.grad_value, on_cpu.grad_value);
}

TEST_F(GpuCanonicalOrder, OfGradientsIsThatOfOneGpu) {
  for (const int32_t ranks : rank_counts({2, 4, 8}))
    on_gpu_ranks(ranks, [&](const Group& group) {
      for (const context_attention_tools::Problem& problem : problems_of_gradients()) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, length " << problem.q_len << ", dim "
                                        << problem.head_dim << ", heads " << problem.heads);
        expect_gradients_of_one_gpu(group, problem);
      }
    });
}

TEST_F(GpuCanonicalOrder, OfAttentionIsRefusedWhereItCannotHold) {
  on_gpu_ranks(2, [&](const Group& group) {
    const Context context = context_of(group.rank());
    const auto refused = [&](context_attention_tools::Problem problem, const char* part) {
      problem.ranks = 2;
      const int64_t rows = problem.q_len / 2;
      const Ended end = ended([&] {
        ContextAttention(context, group,
                         {.attention = context_attention_tools::options_of(problem, rows, rows, 2),
                          .placement = problem.placement,
                          .canonical = true});
      });
      EXPECT_EQ(end.status, PERSEID_UNSUPPORTED) << end.sentence;
      EXPECT_NE(end.sentence.find(part), std::string::npos) << end.sentence;
    };
    refused(square(2048, 64, {.bias = true, .grad_bias = true}), "PERSEID_GRAD_BIAS");
    refused(square(1024, 64), "a multiple of 1024, got q_len 512");
    refused(square(1024, 64, {.batch = 2, .lengths = {512, 512}}), "ragged is 1");
  });
}

}  // namespace
