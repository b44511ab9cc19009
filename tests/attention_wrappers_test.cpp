// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Kernels of attention on a GPU that do not take all of a problem by themselves, and what is then
// done around them; no GPU is needed.
#include <gtest/gtest.h>

#include "attention_cases.hpp"
#include "dispatch/attention_wrappers.hpp"

namespace perseid::internal {
namespace {

using cpu::attention_cases::make_case;

// What a wrapper does with its kernels: an executable that says so.
struct Recorded final : dispatch::Executable<dispatch::Attention> {
  Recorded(size_t bytes, perseid_status status, int* runs)
      : bytes_(bytes), status_(status), runs_(runs) {}
  size_t workspace(dispatch::Direction) const override { return bytes_; }
  Status forward(const AttentionForward&, std::byte*, void*) const override { return run(); }
  Status backward(const AttentionBackward&, std::byte*, void*) const override { return run(); }
  Status run() const {
    ++*runs_;
    return status_ == PERSEID_OK ? Status() : Status::error(status_, "key begins at 2");
  }
  size_t bytes_;
  perseid_status status_;
  int* runs_;
};

TEST(AttentionFallback, RunsWhatTheFirstRefuses) {
  using dispatch::Direction;
  int made = 0, of_first = 0, of_fallback = 0;
  bool captures = true;
  const auto attention_of = [&](perseid_status status) {
    dispatch::AttentionFallback fallback;
    fallback.make = [&](dispatch::MadeAttention* to) {
      ++made;
      *to = std::make_unique<Recorded>(64, PERSEID_OK, &of_fallback);
      return Status();
    };
    fallback.forward_workspace = 64;
    fallback.backward_workspace = 16;
    fallback.is_capturing = [&](void*, bool* capturing) {
      *capturing = captures;
      return Status();
    };
    return dispatch::with_fallback(std::make_unique<Recorded>(48, status, &of_first),
                                   std::move(fallback));
  };
  const auto refusing = attention_of(PERSEID_UNSUPPORTED);
  EXPECT_EQ(refusing->workspace(Direction::kForward), 64u);
  EXPECT_EQ(refusing->workspace(Direction::kBackward), 48u);
  const Status captured = refusing->forward({}, nullptr, nullptr);
  EXPECT_EQ(captured.code(), PERSEID_UNSUPPORTED);
  EXPECT_NE(captured.sentence().find("key begins at 2; or execute"), std::string::npos);
  EXPECT_EQ(made, 0);
  captures = false;
  for (int turn = 0; turn < 3; ++turn) EXPECT_TRUE(refusing->forward({}, nullptr, nullptr).ok());
  captures = true;  // it is there now
  EXPECT_TRUE(refusing->backward({}, nullptr, nullptr).ok());
  EXPECT_EQ(made, 1);
  EXPECT_EQ(of_fallback, 4);
  EXPECT_EQ(of_first, 5);
  const auto failing = attention_of(PERSEID_DEVICE_ERROR);
  EXPECT_EQ(failing->forward({}, nullptr, nullptr).code(), PERSEID_DEVICE_ERROR);
  EXPECT_TRUE(attention_of(PERSEID_OK)->backward({}, nullptr, nullptr).ok());
  EXPECT_EQ(made, 1);
  EXPECT_EQ(of_fallback, 4);
}

// Keys and values in chunks: kernels that know nothing of them run after all have arrived.
TEST(AttentionChoice, TakesChunksOfKeysOfEveryKind) {
  const std::vector<int64_t> begin = {0, 100, 300};
  for (const char* capability : {"sm_80", "sm_90"}) {
    std::shared_ptr<const dispatch::Device> device;
    ASSERT_TRUE(dispatch::assume_cuda(capability, {}, &device).ok());
    for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64})
      for (const int64_t dim : {13, 64, 512}) {
        AttentionProblem problem = make_case(dtype, 1, 2, 2, 80, 300, dim, dim).problem;
        problem.chunks_kv = {ChunkDim::kKv, begin.data(), 2};
        const auto list = dispatch::attention_implementations();
        const auto& [sm90, portable, reference] = std::tie(list[0], list[1], list[2]);
        EXPECT_EQ(portable.refuse(problem, *device), "") << name_of(dtype) << " " << dim;
        EXPECT_EQ(reference.refuse(problem, *device), "") << name_of(dtype) << " " << dim;
        const bool taken = std::string(capability) == "sm_90" &&
                           (dtype == DType::kBF16 ? dim != 13 : dtype == DType::kF32 && dim <= 64);
        EXPECT_EQ(sm90.refuse(problem, *device).empty(), taken) << name_of(dtype) << " " << dim;
        problem.rows = {.ranks = 2, .canonical = true};
        EXPECT_NE(portable.refuse(problem, *device), "");
        EXPECT_NE(reference.refuse(problem, *device), "");
        problem.grad_query = problem.grad_key = problem.grad_value = false;
        EXPECT_EQ(portable.refuse(problem, *device), "");
        EXPECT_EQ(reference.refuse(problem, *device), "");
      }
  }
}

}  // namespace
}  // namespace perseid::internal
