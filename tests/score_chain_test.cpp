// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The score chain of attention: its formulas, and a modifier that is not the identity, a soft cap,
// of which value and gradient are held to each other.
#include <gtest/gtest.h>

#include <cmath>

#include "math/score_chain.hpp"

namespace perseid::internal {

// A kind that the library does not have.
inline constexpr auto kSoftCap = static_cast<ScoreModifierKind>(1000);

template <>
struct Modifier<kSoftCap, double> {
  static constexpr bool kIdentity = false;
  double value;

  template <class V>
  double apply(double scaled) const {
    return value * std::tanh(scaled / value);
  }
  template <class V>
  double derivative(double modified) const {
    return 1 - modified * modified / (value * value);
  }
};

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

TEST(ScoreChain, IdentityScalesAndAdds) {
  constexpr Modifier<ScoreModifierKind::kNone, double> kIdentity{};
  EXPECT_EQ(score<Float64>(5, 0.25, 2, kIdentity), 3.25);
  EXPECT_EQ(score_log2<Float64>(5, 0.25, kIdentity), 1.25);
  EXPECT_EQ(score_log2<Float64>(5, 0.25, -1, kIdentity), 0.25);
  EXPECT_EQ(grad_score<Float64>(0.5, 3, 1), 1);
  EXPECT_EQ(grad_product<Float64>(0.75, 100, kIdentity), 0.75);
}

TEST(ScoreChain, ModifierIsAppliedBetweenScaleAndBias) {
  constexpr Modifier<kSoftCap, double> kModifier{kCap};
  const double scale = 0.25, bias = 2, capped = kCap * std::tanh(5 * scale / kCap);
  EXPECT_DOUBLE_EQ(score<Float64>(5, scale, bias, kModifier), capped + bias);
  EXPECT_DOUBLE_EQ(score_log2<Float64>(5, scale * kLog2E, kModifier), capped * kLog2E);
  EXPECT_DOUBLE_EQ(score_log2<Float64>(5, scale * kLog2E, -1, kModifier), capped * kLog2E - 1);
}

TEST(ScoreChain, GradientIsThatOfTheModifiedScore) {
  constexpr Modifier<kSoftCap, double> kModifier{kCap};
  constexpr double kStep = 1e-6;
  for (const double scaled : {-7.0, -1.0, 0.0, 0.5, 4.0}) {
    const auto at = [&](double x) { return score<Float64>(x, 1, 0, kModifier); };
    const double slope = (at(scaled + kStep) - at(scaled - kStep)) / (2 * kStep);
    const double modified_log2 = score_log2<Float64>(scaled, kLog2E, kModifier);
    EXPECT_NEAR(grad_product<Float64>(2, modified_log2, kModifier), 2 * slope, 1e-8) << scaled;
  }
}

TEST(ScoreModifier, KindOfTheProblemIsTheModifiers) {
  bool used = false;
  with_modifier<double>(ScoreModifier{}, [&](auto modifier) { used = modifier.kIdentity; });
  EXPECT_TRUE(used);
}

}  // namespace
}  // namespace perseid::internal
