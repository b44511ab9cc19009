// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul by wgmma against the float64 reference: every tile, cluster, layout, type and epilogue,
// and the problems of the CPU's test. Skipped where there is no GPU of compute capability 9.0.
#include <gtest/gtest.h>

#include <span>

#include "cuda/sm90/matmul.hpp"
#include "gpu_matmul_cases.hpp"

namespace perseid::internal {
namespace {

using matmul_cases::Case;
using matmul_cases::Layout;
using matmul_cases::Problem;
using testing_gpu::expect_ok;
using tests::Array;

struct Shape {
  int consumers, columns, cluster;
};
constexpr Shape kShapes[] = {{2, 256, 1}, {2, 256, 2}, {2, 192, 1}, {2, 128, 1}, {2, 128, 2},
                             {2, 64, 1},  {1, 256, 1}, {1, 128, 1}, {1, 64, 1}};

// Whether TMA takes the tensor: else another kernel runs, which has a test of its own.
bool is_mappable(const Tensor& tensor) {
  const int64_t size = size_of(tensor.dtype);
  const auto whole = [&](int64_t stride) { return stride > 0 && stride * size % 16 == 0; };
  const bool rows = tensor.stride[2] == 1 && whole(tensor.stride[1]);
  const bool columns = tensor.stride[1] == 1 && whole(tensor.stride[2]);
  const bool batch = tensor.stride[0] == 0 || whole(tensor.stride[0]);
  return (rows || columns) && batch && reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0;
}

class GpuSm90Matmul : public testing_gpu::GpuTest {
 protected:
  GpuSm90Matmul() : GpuTest(9) {}

  Array result(const Problem& problem, const cuda::Sm90MatmulConfig& config) {
    std::unique_ptr<cuda::Sm90Matmul> matmul;
    expect_ok(cuda::Sm90Matmul::make(problem.problem, config, *gpu_, &matmul));
    description_ = matmul->description();
    void* workspace = nullptr;
    expect_ok(cuda::allocate(*gpu_, matmul->workspace(), &workspace));
    const std::vector<uint8_t> rubbish(matmul->workspace(), 0xff);  // NaN
    expect_ok(cuda::copy(*gpu_, workspace, rubbish.data(), rubbish.size(), nullptr));
    Array amax;
    const Array c = testing_gpu::product(
        *gpu_, problem, 0,
        [&](const MatmulArguments& arguments) {
          mapped_ = is_mappable(arguments.a) && is_mappable(arguments.b) &&
                    is_mappable(arguments.c) && is_mappable(arguments.c0);
          expect_ok(matmul->run(arguments, workspace, nullptr));
        },
        &amax);
    cuda::release(*gpu_, workspace);
    if (problem.given.amax) matmul_cases::expect_amax(problem, amax);
    return c;
  }
  cuda::Sm90MatmulConfig config_of(const Case& given, const Shape& shape) const {
    return {.in = given.dtype,
            .out = given.out_dtype,
            .consumers = shape.consumers,
            .columns = shape.columns,
            .cluster = shape.cluster,
            .source = given.beta != 0,
            .activation = given.activation,
            .amax = given.amax};
  }
  // The first shape against the reference, the others bit for bit against the first: the sums of an
  // element are the same whichever tile it lies in.
  void check_shapes(const Case& given, std::span<const Shape> shapes = kShapes) {
    SCOPED_TRACE(matmul_cases::describe(given));
    const Problem problem(given);
    const Array expected = result(problem, config_of(given, shapes[0]));
    EXPECT_TRUE(mapped_);
    matmul_cases::expect_product(problem, expected);
    for (const Shape& shape : shapes.subspan(1))
      EXPECT_EQ(result(problem, config_of(given, shape)).memory, expected.memory)
          << shape.consumers << " x " << shape.columns << ", clusters of " << shape.cluster;
  }
  // With the tiles that the library chooses; what it refuses is left to other kernels.
  auto checker() {
    return [this](const Case& given) {
      if (size_of(given.dtype) != 2) return;
      const Problem problem(given);
      if (!cuda::refuse_sm90_matmul(problem.problem).empty()) return;
      SCOPED_TRACE(matmul_cases::describe(given));
      const auto config = cuda::choose_sm90_matmul(problem.problem, gpu_->facts().multiprocessors);
      matmul_cases::expect_product(problem, result(problem, config));
    };
  }

  // Tiles of a configuration that splits some of them: against the reference, and the same bits
  // again and again.
  Array check_splits(const Case& given, const Shape& shape, const char* splits) {
    SCOPED_TRACE(matmul_cases::describe(given));
    const Problem problem(given);
    cuda::Sm90MatmulConfig config = config_of(given, shape);
    config.split_k = true;
    const Array c = result(problem, config);
    EXPECT_TRUE(mapped_);
    EXPECT_NE(description_.find(splits), std::string::npos) << description_;
    matmul_cases::expect_product(problem, c);
    for (int turn = 0; turn < 3; ++turn) EXPECT_EQ(result(problem, config).memory, c.memory);
    return c;
  }

