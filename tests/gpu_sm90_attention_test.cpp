// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What attention on a GPU of compute capability 9.0 refuses when it is executed.
#include "gpu_attention_tools.hpp"

namespace perseid::internal {
namespace {

using namespace testing_gpu;

// What a plan cannot know is refused when it is executed.
using GpuSm90Attention = GpuAttention;

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

}  // namespace
}  // namespace perseid::internal
