// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Plans of attention in canonical order on GPUs, with the fake driver, whose kernels do nothing:
// that a rank makes a plan for each of its pieces, which takes their rows, and adds leaves in
// pairs.
#include "gpu_context_attention_tools.hpp"
#include "nccl_ranks.hpp"

namespace {

using namespace gpu_context_attention_tools;

class CanonicalPlans : public host_ranks::NcclRanks {
 protected:
  void SetUp() override { HostRanks::SetUp(); }
  void enter(int32_t rank) override {
    NcclRanks::enter(rank);
    unsetenv("PERSEID_SHARED_MEMORY");
  }
};

// How many launches the backward of a rank has, of executions that succeed.
int64_t launches_of(Problem problem, int32_t rank) {
  const Group group(
      {.rank = rank,
       .size = problem.ranks,
       .rendezvous = "unix:" + testing::TempDir() + "plans" + std::to_string(getppid()),
       .token = "a secret"});
  const Context context = Context::cuda(0);
  const Tensors own = take(problem, make(problem, 1), rank);
  const ContextAttention plan(
      context, group,
      {.attention = options_of(problem, own.query.shape[problem.rows_dim()],
                               own.key.shape[problem.rows_dim()], problem.ranks),
       .placement = problem.placement,
       .canonical = true});
  const TensorsOf<OnGpu> tensors = copy_to_gpu(context, own);
  const GpuWorkspace workspace(context, plan),
      of_backward(context, plan, perseid::Direction::kBackward);
  const auto launches = host_ranks::fake<decltype(&fake_launches)>("fake_launches");
  int64_t count = 0;
  for (int run = 0; run < 2; ++run) {
    plan.forward(nullptr, with_host_lengths(problem, own, tensors.forward(problem)),
                 workspace.bytes());
    const int64_t before = launches();
    plan.backward(nullptr, with_host_lengths(problem, own, tensors.backward(problem)),
                  of_backward.bytes());
    count = launches() - before;
    context.synchronize();
  }
  return count;
}

// What a backward launches besides, for keys that arrive and for the sum over ranks.
constexpr int64_t kOthers = 3;

TEST_F(CanonicalPlans, LaunchEveryPieceAndEverySumOfTwo) {
  struct Case {
    Problem problem;
    int64_t of_piece;
  };
  const std::vector<Case> cases = {
      {square(16 * 9, 64, {.dtype = perseid::f32}), 4},  // with one that writes planes
      {square(16 * 9, 64, {.dtype = perseid::f64}), 3},
      {square(16 * 11, 64, {.dtype = perseid::bf16, .bias = true, .grad_bias = true}), 3},
      {ragged({16 * 7, 0, 16 * 21}, {.dtype = perseid::f32, .head_dim = 64, .value_dim = 64}), 4}};
  for (const Sharding placement : {Sharding::kContiguous, Sharding::kZigzag})
    for (const auto& [given, of_piece] : cases)
      for (const int32_t ranks : {1, 2}) {
        Problem problem = given;
        problem.placement = placement;
        problem.ranks = ranks;
        const int64_t pieces = (placement == Sharding::kZigzag ? 16 : 8) / ranks;
        const int64_t wanted = pieces * of_piece + pieces - 1 + kOthers;
        start(ranks, [&](int32_t rank) {
          const int64_t launches = launches_of(problem, rank);
          if (launches != wanted) fprintf(stderr, "%ld launches\n", launches);
          return launches == wanted;
        });
        EXPECT_EQ(join(), std::vector<int>(static_cast<size_t>(ranks), 0))
            << wanted << " launches, type " << static_cast<int>(problem.dtype) << ", ragged "
            << problem.ragged() << ", " << pieces << " pieces";
      }
}

// Where pieces are whole tiles, and on any number of ranks.
TEST_F(CanonicalPlans, LaunchAllLeavesTogetherOnHopper) {
  for (const int32_t ranks : {1, 2}) {
    Problem problem = square(2048, 64, {.dtype = perseid::bf16});
    problem.ranks = ranks;
    start(ranks, [&](int32_t rank) { return launches_of(problem, rank) == 4 + kOthers; });
    EXPECT_EQ(join(), std::vector<int>(static_cast<size_t>(ranks), 0));
  }
}

}  // namespace
