// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul on a GPU against the float64 reference: the problems of the CPU's test, both kernels'
// tiles in every layout, misaligned memory and offsets past 2^31. Skipped where there is no GPU.
#include <gtest/gtest.h>

#include <optional>

#include "cuda/matmul/fma.hpp"
#include "cuda/matmul/tensor_core.hpp"
#include "gpu_matmul_cases.hpp"

namespace perseid::internal {
namespace {

using matmul_cases::Case;
using matmul_cases::kTypes;
using matmul_cases::Layout;
using matmul_cases::Problem;
using testing_gpu::expect_ok;
using testing_gpu::Mirror;
using tests::Array;

// As many multiprocessors make the choice take its largest tile, or its smallest.
constexpr int32_t kLargest = 1, kSmallest = INT32_MAX;

class GpuMatmul : public testing_gpu::GpuTest {
 protected:
  // Calls use(kernels) with the kernels of the problem's type, chosen for as many multiprocessors.
  template <class Use>
  void with_kernels(const MatmulProblem& problem, int32_t multiprocessors, const Use& use) {
    if (cuda::refuse_tensor_core_matmul(problem).empty()) {
      std::unique_ptr<cuda::TensorCoreMatmul> matmul;
      const auto config =
          cuda::choose_tensor_core_matmul(problem, multiprocessors, gpu_->facts().shared_bytes);
      expect_ok(cuda::TensorCoreMatmul::make(problem, config, *gpu_, &matmul));
      if (matmul != nullptr) use(*matmul);
    } else {
      std::unique_ptr<cuda::FmaMatmul> matmul;
      const auto config = cuda::choose_fma_matmul(problem, multiprocessors);
      expect_ok(cuda::FmaMatmul::make(problem, config, *gpu_, &matmul));
      if (matmul != nullptr) use(*matmul);
    }
  }
  static Status launch(const cuda::TensorCoreMatmul& matmul, const MatmulArguments& arguments) {
    return matmul.run(arguments, nullptr, nullptr);
  }
  static Status launch(const cuda::FmaMatmul& matmul, const MatmulArguments& arguments) {
    return matmul.run(arguments, nullptr);
  }
  Array result(const Problem& problem, int32_t multiprocessors, int64_t misalign = 0) {
    Array amax;
    const Array c = testing_gpu::product(
        *gpu_, problem, misalign,
        [&](const MatmulArguments& arguments) {
          with_kernels(problem.problem, multiprocessors,
                       [&](const auto& matmul) { expect_ok(launch(matmul, arguments)); });
        },
        &amax);
    if (problem.given.amax) matmul_cases::expect_amax(problem, amax);
    return c;
  }
  void check(const Case& given, int32_t multiprocessors, int64_t misalign = 0) {
    SCOPED_TRACE(matmul_cases::describe(given) << " misalign " << misalign);
    const Problem problem(given);
    matmul_cases::expect_product(problem, result(problem, multiprocessors, misalign));
  }
  auto checker() {
    return [this](const Case& given) { check(given, gpu_->facts().multiprocessors); };
  }
};

TEST_F(GpuMatmul, EdgeShapes) { matmul_cases::edge_shapes(checker()); }
TEST_F(GpuMatmul, EmptyShapes) { matmul_cases::empty_shapes(checker()); }
TEST_F(GpuMatmul, Strides) { matmul_cases::strides(checker()); }
TEST_F(GpuMatmul, AlphaBetaAndBias) { matmul_cases::alpha_beta_and_bias(checker()); }
TEST_F(GpuMatmul, Batches) { matmul_cases::batches(checker()); }
TEST_F(GpuMatmul, ManyBlocks) { matmul_cases::many_blocks(checker()); }

class GpuMatmulActivations : public GpuMatmul, public testing::WithParamInterface<Activation> {};
INSTANTIATE_TEST_SUITE_P(Activations, GpuMatmulActivations,
                         testing::Values(Activation::kNone, Activation::kGeluTanh,
                                         Activation::kGeluErf, Activation::kSilu));

TEST_P(GpuMatmulActivations, MatchTheReference) {
  matmul_cases::activations([this](const Case& given) {
    if (given.activation == GetParam()) check(given, gpu_->facts().multiprocessors);
  });
}

TEST_F(GpuMatmul, AmaxOfNothingAndOfNaN) {
  for (const auto& types : kTypes) {
    const Case given{
        .dtype = types[0], .out_dtype = types[1], .m = 40, .n = 70, .k = 20, .amax = true};
    Case empty = given;
    empty.m = 0;
    check(empty, kSmallest);
    Problem problem(given);
    problem.a.fill_all(std::nan(""));
    result(problem, kSmallest);
    result(matmul_cases::bias_outside_of_c(types[0], types[1], Layout::kRows), kLargest);
  }
}

// Both tiles, all ways in which operands and result may lie: in whole vectors, with parts of them
// at the ends, and misaligned.
TEST_F(GpuMatmul, TilesAndLayouts) {
  constexpr Layout kPlain[] = {Layout::kRows, Layout::kColumns};
  constexpr Layout kPadded[] = {Layout::kPaddedRows, Layout::kPaddedColumns};
  const auto check_all = [&](Case given, const Layout(&layouts)[2], int64_t misalign) {
    for (const auto& types : kTypes)
      for (const int32_t multiprocessors : {kLargest, kSmallest})
        for (int ways = 0; ways < 8; ++ways) {
          given.dtype = types[0];
          given.out_dtype = types[1];
          given.a = layouts[ways & 1];
          given.b = layouts[ways >> 1 & 1];
          given.c = layouts[ways >> 2];
          check(given, multiprocessors, misalign);
        }
  };
  check_all({.m = 136, .n = 200, .k = 264}, kPlain, 0);
  check_all({.m = 141, .n = 203, .k = 267, .beta = 1}, kPadded, 0);
  check_all({.batch = 2, .m = 139, .n = 197, .k = 70, .beta = 0.5, .bias = true}, kPlain, 3);
}

// The sums of an element are the same whichever tile it lies in.
TEST_F(GpuMatmul, SumsDoNotDependOnTheTile) {
  for (const auto& types : kTypes) {
    const Problem problem(
        {.dtype = types[0], .out_dtype = types[1], .batch = 2, .m = 150, .n = 170, .k = 300});
    const Array large = result(problem, kLargest);
    EXPECT_EQ(large.memory, result(problem, kSmallest).memory) << name_of(types[0]);
  }
}

// Rows that lie 2^31 bytes apart: three of them reach past 2^31 elements.
TEST_F(GpuMatmul, OffsetsPast31Bits) {
  for (const auto& types : kTypes) {
    const int64_t size = size_of(types[0]);
    const Case given{.dtype = types[0], .out_dtype = types[0], .m = 4, .n = 40, .k = 72};
    const Problem problem(given);
    const int64_t row = (int64_t{1} << 31) / size + 8;
    const auto bytes = static_cast<size_t>(given.m * row * size);
    if (gpu_->facts().memory_bytes < 3 * bytes) GTEST_SKIP() << "there is not enough memory";
    void *a = nullptr, *c = nullptr;
    expect_ok(cuda::allocate(*gpu_, bytes, &a));
    expect_ok(cuda::allocate(*gpu_, bytes, &c));
    ASSERT_TRUE(a != nullptr && c != nullptr);
    const auto row_at = [&](void* data, int64_t i) {
      return static_cast<std::byte*>(data) + i * row * size;
    };
    const auto copy_rows = [&](const Array& buffer, void* data, bool to_gpu) {
      const auto length = static_cast<size_t>(buffer.tensor.shape[2] * size);
      for (int64_t i = 0; i < given.m; ++i) {
        std::byte* on_host = buffer.tensor.as<std::byte>() + i * buffer.tensor.stride[1] * size;
        std::byte* on_gpu = row_at(data, i);
        expect_ok(cuda::copy(*gpu_, to_gpu ? on_gpu : on_host, to_gpu ? on_host : on_gpu, length,
                             nullptr));
      }
    };
    Array b = problem.b, result = problem.c;
    const Mirror gpu_b(*gpu_, b);
    copy_rows(problem.a, a, true);
    MatmulArguments arguments = problem.arguments(problem.c.tensor);
    arguments.a.data = a;
    arguments.b = gpu_b.tensor();
    arguments.c.data = arguments.c0.data = c;
    arguments.a.stride[1] = arguments.c.stride[1] = arguments.c0.stride[1] = row;
    with_kernels(problem.problem, gpu_->facts().multiprocessors,
                 [&](const auto& matmul) { expect_ok(launch(matmul, arguments)); });
    copy_rows(result, c, false);
    matmul_cases::expect_product(problem, result);
    cuda::release(*gpu_, a);
    cuda::release(*gpu_, c);
  }
}

}  // namespace
}  // namespace perseid::internal
