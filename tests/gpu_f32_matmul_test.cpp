// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul of f32 by products of f16, by the kernels for compute capability 9.0 and those for any
// GPU, against the float64 reference: every tile, layout and epilogue, the accuracy of a float32
// formula, and what f16 cannot carry. Skipped where there is no such GPU.
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <span>

#include "cuda/matmul/tensor_core_f32.hpp"
#include "cuda/sm90/matmul_f32.hpp"
#include "gpu_matmul_cases.hpp"

namespace perseid::internal {
namespace {

using matmul_cases::Case;
using matmul_cases::Layout;
using matmul_cases::Problem;
using testing_gpu::expect_ok;
using testing_gpu::Mirror;
using tests::Array;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct OnSm90 {
  static constexpr const char* kName = "Sm90";
  static constexpr int kMajor = 9;
  using Matmul = cuda::Sm90F32Matmul;
  using Config = cuda::Sm90MatmulConfig;
  static Config choose(const MatmulProblem& problem, const cuda::GpuFacts& gpu) {
    return cuda::choose_sm90_f32_matmul(problem, gpu.multiprocessors);
  }
  // Without split tiles, whose sums have another order.
  static std::vector<Config> whole_tiles(Config config) {
    std::vector<Config> all;
    config.split_k = false;
    for (config.columns = 64; config.columns <= 192; config.columns += 64)
      for (config.cluster = 1; config.cluster <= 2; ++config.cluster) all.push_back(config);
    return all;
  }
};

struct OnTensorCores {
  static constexpr const char* kName = "TensorCores";
  static constexpr int kMajor = 0;  // any
  using Matmul = cuda::TensorCoreF32Matmul;
  using Config = cuda::MatmulTensorConfig;
  static Config choose(const MatmulProblem& problem, const cuda::GpuFacts& gpu) {
    return cuda::choose_tensor_core_matmul(problem, gpu.multiprocessors, gpu.shared_bytes);
  }
  static std::vector<Config> whole_tiles(const Config& config) {
    std::vector<Config> all;
    for (const int32_t multiprocessors : {1, 1 << 30}) {  // the largest tile, and the smallest
      const MatmulProblem problem{.m = 328, .n = 584, .k = 200, .beta = 1};
      all.push_back(cuda::choose_tensor_core_matmul(problem, multiprocessors, 99 << 10));
      all.back().activation = config.activation;
    }
    EXPECT_NE(all[0].rows, all[1].rows);
    return all;
  }
};

template <class Implementation>
class GpuF32Matmul : public testing_gpu::GpuTest {
 protected:
  GpuF32Matmul() : GpuTest(Implementation::kMajor) {}

