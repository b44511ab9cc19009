// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What attention on a GPU of compute capability 9.0 does by itself: dims beyond 256, whose keys and
// values arrive in pieces, clusters of blocks that load together, and what it refuses when it is
// executed.
#include "gpu_attention_tools.hpp"

namespace perseid::internal {
namespace {

using namespace testing_gpu;

class GpuSm90Attention : public GpuAttention {
 protected:
  void SetUp() override {
    if (tested_kernels() != TestedKernels::kSm90) GTEST_SKIP() << "other kernels";
    GpuAttention::SetUp();
  }
};

// What a plan cannot know is refused when it is executed.
TEST_F(GpuSm90Attention, RefusesWhatTheCopyEngineCannotReach) {
  Fixture fixture(forward_case(DType::kBF16, 1, 2, 2, 40, 50, 64, 64));
  std::unique_ptr<cuda::Sm90Attention> attention;
  expect_ok(cuda::Sm90Attention::make(fixture.problem, *gpu_, &attention));
  ASSERT_NE(attention, nullptr);
  const auto sentence = [&](const auto& change) {
    AttentionForward tensors = fixture.forward_arguments();
    change(tensors);
    const Status status = attention->forward(tensors, nullptr, nullptr);
    EXPECT_EQ(status.code(), PERSEID_UNSUPPORTED);
    return status.sentence();
  };
  EXPECT_NE(sentence([](AttentionForward& t) { t.key.stride[2] = 65; }).find("key has a stride"),
            std::string::npos);
  EXPECT_NE(sentence([](AttentionForward& t) { t.value.stride[3] = 2; }).find("along its rows"),
            std::string::npos);
  EXPECT_NE(sentence([](AttentionForward& t) {
              t.out.data = t.out.as<std::byte>() + 2;
            }).find("out begins 2 bytes"),
            std::string::npos);
}

// One piece or many of keys, and one part or two of results, of which the last may be narrower.
TEST_F(GpuSm90Attention, LargeDims) {
  for (const auto& [dim, value_dim] : {Dims{512, 512}, Dims{264, 264}, Dims{320, 64}, Dims{64, 328},
                                       Dims{448, 256}, Dims{256, 512}})
    for (const auto& [q_len, kv_len] :
         {std::pair<int64_t, int64_t>{65, 40}, {150, 301}, {257, 129}, {300, 64}}) {
      Case test = forward_case(dim == 320 ? DType::kF16 : DType::kBF16, 2, 4, 2, q_len, kv_len, dim,
                               value_dim);
      test.layout = q_len == 150 ? Layout::kBshd : Layout::kBhsd;
      check(test);
      test.problem.causal = q_len == 65 ? Causal::kTopLeft : Causal::kBottomRight;
      check(test);
      if (dim != 512) continue;
      test.problem.window_left = 70;
      check(test);
      test.problem.causal = Causal::kNone;
      test.problem.window_right = 5;
      check(test);
    }
}

// Blocks go on from tile to tile, and from one sequence to the next.
TEST_F(GpuSm90Attention, LargeDimsOfManyTiles) {
  for (const Causal causal : {Causal::kNone, Causal::kBottomRight}) {
    Case test = forward_case(DType::kBF16, 1, 40, 8, 257, 130, 512, 512);
    test.layout = Layout::kBshd;
    test.problem.causal = causal;
    check(test);
    Case ragged = forward_case(DType::kBF16, 0, 20, 20, 0, 0, 512, 512);
    set_ragged(ragged, {130, 0, 77, 200, 1}, {150, 60, 100, 70, 0});
    ragged.layout = Layout::kBshd;
    ragged.problem.causal = causal;
    check(ragged);
  }
}

TEST_F(GpuSm90Attention, LargeDimsHaveTheSameBitsEveryTime) {
  Case test = forward_case(DType::kBF16, 1, 40, 8, 300, 400, 512, 512);
  test.problem.causal = Causal::kBottomRight;
  test.bits_alone = true;
  Fixture fixture(test);
  run(fixture);
  const auto out = fixture.out.memory, lse = fixture.lse.memory;
  for (int turn = 0; turn < 5; ++turn) {
    run(fixture);
    EXPECT_EQ(fixture.out.memory, out);
    EXPECT_EQ(fixture.lse.memory, lse);
  }
}

// Clusters of two blocks, whose rows end at different keys; 160 clusters are more than a GPU holds.
TEST_F(GpuSm90Attention, ClustersUnderACausalMask) {
  const auto check_clusters = [&](int64_t heads, int64_t q_len, int64_t kv_len, int64_t dim,
                                  Causal causal) {
    Case test = forward_case(DType::kBF16, 1, heads, 2, q_len, kv_len, dim, 128);
    test.layout = Layout::kBshd;
    test.problem.causal = causal;
    if (causal == Causal::kNone) test.problem.window_right = 200;
    EXPECT_EQ(cuda::choose_attention_forward(test.problem).cluster, 2);
    check(test);
  };
  check_clusters(160, 256, 4096, 128, Causal::kTopLeft);
  check_clusters(36, 500, 4096, 128, Causal::kNone);
  for (const auto& [q_len, kv_len] : {std::pair<int64_t, int64_t>{250, 4100}, {1000, 4225}})
    for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight})
      check_clusters(2, q_len, kv_len, 104, causal);
}

// One block of a cluster computes some tiles again while the other one waits, or computes others.
TEST_F(GpuSm90Attention, ClustersComputeTilesTwice) {
  Case test = forward_case(DType::kBF16, 1, 20, 4, 1024, 4096, 128, 128);
  test.layout = Layout::kBshd;
  test.problem.causal = Causal::kTopLeft;
  ASSERT_EQ(cuda::choose_attention_forward(test.problem).cluster, 2);
  test.prepare = [](AttentionBackward& a) {
    for (int64_t head = 0; head < 3; ++head)
      for (const int64_t key : {70, 200, 650, 1000, 1500})
        put(a.value, at(a.value, {0, head, key + 30 * head, 3 + head}),
            head == 1 ? kInfinity : kNaN);
    put(a.key, at(a.key, {0, 3, 300, 1}), kNaN);
    put(a.query, at(a.query, {0, 7, 600, 1}), kNaN);
  };
  Fixture fixture(test);
  for (int turn = 0; turn < 5; ++turn) {
    run(fixture);
    fixture.compare("out", fixture.out.tensor);
  }
}

}  // namespace
}  // namespace perseid::internal
