// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Plans over threads as ranks that are late by random times, by a seed: every execution has the
// result of its own operands, in any order of arrival.
#include "context_attention_tools.hpp"

namespace {

using namespace context_attention_tools;
using perseid::AllGatherMatmul;
using perseid::Fusion;
using perseid::MatmulReduce;

constexpr int32_t kDelayedRanks = 3;
constexpr uint64_t kOperands = 2;  // in turns, so that what is read too early or too late is seen

// Sleeps before about one of three executions.
class Delays {
 public:
  Delays(uint64_t seed, int32_t rank)
      : engine_(seed * kDelayedRanks + static_cast<uint64_t>(rank)) {}
  void take() {
    if (engine_() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(engine_() % 300));
  }

 private:
  std::mt19937_64 engine_;
};

// The first executions of each plan, without delays, against which others are held.
template <class Execute>
void expect_repeated(const Group& group, uint64_t first_seed, uint64_t seeds,
                     const Execute& execute) {
  std::vector<std::vector<std::byte>> wanted;
  for (uint64_t operands = 0; operands < kOperands; ++operands) {
    group.barrier();
    wanted.push_back(execute(operands));
  }
  EXPECT_NE(wanted[0], wanted[1]);
  for (uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    Delays delays(seed, group.rank());
    for (uint64_t i = 0; i < 6; ++i) {
      delays.take();
      ASSERT_TRUE(execute(i % kOperands) == wanted[i % kOperands])
          << "seed " << seed << ", execution " << i << ", rank " << group.rank();
    }
  }
}

void gather_late(uint64_t first_seed, uint64_t seeds) {
  const Context context = Context::cpu(1);
  for (const bool in_place : {false, true})
    on_threads(kDelayedRanks, [&](const Group& group) {
      const int64_t m = 12, k = 20, n = 8;
      const AllGatherMatmul plan(
          context, group,
          {.m = m, .k = k, .products = {{.n = n}}, .chunks = 2, .fusion = Fusion::kFused});
      const Matrix b = Matrix::random({k, n}, perseid::f32, 1);
      Workspace workspace;
      plan.reserve(workspace);
      expect_repeated(group, first_seed, seeds / 2, [&](uint64_t operands) {
        const Matrix a = Matrix::random({m, k}, perseid::f32,
                                        100 * operands + static_cast<uint64_t>(group.rank()));
        if (in_place) std::memcpy(plan.shard().data(), a.bytes.data(), a.bytes.size());
        Matrix c({kDelayedRanks * m, n}, perseid::f32);
        plan.execute(
            {.a = in_place ? plan.shard() : a.tensor(), .b = {b.tensor()}, .c = {c.tensor()}},
            workspace);
        return c.bytes;
      });
    });
}

void reduce_late(uint64_t first_seed, uint64_t seeds) {
  const Context context = Context::cpu(1);
  for (const bool all : {false, true})
    on_threads(kDelayedRanks, [&](const Group& group) {
      const int64_t m = 12, k = 20, n = 8;
      const MatmulReduce plan(
          context, group, {.all_reduce = all, .m = m, .n = n, .k = k, .fusion = Fusion::kFused});
      const Matrix b = Matrix::random({k, n}, perseid::f32, 1);
      Workspace workspace;
      plan.reserve(workspace);
      expect_repeated(group, first_seed, seeds / 2, [&](uint64_t operands) {
        const Matrix a = Matrix::random({m, k}, perseid::f32,
                                        100 * operands + static_cast<uint64_t>(group.rank()));
        Matrix c({all ? m : m / kDelayedRanks, n}, perseid::f32);
        plan.execute({.a = a.tensor(), .b = b.tensor(), .c = c.tensor()}, workspace);
        return c.bytes;
      });
    });
}

void attend_late(uint64_t first_seed, uint64_t seeds) {
  const Problem problem{.ranks = kDelayedRanks,
                        .dtype = perseid::f32,
                        .heads = 2,
                        .q_len = 48,
                        .kv_len = 48,
                        .chunks = 2};
  const Context context = Context::cpu(1);
  on_threads(kDelayedRanks, [&](const Group& group) {
    std::vector<Tensors> own;
    for (uint64_t operands = 0; operands < kOperands; ++operands)
      own.push_back(take(problem, make(problem, operands), group.rank()));
    const ContextAttention plan(context, group,
                                {.attention = options_of(problem, 16, 16, 1),
                                 .placement = problem.placement,
                                 .chunks = problem.chunks,
                                 .fusion = Fusion::kFused});
    Workspace workspace;
    plan.reserve(workspace);
    // Forward alone, too: in backward ranks wait for one another's gradients.
    for (const bool backward : {false, true})
      expect_repeated(group, first_seed, seeds / 2, [&](uint64_t operands) {
        const Tensors& with = own[operands];
        plan.forward(nullptr, with.forward(problem), workspace);
        if (backward) plan.backward(nullptr, with.backward(problem), workspace);
        std::vector<std::byte> results;
        for (const Matrix* result : {&with.out, &with.grad_query, &with.grad_key, &with.grad_value})
          results.insert(results.end(), result->bytes.begin(), result->bytes.end());
        return results;
      });
  });
}

// Is late with everything, once it shall be.
class LateExecutor : public perseid::Executor {
 public:
  bool is_late = false;

