// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Which launches an execution makes. With the fake driver and the fake NVRTC.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <perseid/perseid.hpp>

#include <cstdlib>
#include <filesystem>
#include <span>

#include "fake_driver.hpp"

namespace perseid {
namespace {

class PlanLaunches : public testing::Test {
 protected:
  void SetUp() override {
    setenv("PERSEID_NVRTC", PERSEID_FAKE_NVRTC, 1);
    setenv("PERSEID_PACK", "", 1);
    folder_ =
        std::filesystem::temp_directory_path() / ("perseid-launches-" + std::to_string(getpid()));
    setenv("PERSEID_CACHE_DIR", folder_.c_str(), 1);
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) {
      launches_ = reinterpret_cast<decltype(launches_)>(dlsym(library, "fake_launches"));
      blocks_ = reinterpret_cast<decltype(blocks_)>(dlsym(library, "fake_blocks"));
    }
    if (launches_ == nullptr) GTEST_SKIP() << "libcuda.so.1 is not the fake driver";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  decltype(&fake_launches) launches_ = nullptr;
  decltype(&fake_blocks) blocks_ = nullptr;
  std::filesystem::path folder_;
};

// Tiles are drawn from a counter that the first launch clears, whatever the execution before has
// left there.
TEST_F(PlanLaunches, ClearCountersWithoutQueries) {
  constexpr int64_t kBatch = 3, kHeads = 2, kKeys = 300, kDim = 64;
  const Context context = Context::cuda(0);
  const Attention attention(context, {.dtype = bf16,
                                      .batch = kBatch,
                                      .heads = kHeads,
                                      .kv_heads = kHeads,
                                      .q_len = 5,
                                      .kv_len = kKeys,
                                      .head_dim = kDim,
                                      .backward = true,
                                      .deterministic = true,
                                      .implementation = "cuda:sm90",
                                      .max_lengths = true});
  const size_t bytes = 2 * kBatch * kHeads * kKeys * kDim;
  const Memory memory(context, bytes), grad_key(context, bytes), grad_value(context, bytes),
      workspace(context, attention.workspace_size(Direction::kBackward));
  const auto tensor = [&](const Memory& of, int64_t rows) {
    return Tensor(of.data(), bf16, {kBatch, rows, kHeads, kDim}, {}, context.device());
  };
  const Tensor queries = tensor(memory, 0), keys = tensor(memory, kKeys);
  const int64_t before = launches_();
  attention.backward(nullptr,
                     {.query = queries,
                      .key = keys,
                      .value = keys,
                      .out = queries,
                      .lse = Tensor(memory.data(), f32, {kBatch, kHeads, 0}, {}, context.device()),
                      .grad_out = queries,
                      .grad_query = queries,
                      .grad_key = tensor(grad_key, kKeys),
                      .grad_value = tensor(grad_value, kKeys)},
                     {workspace});
  // attention_backward_prepare and the products, without attention_backward_finish.
  EXPECT_EQ(launches_() - before, 2);
  EXPECT_EQ(blocks_(1), 1);
  EXPECT_GT(blocks_(0), kBatch * kHeads);
}

}  // namespace
}  // namespace perseid
