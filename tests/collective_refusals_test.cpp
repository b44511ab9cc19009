// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Arguments that one rank gets wrong: an execution refuses them before it begins, while the others
// are in theirs, and the corrected call is that rank's part of the same step.
#include "context_attention_tools.hpp"

namespace {

using namespace context_attention_tools;
using perseid::AllGatherMatmul;
using perseid::Fusion;
using perseid::MatmulReduce;
using perseid::Scaling;

constexpr auto kDeadline = 2s;  // of what waits for a rank that is a step behind
using Memory = std::span<std::byte>;

// A wrong call of a step, and how it is refused.
struct Wrong {
  std::string part;  // of the sentence
  std::function<void(uint64_t step)> call;
  perseid_status status = PERSEID_INVALID_ARGUMENT;
};

// Workspaces that are refused where the plan needs one. `execute`: with right tensors.
void add_workspaces(size_t bytes, const std::function<void(uint64_t, Memory)>& execute,
                    std::vector<Wrong>* wrong) {
  if (bytes == 0) return;
  wrong->push_back({"the workspace has 0 bytes", [=](uint64_t step) { execute(step, {}); },
                    PERSEID_WORKSPACE_TOO_SMALL});
  wrong->push_back({"the workspace is NULL", [=](uint64_t step) {
                      execute(step, Memory(static_cast<std::byte*>(nullptr), bytes));
                    }});
}

// Rank 1 makes each wrong call once, before one of its steps. run(step): the results.
template <class Run>
void expect_refused(const Group& group, const std::vector<Wrong>& wrong, const Run& run) {
  std::vector<std::vector<std::byte>> wanted;
  for (uint64_t step = 0; step < 2; ++step) wanted.push_back(run(step));
  ASSERT_NE(wanted[0], wanted[1]);
  for (size_t i = 0; i < wrong.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "rank " << group.rank() << ", " << wrong[i].part);
    if (group.rank() == 1) {
      std::this_thread::sleep_for(2ms);
      const Ended end = ended([&] { wrong[i].call(i % 2); });
      EXPECT_EQ(end.status, wrong[i].status) << end.sentence;
      EXPECT_NE(end.sentence.find(wrong[i].part), std::string::npos) << end.sentence;
    }
    // Twice, so that a rank is seen that is a step ahead of the others.
    for (const uint64_t step : {i % 2, 1 - i % 2}) {
      std::vector<std::byte> results;
      const Ended end = ended([&] { results = run(step); });
      ASSERT_EQ(end.status, PERSEID_OK) << end.sentence;
      ASSERT_TRUE(results == wanted[step]);
    }
  }
  EXPECT_EQ(group.info().failed_rank, -1);
}

void refuse_gathered_products(Fusion fusion) {
  const Context context = Context::cpu(1);
  on_threads(3, [&](const Group& group) {
    const int64_t m = 12, k = 20, n = 8, all = m * group.size();
    const AllGatherMatmul plan(context, group,
                               {.m = m,
                                .k = k,
                                .products = {{.n = n, .bias = true}, {.n = n}},
                                .chunks = 2,
                                .fusion = fusion});
    Workspace workspace;
    plan.reserve(workspace);
    const Matrix a[] = {Matrix::random({m, k}, perseid::f32, 1),
                        Matrix::random({m, k}, perseid::f32, 2)};
    const Matrix b = Matrix::random({k, n}, perseid::f32, 3), bias({n}, perseid::f32, 0),
                 c({all, n}, perseid::f32), second({all, n}, perseid::f32);
    using With = perseid::AllGatherMatmulArguments;
    const auto right = [&](uint64_t step) {
      return With{.a = a[step].tensor(),
                  .b = {b.tensor(), b.tensor()},
                  .bias = {bias.tensor(), {}},
                  .c = {c.tensor(), second.tensor()},
                  .deadline = kDeadline};
    };
    const auto wrong = [&](const char* part, const std::function<void(With&)>& change) {
      return Wrong{part, [&, change](uint64_t step) {
                     With with = right(step);
                     change(with);
                     plan.execute(with, workspace);
                   }};
    };
    const Matrix wide({k, n + 1}, perseid::f32), few({all - 1, n}, perseid::f32);
    std::vector<Wrong> calls = {
        wrong("b has n 9", [&](With& with) { with.b[0] = wide.tensor(); }),
        wrong("b is NULL", [&](With& with) { with.b[1] = {}; }),
        wrong("c has m 35", [&](With& with) { with.c[0] = few.tensor(); }),
        wrong("c is NULL", [&](With& with) { with.c[1] = {}; }),
        wrong("c is written, but shares memory with b",
              [&](With& with) { with.b[0] = c.tensor().slice(0, 0, k); }),
        wrong("bias is NULL", [&](With& with) { with.bias[0] = {}; }),
        wrong("bias is given", [&](With& with) { with.bias[1] = bias.tensor(); }),
        wrong("scale_a is given", [&](With& with) { with.scale_a = bias.tensor(); })};
    add_workspaces(
        workspace.size(), [&](uint64_t step, Memory memory) { plan.execute(right(step), memory); },
        &calls);
    expect_refused(group, calls, [&](uint64_t step) {
      plan.execute(right(step), workspace);
      std::vector<std::byte> results = c.bytes;
      results.insert(results.end(), second.bytes.begin(), second.bytes.end());
      return results;
    });
  });
}