  int32_t workers() const noexcept override { return 1; }
  void run(int64_t tasks, Task task) noexcept override {
    if (is_late) std::this_thread::sleep_for(30ms);
    for (int64_t i = 0; i < tasks; ++i) task(i, 0);
  }
};

// Rank 0 still reads the shard of rank 1 that was copied there, when that has its own result.
TEST(Delays, OfThoseThatReadAShardThatIsProducedInPlaceNext) {
  for (const bool asks_late : {false, true})
    on_threads(2, [&](const Group& group) {
      LateExecutor executor;
      const Context context = Context::cpu(executor);
      const int64_t m = 12, k = 20, n = 8;
      const AllGatherMatmul plan(
          context, group, {.m = m, .k = k, .products = {{.n = n}}, .fusion = Fusion::kUnfused});
      const Matrix a = Matrix::random({m, k}, perseid::f32, 1),
                   b = Matrix::random({k, n}, perseid::f32, 2);
      Matrix wanted({2 * m, n}, perseid::f32), c({2 * m, n}, perseid::f32);
      Workspace workspace;
      plan.reserve(workspace);
      const auto execute = [&](const Tensor& shard, const Matrix& result) {
        plan.execute({.a = shard, .b = {b.tensor()}, .c = {result.tensor()}}, workspace);
      };
      execute(a.tensor(), wanted);
      if (!asks_late) (void)plan.shard();
      executor.is_late = group.rank() == 0;
      execute(a.tensor(), c);
      const Tensor shard = plan.shard();
      std::memset(shard.data(), 0, a.bytes.size());
      EXPECT_EQ(c.bytes, wanted.bytes) << "rank " << group.rank();
      group.barrier();  // until rank 0 has its result, what was produced stays
      std::memcpy(shard.data(), a.bytes.data(), a.bytes.size());
      execute(shard, c);
      EXPECT_EQ(c.bytes, wanted.bytes) << "rank " << group.rank();
    });
}

TEST(Delays, OfGatheredProducts) { gather_late(0, 20); }
TEST(Delays, OfReducedProducts) { reduce_late(0, 20); }
TEST(Delays, OfContextAttention) { attend_late(0, 20); }
TEST(Delays, SweepOfGatheredProducts) { gather_late(1000, 340); }
TEST(Delays, SweepOfReducedProducts) { reduce_late(1000, 340); }
TEST(Delays, SweepOfContextAttention) { attend_late(1000, 320); }

}  // namespace
