// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Context-parallel attention of ranks that NCCL links: the bits of ranks that send through their
// hosts, the time that it takes, and what those that are left do when a rank is killed.
#include "gpu_context_attention_tools.hpp"
#include "gpu_nccl_processes.hpp"

namespace {

using namespace collective_tools;
using namespace gpu_context_attention_tools;
using perseid::Fusion;

class NcclAttention : public NcclProcesses {};
class NcclAttentionOnNvlink : public NcclOnNvlink {};

std::vector<Problem> problems_of(int32_t ranks) {
  const int64_t pieces = int64_t{2} * ranks;
  const auto of_pieces = [&](int64_t rows) { return static_cast<int32_t>(rows * pieces); };
  std::vector<int64_t> uneven = {403, 150, 0, 200};
  uneven.resize(static_cast<size_t>(ranks));
  const int64_t rows = std::accumulate(uneven.begin(), uneven.end(), int64_t{0});
  std::vector<Problem> problems = {
      square(256 * pieces, 128, {.heads = 8, .kv_heads = 4, .chunks = 2}),
      square(128 * pieces, 128, {.layout = perseid::bhsd, .batch = 2, .accumulate = true}),
      // Chunks that some ranks need not.
      square(256 * pieces, 128,
             {.mask = perseid::causal_bottom_right() & perseid::window(300, -1), .chunks = 2}),
      square(rows, 128,
             {.placement = Sharding::kContiguous,
              .mask = perseid::window(100, 30),
              .batch = 2,
              .shards = uneven,
              .chunks = 3}),
      {.mask = {},
       .q_len = 128 * pieces,
       .kv_len = 129 * pieces,
       .head_dim = 128,
       .value_dim = 128,
       .chunks = 3},
      ragged({of_pieces(40), 0, of_pieces(9), of_pieces(100), of_pieces(1)},
             {.heads = 4, .kv_heads = 2, .head_dim = 128, .value_dim = 128}),
      ragged({of_pieces(20), of_pieces(31)}, {.layout = perseid::bhsd,
                                              .placement = Sharding::kContiguous,
                                              .head_dim = 128,
                                              .value_dim = 128,
                                              .accumulate = true})};
  for (Problem& problem : problems) {
    problem.ranks = ranks;
    problem.dtype = perseid::bf16;
    problem.deterministic = true;
  }
  Problem single = problems[1];
  single.dtype = perseid::f32;
  problems.push_back(single);
  return problems;
}

std::string difference(const Matrix& result, const Matrix& wanted) {
  double largest = 0;
  size_t count = 0, first = 0, last = 0;
  const size_t elements = wanted.bytes.size() / static_cast<size_t>(bytes_of(wanted.dtype));
  for (size_t i = 0; i < elements; ++i) {
    const double off = std::abs(value_of(result, i) - value_of(wanted, i));
    if (off == 0) continue;
    if (count++ == 0) first = i;
    last = i;
    largest = std::max(largest, off);
  }
  return std::to_string(count) + " of " + std::to_string(elements) + ", from " +
         std::to_string(first) + " to " + std::to_string(last) + ", by at most " +
         std::to_string(largest);
}

// Leaves large numbers in free memory of the GPU, which plans get: products with them are infinite,
// though none of them is.
void leave_large_numbers(int32_t rank) {
  constexpr int kLarge = 0x7f;
  const Context context = context_of(rank);
  std::vector<OnGpu> memory;
  for (const int64_t kibibytes : {64, 256, 512, 1024, 4096, 16384})
    for (int i = 0; i < 8; ++i)
      memory.emplace_back(context, Matrix({kibibytes, 512}, perseid::bf16, kLarge));
}

bool have_bits_of_staged(int32_t rank, int32_t size, const Group& group, size_t number) {
  alarm(120);
  const Group staged = staged_group_of(rank, size);
  bool right = true;
  const Problem problem = problems_of(size).at(number);
  const Tensors own = take(problem, make(problem, 1), rank);
  setenv("PERSEID_TRANSPORT", "sockets", 1);
  const Tensors expected = OnRank(staged, problem, own).run(problem, own);
  const auto compare = [&](const char* how, const Tensors& results) {
    const auto same = [&](const char* name, const Matrix& result, const Matrix& wanted) {
      if (result.bytes == wanted.bytes) return;
      fprintf(stderr, "rank %d, problem %zu, %s: %s differs, %s\n", rank, number, how, name,
              difference(result, wanted).c_str());
      right = false;
    };
    same("out", results.out, expected.out);
    same("lse", results.lse, expected.lse);
    same("grad_query", results.grad_query, expected.grad_query);
    same("grad_key", results.grad_key, expected.grad_key);
    same("grad_value", results.grad_value, expected.grad_value);
  };
  leave_large_numbers(rank);
  compare("through hosts again", OnRank(staged, problem, own).run(problem, own));
  setenv("PERSEID_TRANSPORT", "nccl", 1);
  for (const Fusion fusion : {Fusion::kUnfused, Fusion::kFused}) {
    leave_large_numbers(rank);
    const OnRank on_rank(group, problem, own, fusion);
    EXPECT_STREQ(on_rank.plan.info().implementation, "cuda:nccl");
    for (int repeat = 0; repeat < 3; ++repeat)
      compare(fusion == Fusion::kFused ? "fused" : "unfused", on_rank.run(problem, own));
  }
  return right && !testing::Test::HasFailure();
}

// Of each problem.
class NcclAttentionBits : public NcclProcesses, public testing::WithParamInterface<size_t> {};
class NcclAttentionBitsOfHosts : public NcclHostProcesses,
                                 public testing::WithParamInterface<size_t> {};
INSTANTIATE_TEST_SUITE_P(Problems, NcclAttentionBits,
                         testing::Range(size_t{0}, problems_of(2).size()));
INSTANTIATE_TEST_SUITE_P(Problems, NcclAttentionBitsOfHosts,
                         testing::Range(size_t{0}, problems_of(4).size()));

TEST_P(NcclAttentionBits, AreThoseOfRanksThatSendThroughTheirHosts) {
  start(2, [&](int32_t rank) { return have_bits_of_staged(rank, 2, group_of(rank), GetParam()); });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

TEST_P(NcclAttentionBitsOfHosts, AreThoseOfRanksThatSendThroughTheirHosts) {
  start(kAll, [&](int32_t rank) {
    return have_bits_of_staged(rank, kAll, group_of(rank, kAll), GetParam());
  });
  EXPECT_EQ(join(), std::vector<int>(kAll, 0));
}

// Many executions in flight, of a kernel that takes as many multiprocessors as it may. Prints what
// an execution takes.
TEST_F(NcclAttentionOnNvlink, ComputesWhileNcclSends) {
  start(2, [&](int32_t rank) {
    alarm(120);
    const Group group = group_of(rank);
    const Group staged = staged_group_of(rank, 2);
    Problem problem = square(16384, 128, {.heads = 32, .kv_heads = 4});
    problem.dtype = perseid::bf16;
    const Tensors own = take(problem, make(problem, 1), rank);
    std::vector<Matrix> results;
    const auto time = [&](const char* what, const Group& of, Fusion fusion, int times) {
      const OnRank on_rank(of, problem, own, fusion);
      if (rank == 0) printf("%s", on_rank.plan.explain().c_str());
      const TensorsOf<OnGpu> tensors = copy_to_gpu(on_rank.context, own);
      for (const bool backward : {false, true}) {
        int64_t from = 0;
        for (int i = -2; i < times; ++i) {
          if (i == 0) {
            on_rank.context.synchronize();
            of.barrier();
            from = now();
          }
          if (backward)
            on_rank.plan.backward(nullptr, tensors.backward(problem),
                                  on_rank.backward_workspace.bytes());
          else
            on_rank.plan.forward(nullptr, tensors.forward(problem),
                                 on_rank.forward_workspace.bytes());
        }
        on_rank.context.synchronize();
        if (rank == 0)
          printf("%s, %s: %.0f us\n", backward ? "backward" : "forward", what,
                 1e6 * since(from) / times);
      }
      results.push_back(tensors.out.get());
      results.push_back(tensors.grad_key.get());
    };
    time("through hosts", staged, Fusion::kUnfused, 2);
    setenv("PERSEID_TRANSPORT", "nccl", 1);
    time("unfused", group, Fusion::kUnfused, 20);
    time("fused", group, Fusion::kFused, 20);
    for (size_t i = 2; i < results.size(); ++i)
      if (results[i].bytes != results[i % 2].bytes) return false;
    return true;
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

TEST_F(NcclAttention, GoesOnWithoutARankThatIsKilled) { kill_one({.attention = true}); }

TEST_F(NcclAttention, GoesOnWhereACallHasFailed) {
  kill_one({.attention = true, .synchronizes = false});
}

}  // namespace
