// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What only code inside the library can do on a GPU: run PTX instead of machine code, and fail to
// launch. Skipped where there is no GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "cuda/softmax.hpp"
#include "gpu_tools.hpp"
#include "tensor.hpp"

namespace perseid::internal::cuda {
namespace {

// A softmax of rows on a GPU, against double.
void expect_softmax(Gpu& gpu, SoftmaxKind kind, int64_t length) {
  constexpr int64_t kRows = 37;
  const SoftmaxProblem problem{.rank = 2, .dim = 1, .shape = {kRows, length}};
  std::unique_ptr<CudaSoftmax> softmax;
  testing_gpu::expect_ok(CudaSoftmax::make(kind, problem, gpu, &softmax));
  ASSERT_NE(softmax, nullptr);
  SCOPED_TRACE(testing::Message() << softmax->description() << ", " << length);
  tests::Array x({kRows, length}, DType::kF32), y({kRows, length}, DType::kF32);
  tests::Array scratch({static_cast<int64_t>(softmax->workspace(false)) + 1}, DType::kBool);
  x.randomise(5, 4);
  testing_gpu::Mirror gpu_x(gpu, x), gpu_y(gpu, y), gpu_scratch(gpu, scratch);
  testing_gpu::expect_ok(softmax->forward({gpu_x.tensor(), gpu_y.tensor(), {}, {}},
                                          static_cast<std::byte*>(gpu_scratch.tensor().data),
                                          nullptr));
  gpu_y.fetch();
  for (int64_t row = 0; row < kRows; ++row) {
    double sum = 0;
    for (int64_t i = 0; i < length; ++i) sum += std::exp(x.get(row * length + i));
    for (int64_t i = 0; i < length; ++i)
      ASSERT_NEAR(y.get(row * length + i), std::exp(x.get(row * length + i)) / sum, 1e-6);
  }
}

using GpuLaunch = testing_gpu::GpuTest;

// As on a GPU that is newer than every architecture with machine code.
TEST_F(GpuLaunch, RunsPtx) {
  for (const char* architecture : {"compute_80", "compute_90"}) {
    std::shared_ptr<Gpu> gpu;
    testing_gpu::expect_ok(Gpu::open(0, &gpu, architecture));
    ASSERT_NE(gpu, nullptr);
    SCOPED_TRACE(architecture);
    for (const int64_t length : {5, 100, 4096, 30000})
      expect_softmax(*gpu, SoftmaxKind::kRows, length);
    expect_softmax(*gpu, SoftmaxKind::kSplit, 70000);
    expect_softmax(*gpu, SoftmaxKind::kColumns, 300);
  }
}

TEST_F(GpuLaunch, OutlivesAFailedLaunch) {
  std::vector<Kernel> kernels;
  const SoftmaxProblem problem{.rank = 2, .dim = 1, .shape = {64, 128}};
  const SoftmaxChoice choice = choose_softmax(SoftmaxKind::kRows, problem, false, gpu_->facts());
  testing_gpu::expect_ok(
      gpu_->load(softmax_header(choice.kind), softmax_kernels(choice, false), &kernels));
  ASSERT_EQ(kernels.size(), 1u);
  const SoftmaxArguments arguments;
  const Gpu::Current current(*gpu_);
  const Status threads =
      gpu_->launch(kernels[0], {.blocks = 1, .threads = 4096}, &arguments, nullptr);
  EXPECT_EQ(threads.code(), PERSEID_DEVICE_ERROR);
  EXPECT_NE(threads.sentence().find("launching a kernel failed"), std::string::npos);
  const Status cluster =
      gpu_->launch(kernels[0], {.blocks = 64, .threads = 128, .cluster = 64}, &arguments, nullptr);
  EXPECT_EQ(cluster.code(), PERSEID_DEVICE_ERROR);
  const Status blocks =
      gpu_->launch(kernels[0], {.blocks = int64_t{1} << 31, .threads = 128}, &arguments, nullptr);
  EXPECT_EQ(blocks.code(), PERSEID_UNSUPPORTED);
  expect_softmax(*gpu_, SoftmaxKind::kRows, 128);
}

}  // namespace
}  // namespace perseid::internal::cuda