  bool mapped_ = false;  // the tensors of the last product
  std::string description_;
};

TEST_F(GpuSm90Matmul, EdgeShapes) { matmul_cases::edge_shapes(checker()); }
TEST_F(GpuSm90Matmul, Strides) { matmul_cases::strides(checker()); }
TEST_F(GpuSm90Matmul, AlphaBetaAndBias) { matmul_cases::alpha_beta_and_bias(checker()); }
TEST_F(GpuSm90Matmul, Batches) { matmul_cases::batches(checker()); }
TEST_F(GpuSm90Matmul, ManyBlocks) { matmul_cases::many_blocks(checker()); }

// Tails of every size that TMA takes, in every entry of a batch.
TEST_F(GpuSm90Matmul, TailsOfABatch) {
  constexpr DType kTypes[][2] = {{DType::kBF16, DType::kBF16}, {DType::kF16, DType::kF32}};
  const auto check = checker();
  for (const auto& types : kTypes)
    for (const int64_t m : {1, 63, 65, 129})
      for (const int64_t n : {8, 64, 136, 264})
        for (const int64_t k : {8, 64, 136}) {
          check({.dtype = types[0], .out_dtype = types[1], .batch = 3, .m = m, .n = n, .k = k});
          EXPECT_TRUE(mapped_);
        }
}

// Where a has few rows, no others are loaded: NaN of a tail, of the next entry of a batch, and from
// before the launch leaves no trace. With c by columns the product is transposed.
TEST_F(GpuSm90Matmul, FewRows) {
  const auto check = checker();
  constexpr Layout kLayouts[] = {Layout::kRows, Layout::kColumns};
  for (const DType out : {DType::kBF16, DType::kF32})
    for (const int64_t m : {1, 2, 8, 9, 16, 17, 32, 33})
      for (int ways = 0; ways < 8; ++ways)
        check({.dtype = DType::kBF16,
               .out_dtype = out,
               .batch = m % 2 == 0 ? 1 : 2,
               .m = ways % 2 == 0 ? m : round_up(m, 8),
               .n = 200,
               .k = 1672,
               .beta = m % 3 == 0 ? 0.5 : 0,
               .bias = true,
               .a = kLayouts[ways & 1],
               .b = kLayouts[ways >> 1 & 1],
               .c = kLayouts[ways >> 2],
               .activation = Activation::kSilu,
               .amax = true});
}

// One matrix serves the whole batch.
TEST_F(GpuSm90Matmul, SharedOperands) {
  const auto check = checker();
  for (const Layout a : {Layout::kRows, Layout::kOneForAll})
    for (const Layout b : {Layout::kRows, Layout::kOneForAll}) {
      check({.dtype = DType::kBF16,
             .out_dtype = DType::kBF16,
             .batch = 5,
             .m = 200,
             .n = 264,
             .k = 96,
             .beta = 1,
             .bias = true,
             .a = a,
             .b = b});
      EXPECT_TRUE(mapped_);
    }
}

// Tails along every dimension; depths of fewer steps than the epilogue has chunks, and of more;
// each layout of a, b and c.
TEST_F(GpuSm90Matmul, TilesAndLayouts) {
  constexpr Layout kLayouts[] = {Layout::kRows, Layout::kColumns};
  for (const int64_t k : {8, 200, 712})
    for (int ways = 0; ways < 8; ++ways)
      check_shapes({.dtype = DType::kBF16,
                    .out_dtype = DType::kBF16,
                    .m = 328,
                    .n = 584,
                    .k = k,
                    .a = kLayouts[ways & 1],
                    .b = kLayouts[ways >> 1 & 1],
                    .c = kLayouts[ways >> 2]});
}

TEST_F(GpuSm90Matmul, TypesAndEpilogues) {
  constexpr DType kTypes[][2] = {{DType::kBF16, DType::kBF16},
                                 {DType::kBF16, DType::kF32},
                                 {DType::kF16, DType::kF16},
                                 {DType::kF16, DType::kF32}};
  for (const auto& types : kTypes)
    for (const double beta : {0.0, 0.5})
      for (const Layout c : {Layout::kRows, Layout::kColumns})
        check_shapes({.dtype = types[0],
                      .out_dtype = types[1],
                      .batch = 2,
                      .m = 272,
                      .n = 520,
                      .k = 456,
                      .alpha = 0.75,
                      .beta = beta,
                      .bias = true,
                      .c = c},
                     std::span(kShapes).first(2));
}

class GpuSm90MatmulActivations : public GpuSm90Matmul,
                                 public testing::WithParamInterface<Activation> {};
INSTANTIATE_TEST_SUITE_P(Activations, GpuSm90MatmulActivations,
                         testing::Values(Activation::kNone, Activation::kGeluTanh,
                                         Activation::kGeluErf, Activation::kSilu));

// Deferred epilogues, and those that read c0 or write f32; several tiles of a block.
TEST_P(GpuSm90MatmulActivations, MatchTheReference) {
  constexpr DType kTypes[][2] = {
      {DType::kBF16, DType::kBF16}, {DType::kF16, DType::kF16}, {DType::kBF16, DType::kF32}};
  for (size_t type = 0; type < std::size(kTypes); ++type)
    for (const Layout c : {Layout::kRows, Layout::kColumns})
      check_shapes({.dtype = kTypes[type][0],
                    .out_dtype = kTypes[type][1],
                    .batch = 3,
                    .m = 1160,
                    .n = 1048,
                    .k = 136,
                    .alpha = 0.75,
                    .beta = type == 1 ? 0.5 : 0,
                    .bias = true,
                    .c = c,
                    .activation = GetParam(),
                    .amax = true},
                   std::span(kShapes).subspan(1, 1));
}

TEST_F(GpuSm90Matmul, AmaxOfCAloneAndOfNaN) {
  for (const DType out : {DType::kBF16, DType::kF32})
    for (const Layout c : {Layout::kRows, Layout::kColumns}) {
      Problem problem = matmul_cases::bias_outside_of_c(DType::kBF16, out, c);
      const auto config = config_of(problem.given, kShapes[0]);
      result(problem, config);
      EXPECT_TRUE(mapped_);
      problem.a.fill_all(std::nan(""));
      result(problem, config);
    }
}

// All tiles are split; of c by columns the product is transposed, and its tiles are others.
TEST_F(GpuSm90Matmul, SplitTilesInEachLayout) {
  constexpr Layout kLayouts[] = {Layout::kRows, Layout::kColumns};
  for (int ways = 0; ways < 8; ++ways)
    check_splits({.dtype = DType::kBF16,
                  .out_dtype = DType::kBF16,
                  .m = 136,
                  .n = 200,
                  .k = 2056,
                  .a = kLayouts[ways & 1],
                  .b = kLayouts[ways >> 1 & 1],
                  .c = kLayouts[ways >> 2]},
                 {2, 64, 1}, "8 of 8 tiles in ");
}

// Entries of a batch that have the same operands have the same bits.
TEST_F(GpuSm90Matmul, SplitTilesOfTypesAndEpilogues) {
  struct Kernel {
    DType in, out;
    Shape shape;
    double beta;
  };
  for (const auto& [in, out, shape, beta] : {Kernel{DType::kBF16, DType::kBF16, {2, 256, 1}, 0},
                                             Kernel{DType::kBF16, DType::kF32, {2, 192, 1}, 0.5},
                                             Kernel{DType::kF16, DType::kF16, {1, 64, 1}, 0.5}}) {
    const Array c = check_splits({.dtype = in,
                                  .out_dtype = out,
                                  .batch = 2,
                                  .m = 136,
                                  .n = 200,
                                  .k = 3080,
                                  .alpha = 0.75,
                                  .beta = beta,
                                  .bias = true,
                                  .a = Layout::kOneForAll,
                                  .b = Layout::kOneForAll,
                                  .activation = Activation::kSilu,
                                  .amax = true},
                                 shape, " splits of k");
    if (beta != 0) continue;
    const std::vector<double> values = c.values();
    const auto each = static_cast<ptrdiff_t>(values.size() / 2);
    EXPECT_TRUE(std::equal(values.begin(), values.end() - each, values.begin() + each));
  }
}

// Whole tiles, whose epilogues are deferred, come before the split ones of a block.
TEST_F(GpuSm90Matmul, SplitTilesBehindWholeOnes) {
  for (const DType out : {DType::kBF16, DType::kF32})
    check_splits({.dtype = DType::kBF16, .out_dtype = out, .m = 520, .n = 1160, .k = 3072},
                 {1, 64, 1}, "45 of 171 tiles in 3 splits of k");
}

// A block computes several tiles, so that an epilogue is deferred past the end of a batch entry.
TEST_F(GpuSm90Matmul, ManyTilesOfABlock) {
  check_shapes({.dtype = DType::kBF16,
                .out_dtype = DType::kBF16,
                .batch = 3,
                .m = 1160,
                .n = 2056,
                .k = 72});
}

}  // namespace
}  // namespace perseid::internal
