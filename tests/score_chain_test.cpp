// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The score chain of attention: its formulas, and a modifier that is not the identity, a soft cap,
// of which value and gradient are held to each other.
#include <gtest/gtest.h>

#include <cmath>

#include "math/score_chain.hpp"

namespace perseid::internal {
namespace {

struct Float64 {
  using Scalar = double;
  using Reg = double;
  static double set1(double x) { return x; }
  static double add(double a, double b) { return a + b; }
  static double sub(double a, double b) { return a - b; }
  static double mul(double a, double b) { return a * b; }
  static double fma(double a, double b, double c) { return std::fma(a, b, c); }
};

constexpr double kCap = 3;
struct SoftCap {
  static constexpr bool kIdentity = false;
  template <class V>
  static double apply(double scaled) {
    return kCap * std::tanh(scaled / kCap);
  }
  template <class V>
  static double derivative(double modified) {
    return 1 - modified * modified / (kCap * kCap);
  }
};

TEST(ScoreChain, IdentityScalesAndAdds) {
  EXPECT_EQ((score<Float64>(5, 0.25, 2)), 3.25);
  EXPECT_EQ((score_log2<Float64>(5, 0.25)), 1.25);
  EXPECT_EQ((score_log2<Float64>(5, 0.25, -1)), 0.25);
  EXPECT_EQ((grad_score<Float64>(0.5, 3, 1)), 1);
  EXPECT_EQ((grad_product<Float64>(0.75, 100)), 0.75);
}

TEST(ScoreChain, ModifierIsAppliedBetweenScaleAndBias) {
  const double scale = 0.25, bias = 2, capped = kCap * std::tanh(5 * scale / kCap);
  EXPECT_DOUBLE_EQ((score<Float64, SoftCap>(5, scale, bias)), capped + bias);
  EXPECT_DOUBLE_EQ((score_log2<Float64, SoftCap>(5, scale * kLog2E)), capped * kLog2E);
  EXPECT_DOUBLE_EQ((score_log2<Float64, SoftCap>(5, scale * kLog2E, -1)), capped * kLog2E - 1);
}

TEST(ScoreChain, GradientIsThatOfTheModifiedScore) {
  constexpr double kStep = 1e-6;
  for (const double scaled : {-7.0, -1.0, 0.0, 0.5, 4.0}) {
    const auto at = [](double x) { return score<Float64, SoftCap>(x, 1, 0); };
    const double slope = (at(scaled + kStep) - at(scaled - kStep)) / (2 * kStep);
    const double modified_log2 = score_log2<Float64, SoftCap>(scaled, kLog2E);
    EXPECT_NEAR((grad_product<Float64, SoftCap>(2, modified_log2)), 2 * slope, 1e-8) << scaled;
  }
}

}  // namespace
}  // namespace perseid::internal