TEST(WrongArguments, OfGatheredProductsAreRefusedBeforeTheShardIsSent) {
  for (const Fusion fusion : {Fusion::kFused, Fusion::kUnfused}) refuse_gathered_products(fusion);
}

TEST(WrongArguments, AreScalesThatAllRanksGive) {
  const Context context = Context::cpu(1);
  for (const bool sharded : {false, true})
    on_threads(3, [&](const Group& group) {
      const int64_t m = 6, k = 32, n = 8, all = m * group.size();
      const AllGatherMatmul plan(context, group,
                                 {.dtype = perseid::f8e4m3,
                                  .m = m,
                                  .k = k,
                                  .products = {{.n = n}},
                                  .scaling = Scaling::kRow,
                                  .sharded_scales = sharded});
      Workspace workspace;
      plan.reserve(workspace);
      const Matrix a[] = {Matrix::random({m, k}, perseid::f8e4m3, 1),
                          Matrix::random({m, k}, perseid::f8e4m3, 2)};
      const Matrix b = Matrix::random({k, n}, perseid::f8e4m3, 3), c({all, n}, perseid::f32),
                   scale_a = random_scales({sharded ? m : all}, 4), scale_b = random_scales({n}, 5),
                   few = random_scales({5}, 6);
      using With = perseid::AllGatherMatmulArguments;
      const auto right = [&](uint64_t step) {
        return With{.a = a[step].tensor(),
                    .b = {b.tensor()},
                    .c = {c.tensor()},
                    .deadline = kDeadline,
                    .scale_a = scale_a.tensor(),
                    .scale_b = {scale_b.tensor()}};
      };
      const auto wrong = [&](const char* part, const std::function<void(With&)>& change) {
        return Wrong{part, [&, change](uint64_t step) {
                       With with = right(step);
                       change(with);
                       plan.execute(with, workspace);
                     }};
      };
      expect_refused(group,
                     {wrong("scale_a has m 5", [&](With& with) { with.scale_a = few.tensor(); }),
                      wrong("scale_b has n 5", [&](With& with) { with.scale_b[0] = few.tensor(); }),
                      wrong("scale_a is NULL", [&](With& with) { with.scale_a = {}; })},
                     [&](uint64_t step) {
                       plan.execute(right(step), workspace);
                       return c.bytes;
                     });
    });
}

void refuse_reduced_products(bool all_reduce, bool canonical) {
  const Context context = Context::cpu(1);
  on_threads(canonical ? 2 : 3, [&](const Group& group) {
    const int64_t m = 12, k = 20, n = 8;
    const MatmulReduce plan(
        context, group, {.all_reduce = all_reduce, .m = m, .n = n, .k = k, .canonical = canonical});
    Workspace workspace;
    plan.reserve(workspace);
    const Matrix a[] = {Matrix::random({m, k}, perseid::f32, 1),
                        Matrix::random({m, k}, perseid::f32, 2)};
    const Matrix b = Matrix::random({k, n}, perseid::f32, 3),
                 c({all_reduce ? m : m / group.size(), n}, perseid::f32);
    using With = perseid::MatmulReduceArguments;
    const auto right = [&](uint64_t step) {
      return With{.a = a[step].tensor(), .b = b.tensor(), .c = c.tensor(), .deadline = kDeadline};
    };
    const auto wrong = [&](const char* part, const std::function<void(With&)>& change) {
      return Wrong{part, [&, change](uint64_t step) {
                     With with = right(step);
                     change(with);
                     plan.execute(with, workspace);
                   }};
    };
    const Matrix wide({k, n + 1}, perseid::f32);
    std::vector<Wrong> calls = {
        wrong("a is NULL", [&](With& with) { with.a = {}; }),
        wrong("a has m 20", [&](With& with) { with.a = b.tensor(); }),
        wrong("b has n 9", [&](With& with) { with.b = wide.tensor(); }),
        wrong("c is NULL", [&](With& with) { with.c = {}; }),
        wrong("scale_b is given", [&](With& with) { with.scale_b = b.tensor(); })};
    add_workspaces(
        workspace.size(), [&](uint64_t step, Memory memory) { plan.execute(right(step), memory); },
        &calls);
    expect_refused(group, calls, [&](uint64_t step) {
      plan.execute(right(step), workspace);
      return c.bytes;
    });
  });
}

TEST(WrongArguments, OfReducedProductsAreRefusedBeforeTheyBegin) {
  for (const bool all_reduce : {false, true})
    for (const bool canonical : {false, true}) refuse_reduced_products(all_reduce, canonical);
}

struct Attending {
  Problem problem;
  bool canonical = false;
  Fusion fusion = Fusion::kAuto;
};