  Array result(const Problem& problem, const typename Implementation::Config& config,
               int64_t misalign = 0) {
    std::unique_ptr<typename Implementation::Matmul> matmul;
    expect_ok(Implementation::Matmul::make(problem.problem, config, *gpu_, &matmul));
    description_ = matmul->description();
    // What is left there from before must not matter.
    void* workspace = nullptr;
    const std::vector<std::byte> rubbish(matmul->workspace(), std::byte{0xff});
    expect_ok(cuda::allocate(*gpu_, rubbish.size(), &workspace));
    expect_ok(cuda::copy(*gpu_, workspace, rubbish.data(), rubbish.size(), nullptr));
    Array amax;
    Array c = testing_gpu::product(
        *gpu_, problem, misalign,
        [&](const MatmulArguments& arguments) {
          expect_ok(matmul->run(arguments, workspace, nullptr));
        },
        &amax);
    if (problem.given.amax) matmul_cases::expect_amax(problem, amax);
    cuda::release(*gpu_, workspace);
    return c;
  }
  Array result(const Problem& problem) {
    return result(problem, Implementation::choose(problem.problem, gpu_->facts()));
  }
  auto checker(int64_t misalign = 0) {
    return [this, misalign](const Case& given) {
      if (given.dtype != DType::kF32) return;
      const Problem problem(given);
      if (!cuda::refuse_split_matmul(problem.problem).empty()) return;
      SCOPED_TRACE(matmul_cases::describe(given));
      const auto config = Implementation::choose(problem.problem, gpu_->facts());
      matmul_cases::expect_product(problem, result(problem, config, misalign));
    };
  }
  std::string description_;  // of the last product
};

struct NameOf {
  template <class Implementation>
  static std::string GetName(int) {
    return Implementation::kName;
  }
};
using Implementations = testing::Types<OnSm90, OnTensorCores>;
TYPED_TEST_SUITE(GpuF32Matmul, Implementations, NameOf);
using GpuSm90F32Matmul = GpuF32Matmul<OnSm90>;

TYPED_TEST(GpuF32Matmul, EdgeShapes) { matmul_cases::edge_shapes(this->checker()); }
TYPED_TEST(GpuF32Matmul, Strides) { matmul_cases::strides(this->checker()); }
TYPED_TEST(GpuF32Matmul, AlphaBetaAndBias) { matmul_cases::alpha_beta_and_bias(this->checker()); }
TYPED_TEST(GpuF32Matmul, Batches) { matmul_cases::batches(this->checker()); }
TYPED_TEST(GpuF32Matmul, ManyBlocks) { matmul_cases::many_blocks(this->checker()); }
TYPED_TEST(GpuF32Matmul, Misaligned) { matmul_cases::many_blocks(this->checker(1)); }

// Tails along every dimension, each layout of a, b and c, each tile; the bits do not depend on it.
TYPED_TEST(GpuF32Matmul, TilesAndLayouts) {
  constexpr Layout kLayouts[] = {Layout::kRows, Layout::kColumns};
  for (const int64_t k : {8, 200, 712})
    for (int ways = 0; ways < 8; ++ways) {
      const Case given{.m = 328,
                       .n = 584,
                       .k = k,
                       .a = kLayouts[ways & 1],
                       .b = kLayouts[ways >> 1 & 1],
                       .c = kLayouts[ways >> 2]};
      SCOPED_TRACE(matmul_cases::describe(given));
      const Problem problem(given);
      Array expected;
      for (const auto& config :
           TypeParam::whole_tiles(TypeParam::choose(problem.problem, this->gpu_->facts()))) {
        const Array c = this->result(problem, config);
        if (expected.memory.empty()) {
          matmul_cases::expect_product(problem, c);
          expected = c;
        }
        EXPECT_EQ(c.memory, expected.memory) << this->description_;
      }
    }
}

// Tiles split along k: again and again the same bits.
TEST_F(GpuSm90F32Matmul, SplitTiles) {
  for (const Precision precision : {Precision::kDefault, Precision::kTF32})
    for (const Layout c : {Layout::kRows, Layout::kColumns}) {
      Problem problem(
          Case{.batch = 2, .m = 136, .n = 200, .k = 4104, .beta = 0.5, .bias = true, .c = c});
      problem.problem.precision = precision;
      const Array first = result(problem);
      EXPECT_NE(description_.find(" splits of k"), std::string::npos) << description_;
      const std::vector<double> ours = first.values(), exact = problem.reference(false).values(),
                                sizes = problem.reference(true).values();
      const double of_factors = precision == Precision::kTF32 ? 0x1p-10 : 0;
      for (size_t i = 0; i < exact.size(); ++i)
        ASSERT_NEAR(ours[i], exact[i], (of_factors + 64 * 0x1p-24) * sizes[i]) << i;
      EXPECT_EQ(result(problem).memory, first.memory);
    }
}

// Several tiles of a block, batch entries that share an operand, and c0 in place.
TYPED_TEST(GpuF32Matmul, ManyTilesOfABlock) {
  for (const double beta : {0.0, 0.5})
    this->checker()({.batch = 3,
                     .m = 1160,
                     .n = 2056,
                     .k = 72,
                     .alpha = 0.75,
                     .beta = beta,
                     .bias = true,
                     .b = Layout::kOneForAll});
}

// With rows and columns that the fixup computes, and without.
TYPED_TEST(GpuF32Matmul, Activations) {
  for (const auto activation :
       {Activation::kNone, Activation::kGeluTanh, Activation::kGeluErf, Activation::kSilu})
    for (const bool fixup : {false, true}) {
      const double beta = fixup == (activation == Activation::kSilu) ? 0.0 : 0.5;
      Problem problem(Case{.batch = 2,
                           .m = 328,
                           .n = 584,
                           .k = 200,
                           .beta = beta,
                           .bias = true,
                           .activation = activation,
                           .amax = true});
      if (fixup) {
        problem.a.tensor.as<float>()[7 * 200] = 0x1p70f;
        problem.b.tensor.as<float>()[9] = 0x1p-70f;
      }
      SCOPED_TRACE(testing::Message() << "beta " << beta << " fixup " << fixup);
      matmul_cases::expect_product(problem, this->result(problem));
    }
}

TYPED_TEST(GpuF32Matmul, AmaxOfCAlone) {
  for (const Layout c : {Layout::kRows, Layout::kColumns})
    this->result(matmul_cases::bias_outside_of_c(DType::kF32, DType::kF32, c));
}

// Longer than what the splitting holds in registers, with and without whole vectors.
TYPED_TEST(GpuF32Matmul, LongLines) {
  for (const int64_t k : {1031, 20008})
    for (const Layout b : {Layout::kRows, Layout::kColumns})
      this->checker()({.m = 72, .n = 136, .k = k, .b = b});
}

// ---- Accuracy ----

// f16 carries numbers of 2^-44 beside 1 with few bits: their row of a, or column of b, is left to
// multiply-add. The large one meets zeros, so that nothing hides the small ones.
TYPED_TEST(GpuF32Matmul, SmallNumbersBesideALargeOne) {
  constexpr int64_t kM = 136, kN = 136, kK = 200, kLarge = 77;
  for (const bool of_a : {true, false}) {
    Problem problem(Case{.m = kM, .n = kN, .k = kK});
    float* const a = problem.a.tensor.as<float>();
    float* const b = problem.b.tensor.as<float>();
    for (int64_t k = 0; k < kK; ++k) {
      float& x = of_a ? a[3 * kK + k] : b[k * kN + 3];
      x = k == kLarge ? 1 : x * 0x1p-44f;
    }
    for (int64_t i = 0; i < kM; ++i) (of_a ? b[kLarge * kN + i] : a[i * kK + kLarge]) = 0;
    matmul_cases::expect_product(problem, this->result(problem));
  }
}

struct Errors {
  double ours = 0, formula = 0;  // norms of the errors against float64
};
Errors errors_of(const Problem& problem, const Array& c) {
  const int64_t m = problem.given.m, n = problem.given.n, k = problem.given.k;
  const std::vector<double> a = problem.a.values(), b = problem.b.values(), ours = c.values();
  const std::vector<double> exact = problem.reference(false).values();
  Errors errors;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t l = 0; l < k; ++l)
        sum = std::fma(static_cast<float>(a[static_cast<size_t>(i * k + l)]),
                       static_cast<float>(b[static_cast<size_t>(l * n + j)]), sum);
      const auto at = static_cast<size_t>(i * n + j);
      errors.ours += std::pow(ours[at] - exact[at], 2);
      errors.formula += std::pow(double{sum} - exact[at], 2);
    }
  return errors;
}

