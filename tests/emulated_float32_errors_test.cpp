// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Errors of attention in float32 by planes of f16 on an emulated GPU (float32_errors.hpp).
#include "emulated_attention.hpp"
#include "emulated_attention_backward.hpp"
#include "float32_errors.hpp"

namespace perseid::internal {
namespace {

using namespace emulated_attention;
using namespace float32_errors;

constexpr PortableForwardConfig kFew{
    .dtype = DType::kF32, .key_dim = 64, .value_dim = 64, .rows = 16};
constexpr PortableForwardConfig kFewWide{
    .dtype = DType::kF32, .key_dim = 128, .value_dim = 128, .rows = 16, .keys = 32};
constexpr PortableBackwardConfig kBackward =
    of(with_sums({.dtype = DType::kF32, .key_dim = 64, .value_dim = 64, .largest = 64}),
       GradientsOf::kKeys);
constexpr PortableBackwardConfig kBackwardWide =
    of(with_sums({.dtype = DType::kF32, .key_dim = 128, .value_dim = 128, .largest = 128}),
       GradientsOf::kKeys);

// Forward, and backward from its results.
void run_both(Fixture& fixture) {
  if (fixture.problem.head_dim == 64) {
    run<kFew>(fixture);
    run_backward<kBackward>(fixture);
  } else {
    run<kFewWide>(fixture);
    run_backward<kBackwardWide>(fixture);
  }
}

TEST(EmulatedFloat32Errors, AreThoseOfTheFormula) {
  for (const Inputs& inputs : all_inputs())
    for (const auto& [keys, dim] : {std::pair{130, 64}, {500, 64}, {130, 128}}) {
      SCOPED_TRACE(concatenate(inputs.name, ", ", keys, " keys, dim ", dim));
      Fixture fixture(make_case(DType::kF32, 1, 1, 1, 64, keys, dim, dim));
      fill_inputs(inputs, fixture);
      run_both(fixture);
      compare_errors(fixture, Formula<double>(fixture).compute());
    }
}

// A GPU's tensor cores, whose losses the kernels give back, lose a little less than the emulated.
TEST(EmulatedFloat32Errors, HaveNoLossInTheMean) {
  for (const int64_t dim : {64, 128}) expect_no_loss(dim, 6e-8, 1e-7, run_both);
}

// Probabilities of two keys, which values of 0 and 1 show: exponents of large weights are not
// rounded as parts of larger numbers.
TEST(EmulatedFloat32Errors, WeightsOfTwoKeys) {
  for (const double scale : {0.05, 0.3, 1.0}) {
    Case test = forward_case(DType::kF32, 1, 1, 1, 64, 2, 64, 64);
    test.input_scale = scale;
    test.prepare = [](AttentionBackward& a) {
      for (int64_t j = 0; j < 2; ++j)
        for (int64_t d = 0; d < 64; ++d) put(a.value, at(a.value, {0, 0, j, d}), d % 2 == j);
    };
    Fixture fixture(test);
    run<kFew>(fixture);
    const Tensor &query = fixture.arguments.query, &key = fixture.arguments.key;
    for (int64_t i = 0; i < 64; ++i) {
      double difference = 0;
      for (int64_t d = 0; d < 64; ++d)
        difference += get(query, at(query, {0, 0, i, d})) *
                      (get(key, at(key, {0, 0, 1, d})) - get(key, at(key, {0, 0, 0, d})));
      const double first = 1 / (1 + std::exp(difference * test.problem.scale));
      for (int64_t d = 0; d < 2; ++d)
        EXPECT_NEAR(get(fixture.out.tensor, at(fixture.out.tensor, {0, 0, i, d})),
                    d == 0 ? first : 1 - first, 1.5e-7)
            << "query " << i << ", inputs times " << scale;
    }
  }
}

// Backward's weights 2^(score - lse), which are as exact as lse is.
TEST(EmulatedFloat32Errors, LseInUnitsOfLog2) {
  for (double exact = 0x1p-20; exact < 700; exact *= 1.0371)
    for (const double sign : {1.0, -1.0}) {
      const auto lse = static_cast<float>(sign * exact);
      const cuda::LseInLog2 split(lse);
      const double power = std::exp(-double{lse}) / std::exp2(-double{split.rounded});
      EXPECT_NEAR(split.factor / power, 1, 1e-7) << lse;
      if (std::abs(split.rounded) >= 100) continue;
      for (const float shift : {-15.0f, 3.0f, 90.0f}) {
        EXPECT_EQ(double{split.rounded + shift}, double{split.rounded} + shift) << lse;
      }
    }
  for (const float lse : {INFINITY, -INFINITY, NAN, 1e30f, -1e30f}) {
    EXPECT_EQ(cuda::LseInLog2(lse).factor, 1) << lse;
  }
}

}  // namespace
}  // namespace perseid::internal
