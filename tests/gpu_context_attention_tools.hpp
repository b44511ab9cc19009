// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the tests of context-parallel attention over ranks on GPUs share.
#pragma once

#include <numeric>

#include "context_attention_tools.hpp"
#include "gpu_collective_tools.hpp"

namespace gpu_context_attention_tools {

using namespace context_attention_tools;

inline TensorsOf<OnGpu> copy_to_gpu(const Context& context, const Tensors& tensors) {
  const auto on_gpu = [&](const Matrix& matrix) { return OnGpu(context, matrix); };
  return {.query = on_gpu(tensors.query),
          .key = on_gpu(tensors.key),
          .value = on_gpu(tensors.value),
          .bias = on_gpu(tensors.bias),
          .visible = on_gpu(tensors.visible),
          .lengths = on_gpu(tensors.lengths),
          .kv_lens = on_gpu(tensors.kv_lens),
          .out = on_gpu(tensors.out),
          .lse = on_gpu(tensors.lse),
          .grad_out = on_gpu(tensors.grad_out),
          .grad_query = on_gpu(tensors.grad_query),
          .grad_key = on_gpu(tensors.grad_key),
          .grad_value = on_gpu(tensors.grad_value),
          .grad_bias = on_gpu(tensors.grad_bias)};
}

// Results of a rank.
inline Tensors copy_from_gpu(const TensorsOf<OnGpu>& tensors, Tensors results) {
  results.out = tensors.out.get();
  results.lse = tensors.lse.get();
  results.grad_query = tensors.grad_query.get();
  results.grad_key = tensors.grad_key.get();
  results.grad_value = tensors.grad_value.get();
  results.grad_bias = tensors.grad_bias.get();
  return results;
}

// Lengths are in memory of the host.
template <class Arguments>
Arguments with_host_lengths(const Problem& problem, const Tensors& own, Arguments arguments) {
  if (problem.ragged()) arguments.cu_seqlens_q = arguments.cu_seqlens_kv = own.lengths.tensor();
  return arguments;
}

// A plan of a rank with what its executions need.
struct OnRank {
  const Context context;
  const ContextAttention plan;
  const GpuWorkspace forward_workspace, backward_workspace;

  OnRank(const Group& group, const Problem& problem, const Tensors& own,
         perseid::Fusion fusion = perseid::Fusion::kAuto)
      : context(context_of(group.rank())),
        plan(context, group,
             {.attention = options_of(problem, own.query.shape[problem.rows_dim()],
                                      own.key.shape[problem.rows_dim()], problem.ranks),
              .placement = problem.placement,
              .chunks = problem.chunks,
              .fusion = fusion}),
        forward_workspace(context, plan),
        backward_workspace(context, plan, perseid::Direction::kBackward) {}

  Tensors run(const Problem& problem, const Tensors& own) const {
    const TensorsOf<OnGpu> tensors = copy_to_gpu(context, own);
    plan.forward(nullptr, with_host_lengths(problem, own, tensors.forward(problem)),
                 forward_workspace.bytes());
    if (problem.backward)
      plan.backward(nullptr, with_host_lengths(problem, own, tensors.backward(problem)),
                    backward_workspace.bytes());
    context.synchronize();
    return copy_from_gpu(tensors, own);
  }
};

// Two executions with different operands.
inline void expect_as_on_the_cpu(Problem problem, DType dtype = perseid::bf16,
                                 perseid::Fusion fusion = perseid::Fusion::kAuto) {
  problem.dtype = dtype;
  SCOPED_TRACE(testing::Message() << problem.ranks << " ranks, q_len " << problem.q_len
                                  << ", kv_len " << problem.kv_len << ", heads " << problem.heads
                                  << " of " << problem.kv_heads << ", dims " << problem.head_dim
                                  << " and " << problem.value_dim << ", chunks " << problem.chunks);
  std::vector<Tensors> wholes;
  for (uint64_t repeat = 0; repeat < 2; ++repeat) {
    wholes.push_back(make(problem, repeat));
    const Attention attention(Context::cpu(2),
                              options_of(problem, problem.q_len, problem.kv_len, 1));
    Workspace workspace;
    attention.reserve(workspace);
    attention.forward(nullptr, wholes.back().forward(problem), workspace);
    if (problem.backward) attention.backward(nullptr, wholes.back().backward(problem), workspace);
  }
  on_gpu_ranks(problem.ranks, [&](const Group& group) {
    const int32_t rank = group.rank();
    const OnRank on_rank(group, problem, take(problem, make(problem, 0), rank), fusion);
    for (uint64_t repeat = 0; repeat < 2; ++repeat) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << ", execution " << repeat);
      const Tensors result = on_rank.run(problem, take(problem, make(problem, repeat), rank));
      const Tensors wanted = take(problem, wholes[repeat], rank);
      expect_near("out", result.out, wanted.out);
      expect_near("lse", result.lse, wanted.lse);
      if (!problem.backward) continue;
      expect_near("grad_query", result.grad_query, wanted.grad_query);
      expect_near("grad_key", result.grad_key, wanted.grad_key);
      expect_near("grad_value", result.grad_value, wanted.grad_value);
    }
  });
}

// Unfused, forward waits for all keys, and visits them in the same order.
inline void expect_same_bits_unfused(const Problem& problem) {
  on_gpu_ranks(problem.ranks, [&](const Group& group) {
    const Tensors own = take(problem, make(problem, 0), group.rank());
    std::vector<Matrix> results;
    for (const auto fusion : {perseid::Fusion::kFused, perseid::Fusion::kUnfused}) {
      const OnRank on_rank(group, problem, own, fusion);
      results.push_back(on_rank.run(problem, own).out);
    }
    EXPECT_EQ(results[0].bytes, results[1].bytes) << "rank " << group.rank();
  });
}

inline Problem square(int64_t length, int64_t dim, Problem problem = {}) {
  problem.q_len = problem.kv_len = length;
  problem.head_dim = problem.value_dim = dim;
  return problem;
}

inline Problem ragged(std::vector<int32_t> lengths, Problem problem) {
  problem.batch = std::ssize(lengths);
  problem.q_len = problem.kv_len = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  problem.lengths = std::move(lengths);
  return problem;
}

}  // namespace gpu_context_attention_tools