// The error of sums in float32 in the order of k, or less: normal numbers, numbers around a large
// mean, powers of two up to 2^±8 in each number, and along k so that a and b cancel.
TYPED_TEST(GpuF32Matmul, IsAsAccurateAsFloat32) {
  for (const char* inputs : {"normal", "offset", "wide", "crossed"}) {
    Problem problem(Case{.m = 200, .n = 192, .k = 600});
    std::mt19937 generator(7);
    std::normal_distribution<double> normal;
    std::uniform_int_distribution<int> power(-8, 8);
    std::vector<int> powers(600);
    for (int& each : powers) each = power(generator);
    const std::string kind = inputs;
    const auto fill = [&](Array& array, const auto& depth_of, int sign) {
      std::vector<double> values(array.values().size());
      for (size_t i = 0; i < values.size(); ++i) {
        const double x = normal(generator);
        values[i] = kind == "offset"    ? 1 + 0.1 * x
                    : kind == "wide"    ? std::ldexp(x, power(generator))
                    : kind == "crossed" ? std::ldexp(x, sign * powers[depth_of(i)])
                                        : x;
      }
      array.fill(values);
    };
    fill(
        problem.a, [](size_t i) { return i % 600; }, 1);
    fill(
        problem.b, [](size_t i) { return i / 192; }, -1);
    const Errors errors = errors_of(problem, this->result(problem));
    EXPECT_LE(errors.ours, errors.formula) << inputs;
    EXPECT_GT(errors.ours, 0) << inputs;
  }
}