// Wrong calls of forward, then of backward, of which each step has both.
void refuse_attention(const Attending& of) {
  const Problem& problem = of.problem;
  const Context context = Context::cpu(1);
  on_threads(problem.ranks, [&](const Group& group) {
    const Tensors own[] = {take(problem, make(problem, 1), group.rank()),
                           take(problem, make(problem, 2), group.rank())};
    const size_t dim = problem.rows_dim();
    const ContextAttention plan(context, group,
                                {.attention = options_of(problem, own[0].query.shape[dim],
                                                         own[0].key.shape[dim], problem.ranks),
                                 .placement = problem.placement,
                                 .canonical = of.canonical,
                                 .fusion = of.fusion});
    size_t forward_bytes = 0, backward_bytes = 0;
    EXPECT_EQ(perseid_plan_workspace_size(plan.get(), PERSEID_FORWARD, &forward_bytes), PERSEID_OK);
    EXPECT_EQ(perseid_plan_workspace_size(plan.get(), PERSEID_BACKWARD, &backward_bytes),
              PERSEID_OK);
    Workspace workspace;
    plan.reserve(workspace);
    const auto forward = [&](uint64_t step, Memory memory, const auto& change) {
      perseid::AttentionForward with = own[step].forward(problem);
      change(with);
      plan.forward(nullptr, with, memory, kDeadline);
    };
    const auto backward = [&](uint64_t step, Memory memory, const auto& change) {
      perseid::AttentionBackward with = own[step].backward(problem);
      change(with);
      plan.backward(nullptr, with, memory, kDeadline);
    };
    const auto nothing = [](auto&) {};
    const Tensor other = own[0].lengths.tensor();  // of another type and shape
    std::vector<Wrong> calls;
    const auto add = [&](const char* part,
                         const std::function<void(perseid::AttentionForward&)>& change) {
      calls.push_back({part, [&, change](uint64_t step) { forward(step, workspace, change); }});
    };
    add("query is NULL", [](auto& with) { with.query = {}; });
    add("query has dtype int32", [&](auto& with) { with.query = other; });
    add("out is NULL", [](auto& with) { with.out = {}; });
    add("lse has dtype int32", [&](auto& with) { with.lse = other; });
    add("q_lens is given", [&](auto& with) { with.q_lens = other; });
    add("out is written, but shares memory with query", [&](auto& with) { with.query = with.out; });
    if (problem.bias) add("bias is NULL", [](auto& with) { with.bias = {}; });
    if (!problem.bias) add("bias is given", [&](auto& with) { with.bias = other; });
    add_workspaces(
        forward_bytes, [&](uint64_t step, Memory memory) { forward(step, memory, nothing); },
        &calls);
    const auto results = [&](uint64_t step) {
      std::vector<std::byte> bytes;
      for (const Matrix* result : {&own[step].out, &own[step].grad_query, &own[step].grad_key,
                                   &own[step].grad_value, &own[step].grad_bias})
        bytes.insert(bytes.end(), result->bytes.begin(), result->bytes.end());
      return bytes;
    };
    expect_refused(group, calls, [&](uint64_t step) {
      forward(step, workspace, nothing);
      return results(step);
    });
    if (!problem.backward) return;
    calls.clear();
    const auto add_backward = [&](const char* part,
                                  const std::function<void(perseid::AttentionBackward&)>& change) {
      calls.push_back({part, [&, change](uint64_t step) { backward(step, workspace, change); }});
    };
    add_backward("query", [](auto& with) { with.query = {}; });
    add_backward("grad_out", [](auto& with) { with.grad_out = {}; });
    add_backward("lse", [&](auto& with) { with.lse = other; });
    add_backward("grad_query", [&](auto& with) { with.grad_query = other; });
    add_backward("visible is given", [&](auto& with) { with.visible = other; });
    if (problem.grad_bias)
      add_backward("grad_bias has dtype int32", [&](auto& with) { with.grad_bias = other; });
    add_workspaces(
        backward_bytes, [&](uint64_t step, Memory memory) { backward(step, memory, nothing); },
        &calls);
    expect_refused(group, calls, [&](uint64_t step) {
      backward(step, workspace, nothing);
      return results(step);
    });
  });
}

TEST(WrongArguments, OfAttentionAreRefusedBeforeKeysAreSent) {
  Problem problem{
      .ranks = 2, .dtype = perseid::f32, .heads = 2, .q_len = 32, .kv_len = 32, .value_dim = 16};
  for (const Fusion fusion : {Fusion::kFused, Fusion::kUnfused})
    refuse_attention({.problem = problem, .fusion = fusion});
  refuse_attention({.problem = problem, .canonical = true});
  problem.bias = problem.grad_bias = true;
  refuse_attention({.problem = problem});
  refuse_attention({.problem = problem, .canonical = true});
}

TEST(WrongArguments, OfRaggedAttentionAreRefusedBeforeKeysAreSent) {
  Problem problem{.ranks = 2,
                  .dtype = perseid::f32,
                  .batch = 3,
                  .q_len = 64,
                  .kv_len = 64,
                  .value_dim = 16,
                  .lengths = {32, 16, 16}};
  refuse_attention({.problem = problem});
  refuse_attention({.problem = problem, .canonical = true});
}

}  // namespace
