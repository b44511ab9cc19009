// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul of 8-bit types by wgmma against the float64 reference: types, scales, results, tiles, and
// what is refused. Skipped where there is no GPU of compute capability 9.0.
#include <gtest/gtest.h>

#include "cuda/sm90/matmul_f8.hpp"
#include "gpu_matmul_cases.hpp"

namespace perseid::internal {
namespace {

using matmul_cases::Case;
using matmul_cases::Layout;
using matmul_cases::Problem;
using testing_gpu::expect_ok;
using tests::Array;

constexpr DType kE4M3 = DType::kF8E4M3, kE5M2 = DType::kF8E5M2;

class GpuF8Matmul : public testing_gpu::GpuTest {
 protected:
  GpuF8Matmul() : GpuTest(9) {}

  Array result(const Problem& problem, const cuda::Sm90MatmulConfig& config) {
    std::unique_ptr<cuda::Sm90F8Matmul> matmul;
    expect_ok(cuda::Sm90F8Matmul::make(problem.problem, config, *gpu_, &matmul));
    description_ = matmul->description();
    void* workspace = nullptr;
    expect_ok(cuda::allocate(*gpu_, matmul->workspace(), &workspace));
    const std::vector<uint8_t> rubbish(matmul->workspace(), 0xff);  // NaN
    expect_ok(cuda::copy(*gpu_, workspace, rubbish.data(), rubbish.size(), nullptr));
    Array amax;
    const Array c = testing_gpu::product(
        *gpu_, problem, 0,
        [&](const MatmulArguments& arguments) {
          expect_ok(matmul->run(arguments, workspace, nullptr));
        },
        &amax);
    cuda::release(*gpu_, workspace);
    if (problem.given.amax) expect_amax(problem, amax);
    return c;
  }
  cuda::Sm90MatmulConfig config_of(const Problem& problem) const {
    return cuda::choose_sm90_f8_matmul(problem.problem, gpu_->facts().multiprocessors);
  }
  void check(const Case& given) {
    SCOPED_TRACE(matmul_cases::describe(given));
    const Problem problem(given);
    expect_product(problem, result(problem, config_of(problem)));
  }
  std::string description_;  // of the last product
  // The tensor cores add 32 products at a time, and keep 13 bits behind the largest summand: of the
  // sum of all magnitudes, at most. No activation is steeper than 1.13.
  static constexpr double kActivation = 0x1p-20;
  static double error_of_sums(const Case& given) {
    const bool promoted =
        given.accumulation == Accumulation::kPromoted || given.scaling == Scaling::kBlock;
    return 1.13 * 0x1p-13 * static_cast<double>(promoted ? 4 : ceil_div(given.k, 32));
  }
  static void expect_amax(const Problem& problem, const Array& amax) {
    Problem plain = problem;
    plain.problem.scale_result = false;
    double most = 0, reach = 0;
    for (const double value : plain.reference(false).values())
      most = std::max(most, std::abs(value));
    for (const double value : plain.reference(true).values()) reach = std::max(reach, value);
    EXPECT_NEAR(amax.get(0), most, error_of_sums(problem.given) * reach + kActivation * most);
    amax.expect_guards();
  }
  static void expect_product(const Problem& problem, const Array& c) {
    const DType out = problem.given.out_dtype;
    const double output = 1.01 * harness::unit_roundoff(tests::public_dtype(out));
    const double smallest = size_of(out) < 4 && out != DType::kBF16
                                ? harness::smallest_step(tests::public_dtype(out))
                                : 0;
    const std::vector<double> ours = c.values(), sizes = problem.reference(true).values();
    std::vector<double> exact = problem.reference(false).values();
    if (is_float8(out)) {
      const double most = harness::largest_float8(tests::public_dtype(out));
      for (double& value : exact) value = std::clamp(value, -most, most);
    }
    const double sums = error_of_sums(problem.given);
    int64_t wrong = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      const double limit = sums * sizes[i] + (output + kActivation) * std::abs(exact[i]) + smallest;
      if (std::abs(ours[i] - exact[i]) <= limit) continue;
      if (++wrong <= 5)
        ADD_FAILURE() << "element " << i << " is " << ours[i] << ", expected " << exact[i] << " to "
                      << limit;
    }
    EXPECT_EQ(wrong, 0);
    c.expect_guards();
  }
};

constexpr Scaling kScalings[] = {Scaling::kNone, Scaling::kTensor, Scaling::kRow, Scaling::kBlock};

class GpuF8MatmulOf : public GpuF8Matmul, public testing::WithParamInterface<Scaling> {};
INSTANTIATE_TEST_SUITE_P(Scales, GpuF8MatmulOf, testing::ValuesIn(kScalings));

// Pairs of types, kinds of accumulation and types of the result; c0 and bias where the result takes
// them, tails along every dimension, c by rows and by columns.
TEST_P(GpuF8MatmulOf, TypesAndResults) {
  constexpr DType kOuts[] = {DType::kF32, DType::kBF16, DType::kF16, kE4M3, kE5M2};
  const Scaling scaling = GetParam();
  int index = static_cast<int>(scaling);
  for (const DType out : kOuts)
    for (const Accumulation accumulation : {Accumulation::kPromoted, Accumulation::kFast}) {
      ++index;
      const bool narrow = is_float8(out), columns = index % 3 == 0;
      check({.dtype = index % 2 == 0 ? kE4M3 : kE5M2,
             .out_dtype = out,
             .batch = 2,
             .m = columns ? 208 : 201,
             .n = 304,
             .k = 400,
             .alpha = 0.75,
             .beta = narrow || index % 4 == 0 ? 0 : 0.5,
             .bias = index % 4 < 2,
             .b = Layout::kColumns,
             .c = columns && scaling != Scaling::kBlock ? Layout::kColumns : Layout::kRows,
             .b_dtype = index / 2 % 2 == 0 ? kE4M3 : kE5M2,
             .scaling = scaling,
             .scale_result = narrow && index % 2 == 0,
             .activation = static_cast<Activation>(index % 4),
             .amax = index % 3 != 2,
             .accumulation = accumulation});
    }
}

// Bits do not depend on the tile.
TEST_P(GpuF8MatmulOf, Tiles) {
  struct Shape {
    int columns, cluster;
  };
  constexpr Shape kShapes[] = {{64, 1}, {128, 1}, {192, 1}, {256, 1}, {128, 2}, {192, 2}, {256, 2}};
  const Scaling scaling = GetParam();
  if (scaling == Scaling::kTensor) return;  // as kRow
  const Accumulation accumulation =
      scaling == Scaling::kNone ? Accumulation::kFast : Accumulation::kPromoted;
  for (const int64_t k : {16, 528, 1040}) {
    const Problem problem(Case{.dtype = kE4M3,
                               .out_dtype = DType::kBF16,
                               .m = 328,
                               .n = 584,
                               .k = k,
                               .b = Layout::kColumns,
                               .scaling = scaling,
                               .accumulation = accumulation});
    auto config = config_of(problem);
    config.split_k = false;
    const Array expected = result(problem, config);
    expect_product(problem, expected);
    for (const Shape& shape : kShapes) {
      config.columns = shape.columns;
      config.cluster = shape.cluster;
      config.out_stages = config.out_chunks();
      if ((shape.columns == 256 && config.promote > 0) || !config.fits()) continue;
      EXPECT_EQ(result(problem, config).memory, expected.memory)
          << shape.columns << " columns, clusters of " << shape.cluster << ", k " << k;
    }
  }
}

// Tiles split along k: again and again the same bits.
TEST_P(GpuF8MatmulOf, SplitTiles) {
  const Scaling scaling = GetParam();
  for (const Accumulation accumulation : {Accumulation::kPromoted, Accumulation::kFast})
    for (const DType out : {DType::kBF16, DType::kF32, kE4M3}) {
      const Problem problem(Case{.dtype = kE4M3,
                                 .out_dtype = out,
                                 .batch = 2,
                                 .m = 136,
                                 .n = 208,
                                 .k = 8208,
                                 .bias = true,
                                 .b = Layout::kColumns,
                                 .scaling = scaling,
                                 .amax = true,
                                 .accumulation = accumulation});
      const Array c = result(problem, config_of(problem));
      EXPECT_NE(description_.find(" splits of k"), std::string::npos) << description_;
      expect_product(problem, c);
      EXPECT_EQ(result(problem, config_of(problem)).memory, c.memory);
    }
}

// Several tiles of a block, and batch entries that share b.
TEST_F(GpuF8Matmul, ManyTilesOfABlock) {
  for (const Accumulation accumulation : {Accumulation::kPromoted, Accumulation::kFast})
    for (const DType out : {DType::kBF16, kE4M3})
      check({.dtype = kE4M3,
             .out_dtype = out,
             .batch = 3,
             .m = 1160,
             .n = 2064,
             .k = 272,
             .b = Layout::kColumns,
             .scaling = Scaling::kTensor,
             .accumulation = accumulation});
}

TEST_F(GpuF8Matmul, AmaxOfCAlone) {
  for (const Layout c : {Layout::kRows, Layout::kColumns}) {
    const Problem problem = matmul_cases::bias_outside_of_c(kE4M3, DType::kBF16, c);
    result(problem, config_of(problem));
  }
}

// Promoted sums are more exact than fast ones.
TEST_F(GpuF8Matmul, PromotedSumsAreMoreExact) {
  double errors[2] = {};
  for (const Accumulation accumulation : {Accumulation::kPromoted, Accumulation::kFast}) {
    const Problem problem(Case{.dtype = kE4M3,
                               .out_dtype = DType::kF32,
                               .m = 128,
                               .n = 128,
                               .k = 8192,
                               .b = Layout::kColumns,
                               .accumulation = accumulation});
    auto config = config_of(problem);
    config.split_k = false;
    const std::vector<double> ours = result(problem, config).values(),
                              exact = problem.reference(false).values();
    for (size_t i = 0; i < exact.size(); ++i)
      errors[accumulation == Accumulation::kFast] += std::pow(ours[i] - exact[i], 2);
  }
  EXPECT_LT(16 * errors[0], errors[1]);
}

// The instruction takes no other layouts.
TEST_F(GpuF8Matmul, OtherLayoutsFailWithASentence) {
  const Problem problem(Case{.dtype = kE4M3, .out_dtype = DType::kF32, .m = 64, .n = 64, .k = 64});
  std::unique_ptr<cuda::Sm90F8Matmul> matmul;
  expect_ok(cuda::Sm90F8Matmul::make(problem.problem, *gpu_, &matmul));
  testing_gpu::product(*gpu_, problem, 0, [&](const MatmulArguments& arguments) {
    const Status status = matmul->run(arguments, nullptr, nullptr);
    EXPECT_EQ(status.code(), PERSEID_UNSUPPORTED);
    EXPECT_NE(std::string(status.sentence()).find("b has a stride of 64 along k"),
              std::string::npos)
        << status.sentence();
  });
}

}  // namespace
}  // namespace perseid::internal