// ---- What f16 cannot carry ----

// Special numbers in single rows of a and columns of b: they and all others are as the formula's.
TYPED_TEST(GpuF32Matmul, SpecialNumbersGiveWhatFloat32Gives) {
  constexpr int64_t kM = 150, kN = 260, kK = 90;
  for (const double beta : {0.0, 0.5}) {
    Problem problem(Case{.m = kM, .n = kN, .k = kK, .beta = beta, .bias = true});
    std::vector<double> a = problem.a.values(), b = problem.b.values();
    const auto of_a = [&](int64_t i, int64_t l) -> double& {
      return a[static_cast<size_t>(i * kK + l)];
    };
    const auto of_b = [&](int64_t l, int64_t j) -> double& {
      return b[static_cast<size_t>(l * kN + j)];
    };
    of_a(3, 5) = kInf;
    of_a(40, 89) = kNan;
    of_a(41, 0) = std::numeric_limits<float>::max();
    of_b(17, 100) = -kInf;
    of_b(17, 259) = kNan;
    of_b(0, 7) = -std::numeric_limits<float>::max();
    for (int64_t l = 0; l < kK; ++l) {
      of_a(60, l) = 0;
      of_a(61, l) *= 0x1p-120;
      of_a(62, l) *= 0x1p-140;  // subnormal
      of_a(63, l) *= 0x1p70;
      of_a(64, l) *= std::ldexp(1, static_cast<int>(l % 2) * -60);  // half of them lost
      of_b(l, 200) = -0.0;
      of_b(l, 201) *= std::ldexp(1, static_cast<int>((l + 1) % 2) * -60);
      of_b(l, 202) *= 0x1p-80;
    }
    problem.a.fill(a);
    problem.b.fill(b);
    const Array c = this->result(problem);
    const std::vector<double> ours = c.values(), exact = problem.reference(false).values();
    const std::vector<double> sizes = problem.reference(true).values();
    for (int64_t i = 0; i < kM; ++i)
      for (int64_t j = 0; j < kN; ++j) {
        const auto at = static_cast<size_t>(i * kN + j);
        const double x = exact[at], y = ours[at];
        const double limit = 2 * (kK + 4) * 0x1p-24 * sizes[at] + kK * 0x1p-149;
        if (std::isnan(x)) {
          EXPECT_TRUE(std::isnan(y)) << i << " " << j;
        } else if (std::abs(x) > std::numeric_limits<float>::max()) {
          EXPECT_EQ(y, x > 0 ? kInf : -kInf) << i << " " << j;
        } else if (sizes[at] < std::numeric_limits<float>::max()) {
          EXPECT_NEAR(y, x, limit) << i << " " << j;
        }
      }
  }
}

// A row's bits do not depend on the others, special ones included.
TYPED_TEST(GpuF32Matmul, RowsDoNotDependOnOthers) {
  const Problem plain(Case{.m = 130, .n = 96, .k = 80});
  Problem with_infinity(plain.given);
  std::vector<double> a = plain.a.values();
  a[5 * 80 + 3] = kInf;
  a[100 * 80 + 3] = 0x1p100;
  with_infinity.a.fill(a);
  const std::vector<double> expected = this->result(plain).values(),
                            got = this->result(with_infinity).values();
  for (size_t i = 0; i < expected.size(); ++i)
    if (i / 96 != 5 && i / 96 != 100) {
      ASSERT_EQ(got[i], expected[i]) << i / 96;
    }
}

// ---- TF32 on request ----

TYPED_TEST(GpuF32Matmul, TF32RoundsFactorsTo11Bits) {
  Problem problem(Case{.m = 200, .n = 264, .k = 300, .beta = 0.5, .bias = true});
  problem.problem.precision = Precision::kTF32;
  const std::vector<double> ours = this->result(problem).values(),
                            exact = problem.reference(false).values(),
                            sizes = problem.reference(true).values();
  double worst = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double error = std::abs(ours[i] - exact[i]) / sizes[i];
    worst = std::max(worst, error);
    ASSERT_LE(error, 2 * 0x1p-11) << i;
  }
  EXPECT_GT(worst, 0x1p-20);  // faster than three products
}

}  // namespace
}  // namespace perseid::internal
