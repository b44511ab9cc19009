// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Context-parallel attention of ragged batches in 16-bit types, which kernels of Hopper take and
// other GPUs compute a piece at a time: near to the attention of whole sequences on the CPU, and
// with the same bits in every run.
#include "gpu_context_attention_tools.hpp"

namespace {

using namespace gpu_context_attention_tools;

class GpuRaggedRanks : public GpuRanksTest {};
class GpuRaggedOfRanks : public RanksOfGpus {};
INSTANTIATE_TEST_SUITE_P(Ranks, GpuRaggedOfRanks, testing::Values(3, 4),
                         testing::PrintToStringParamName());

Problem with_dim(int64_t dim, Problem problem) {
  problem.head_dim = problem.value_dim = dim;
  return problem;
}

const perseid::Mask kWindow = perseid::causal_bottom_right() & perseid::window(150, -1);

// Pieces that are whole tiles, parts of one, and nothing.
class GpuRaggedPlacements : public GpuRanksTest,
                            public testing::WithParamInterface<std::tuple<int64_t, Sharding>> {};
INSTANTIATE_TEST_SUITE_P(Dims, GpuRaggedPlacements,
                         testing::Combine(testing::Values(64, 128),
                                          testing::Values(Sharding::kZigzag,
                                                          Sharding::kContiguous)));

TEST_P(GpuRaggedPlacements, AreAsOnTheCpu) {
  const auto [dim, placement] = GetParam();
  for (const perseid::Mask& mask : {perseid::causal_bottom_right(), perseid::Mask(), kWindow})
    expect_as_on_the_cpu(ragged({512, 0, 4, 1200, 76, 1024},
                                with_dim(dim, {.placement = placement,
                                               .mask = mask,
                                               .heads = 4,
                                               .kv_heads = 2,
                                               .accumulate = placement == Sharding::kZigzag})));
}

TEST_F(GpuRaggedRanks, OfOtherDimsAndTypes) {
  const std::vector<int32_t> lengths = {300, 0, 20, 712};
  expect_as_on_the_cpu(ragged(lengths, {.head_dim = 192, .value_dim = 128}));
  expect_as_on_the_cpu(ragged(lengths, with_dim(256, {.layout = perseid::bhsd})));
  expect_as_on_the_cpu(ragged(lengths, with_dim(72, {.mask = perseid::window(90, 40)})));
  expect_as_on_the_cpu(ragged(lengths, with_dim(128, {.heads = 8, .kv_heads = 1})), perseid::f16);
}

// Short sequences in a batch of long ones: tiles of keys that several ranks have parts of.
TEST_F(GpuRaggedRanks, OfManyLengths) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 40; ++i) lengths.push_back(i * i * 7919 % 173 * 4);
  expect_as_on_the_cpu(ragged(lengths, with_dim(64, {.heads = 4, .kv_heads = 2})));
  expect_as_on_the_cpu(ragged(lengths, with_dim(128, {.layout = perseid::bhsd, .mask = kWindow})));
}

// Groups of sequences, which arrive one after the other.
TEST_F(GpuRaggedRanks, OfGroupsOfSequences) {
  std::vector<int32_t> lengths(16, 1024);
  lengths[3] = 4;
  lengths[4] = 2036;
  const Problem problem =
      ragged(lengths, with_dim(64, {.dtype = perseid::bf16, .heads = 16, .kv_heads = 4}));
  on_gpu_ranks(problem.ranks, [&](const Group& group) {
    const OnRank on_rank(group, problem, take(problem, make(problem, 0), group.rank()));
    const std::string explanation = on_rank.plan.explain();
    if (explanation.find("cuda:sm90") == std::string::npos) return;
    EXPECT_NE(explanation.find("sequences in 4 groups"), std::string::npos) << explanation;
  });
  expect_as_on_the_cpu(problem);
}

TEST_P(GpuRaggedOfRanks, AreAsOnTheCpu) {
  const int32_t unit = 2 * GetParam();
  const std::vector<int32_t> lengths = {64 * unit, 0, unit, 150 * unit, 9 * unit};
  for (const Sharding placement : {Sharding::kZigzag, Sharding::kContiguous})
    for (const int64_t dim : {64, 128})
      expect_as_on_the_cpu(ragged(
          lengths,
          with_dim(dim, {.ranks = GetParam(), .placement = placement, .heads = 4, .kv_heads = 2})));
}

// Gradients of keys in any case, those of queries where that was asked for.
TEST_F(GpuRaggedRanks, RepeatTheirBits) {
  for (const bool deterministic : {false, true}) {
    const Problem problem = ragged(
        {512, 0, 100, 1200},
        with_dim(
            128,
            {.dtype = perseid::bf16, .heads = 4, .kv_heads = 2, .deterministic = deterministic}));
    on_gpu_ranks(problem.ranks, [&](const Group& group) {
      const Tensors own = take(problem, make(problem, 1), group.rank());
      const OnRank on_rank(group, problem, own);
      const Tensors first = on_rank.run(problem, own);
      for (int run = 0; run < 5; ++run) {
        const Tensors again = on_rank.run(problem, own);
        EXPECT_TRUE(again.out.bytes == first.out.bytes) << "rank " << group.rank();
        EXPECT_TRUE(again.grad_key.bytes == first.grad_key.bytes) << "rank " << group.rank();
        EXPECT_TRUE(again.grad_value.bytes == first.grad_value.bytes) << "rank " << group.rank();
        EXPECT_TRUE(!deterministic || again.grad_query.bytes == first.grad_query.bytes)
            << "rank " << group.rank();
      }
    });
  }
}

TEST_F(GpuRaggedRanks, HaveTheSameBitsUnfused) {
  expect_same_bits_unfused(
      ragged({1024, 20, 760}, with_dim(64, {.dtype = perseid::bf16, .backward = false})));
}

TEST_F(GpuRaggedRanks, ForwardGoesOnWithoutASilentRank) {
  const Problem problem =
      ragged({1024, 20, 760}, with_dim(128, {.dtype = perseid::bf16, .backward = false}));
  on_gpu_ranks(problem.ranks, [&](const Group& group) {
    const int32_t rank = group.rank();
    const Tensors own = take(problem, make(problem, 0), rank);
    const OnRank on_rank(group, problem, own);
    if (rank == 1) return;
    const TensorsOf<OnGpu> tensors = copy_to_gpu(on_rank.context, own);
    perseid::AttentionForward arguments = tensors.forward(problem);
    arguments.cu_seqlens_q = arguments.cu_seqlens_kv = own.lengths.tensor();
    perseid_wait_record record{};
    const Ended end = ended([&] {
      on_rank.plan.forward(nullptr, arguments, on_rank.forward_workspace.bytes(), 300ms, &record);
      on_rank.context.synchronize();
    });
    EXPECT_TRUE(end.status == PERSEID_TIMEOUT || end.status == PERSEID_PEER_LOST) << end.sentence;
    EXPECT_NE(end.sentence.find("rank 1"), std::string::npos) << end.sentence;
    EXPECT_EQ(record.status, end.status);
    EXPECT_EQ(record.rank, 1);
    EXPECT_EQ(record.chunk, 1);
    EXPECT_LT(end.seconds, 3);
  });
}

}  // namespace
