// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the GPU backend does before it reaches a GPU: the sentences where something is missing; and
// what only code inside the library can do on one.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <set>

#include "cuda/runtime/library.hpp"
#include "cuda/runtime/sources.hpp"
#include "cuda/softmax.hpp"
#include "gpu_tools.hpp"
#include "perseid/perseid.h"
#include "tensor.hpp"

namespace perseid::internal::cuda {
namespace {

TEST(Sources, AreEmbeddedWhole) {
  bool found = false;
  for (const Source& source : sources()) {
    const std::string text = source.text;
    EXPECT_NE(text.find("#pragma once"), std::string::npos) << source.path;
    EXPECT_EQ(text.back(), '\n') << source.path;
    found = found || std::string(source.path) == "cuda/device/softmax/rows.hpp";
  }
  EXPECT_TRUE(found);
}

// A kernel's key changes with what it includes, and with nothing else.
TEST(Sources, AreToldApart) {
  std::set<uint64_t> hashes;
  for (const Source& source : sources()) {
    EXPECT_TRUE(hashes.insert(source_hash(source.path)).second) << source.path;
    EXPECT_EQ(source_hash(source.path), source_hash(source.path));
    const std::string_view text = source.text;
    constexpr std::string_view kInclude = "#include \"";
    for (size_t at = text.find(kInclude); at != std::string_view::npos;
         at = text.find(kInclude, at + 1)) {
      EXPECT_TRUE(at == 0 || text[at - 1] == '\n') << source.path;
      const std::string_view rest = text.substr(at + kInclude.size());
      const std::string included(rest.substr(0, rest.find('"')));
      EXPECT_TRUE(std::any_of(sources().begin(), sources().end(),
                              [&](const Source& other) { return included == other.path; }))
          << source.path << " includes " << included;
    }
  }
}

TEST(Contexts, OfDisabledGpusSayWhy) {
  setenv("PERSEID_DISABLE_CUDA", "1", 1);
  perseid_context_options options{};
  options.struct_size = sizeof options;
  options.device_type = kDLCUDA;
  perseid_context_t context = nullptr;
  EXPECT_EQ(perseid_context_create(&options, &context), PERSEID_UNSUPPORTED);
  EXPECT_NE(std::string(perseid_last_error()).find("PERSEID_DISABLE_CUDA"), std::string::npos);
  unsetenv("PERSEID_DISABLE_CUDA");
}

// Where there is no driver; and of any library that is missing.
TEST(Contexts, SayWhatToDoWithoutADriver) {
  SharedLibrary library;
  const Status missing = library.open("the library", "install it", {"libperseid_none.so.7"});
  EXPECT_EQ(missing.code(), PERSEID_UNSUPPORTED);
  EXPECT_TRUE(
      missing.sentence().starts_with("the library was not found; tried libperseid_none.so.7"));
  EXPECT_TRUE(missing.sentence().ends_with("; install it"));

  std::shared_ptr<Gpu> gpu;
  const Status status = Gpu::open(0, &gpu);
  if (status.sentence().find("was not found") == std::string::npos)
    GTEST_SKIP() << "a driver is here";
  EXPECT_TRUE(status.sentence().ends_with("install the GPU's driver, or use kDLCPU"));
}

// ---- On a GPU ----

// A softmax of rows on a GPU, against double.
void expect_softmax(Gpu& gpu, SoftmaxKind kind, int64_t length) {
  constexpr int64_t kRows = 37;
  const SoftmaxProblem problem{.rank = 2, .dim = 1, .shape = {kRows, length}};
  std::unique_ptr<SoftmaxOnGpu> softmax;
  testing_gpu::expect_ok(SoftmaxOnGpu::make(kind, problem, gpu, &softmax));
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

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    gpu_ = testing_gpu::open_gpu(&why);
    if (gpu_ == nullptr) GTEST_SKIP() << why;
  }
  std::shared_ptr<Gpu> gpu_;
};

// As on a GPU that is newer than every architecture with machine code.
TEST_F(OnGpu, RunsPtx) {
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

TEST_F(OnGpu, OutlivesAFailedLaunch) {
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

// Of the host time of an execution, what is the driver's.
TEST_F(OnGpu, LaunchesQuickly) {
  const SoftmaxProblem problem{.rank = 2, .dim = 1, .shape = {64, 128}};
  const SoftmaxChoice choice = choose_softmax(SoftmaxKind::kRows, problem, false, gpu_->facts());
  std::vector<Kernel> kernels;
  testing_gpu::expect_ok(
      gpu_->load(softmax_header(choice.kind), softmax_kernels(choice, false), &kernels));
  ASSERT_EQ(kernels.size(), 1u);
  tests::Array x({64, 128}, DType::kF32), y({64, 128}, DType::kF32);
  const testing_gpu::Mirror gpu_x(*gpu_, x), gpu_y(*gpu_, y);
  const SoftmaxArguments nothing;  // no rows
  std::unique_ptr<SoftmaxOnGpu> softmax;
  testing_gpu::expect_ok(SoftmaxOnGpu::make(SoftmaxKind::kRows, problem, *gpu_, &softmax));
  ASSERT_NE(softmax, nullptr);
  const auto least = [&](const auto& call) {
    double best = 1;
    for (int round = 0; round < 20; ++round) {
      constexpr int kTurns = 200;
      const auto start = std::chrono::steady_clock::now();
      for (int turn = 0; turn < kTurns; ++turn) testing_gpu::expect_ok(call());
      const auto end = std::chrono::steady_clock::now();
      best = std::min(best, std::chrono::duration<double>(end - start).count() / kTurns);
      testing_gpu::expect_ok(synchronize(*gpu_, nullptr));
    }
    return best * 1e6;
  };
  const auto launch = [&](bool dependent) {
    return least([&] {
      return gpu_->launch(kernels[0], {.blocks = 16, .threads = 128, .dependent = dependent},
                          &nothing, nullptr);
    });
  };
  const auto execute = [&] {
    return least([&] {
      return softmax->forward({gpu_x.tensor(), gpu_y.tensor(), {}, {}}, nullptr, nullptr);
    });
  };
  const double pushed = execute();
  const Gpu::Current current(*gpu_);
  std::printf(
      "  host time: a launch %.2f us, a dependent one %.2f us, of an execution %.2f us, "
      "with a change of context %.2f us\n",
      launch(false), launch(true), execute(), pushed);
}

}  // namespace
}  // namespace perseid::internal::cuda
