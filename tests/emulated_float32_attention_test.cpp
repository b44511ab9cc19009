// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention in float32 by planes of f16 on an emulated GPU: every feature against the float64
// reference, what planes do not hold, and accuracy beside that of the plain float32 formula.
#include "attention_heads_apart.hpp"
#include "emulated_attention.hpp"

namespace perseid::internal {
namespace {

using namespace emulated_attention;

constexpr PortableForwardConfig kFull{.dtype = DType::kF32, .key_dim = 64, .value_dim = 64};
constexpr PortableForwardConfig kFew{
    .dtype = DType::kF32, .key_dim = 64, .value_dim = 64, .rows = 16};

TEST(EmulatedFloat32Attention, Full) {
  check<kFull>(forward_case(DType::kF32, 1, 2, 1, 130, 201, 64, 64));
  check<kFew>(forward_case(DType::kF32, 1, 1, 1, 40, 0, 64, 64));
}
TEST(EmulatedFloat32Attention, HeadsOfUnequalExponents) {
  Case test = forward_case(DType::kF32, 2, 6, 3, 70, 150, 64, 64);
  test.prepare = scale_heads_apart;
  check<kFull>(test);
}

// Maxima that grow from tile to tile, rows that are one and the same in memory, and scores and
// values far from 1.
TEST(EmulatedFloat32Attention, InputScales) {
  for (const double scale : {1e-9, 0.1, 10.0, 3e4}) {
    Case test = forward_case(DType::kF32, 1, 2, 2, 20, 300, 64, 64);
    test.input_scale = scale;
    check<kFew>(test);
  }
  Case test = forward_case(DType::kF32, 1, 2, 2, 20, 100, 64, 64);
  test.prepare = [](AttentionBackward& a) { a.query.stride[2] = a.key.stride[1] = 0; };
  check<kFew>(test);
}

// Tiles of keys that are split by the common exponents but for the key of that number, or its
// value.
constexpr PortableForwardConfig kLongTiles{
    .dtype = DType::kF32, .key_dim = 64, .value_dim = 64, .keys = 48};

TEST(EmulatedFloat32Attention, TilesOfCommonExponents) {
  Case test = forward_case(DType::kF32, 1, 1, 1, 128, 3 * 48, 64, 64);
  check<kLongTiles>(test);
  for (const int64_t number : {0, 31, 32, 47})
    for (const bool of_value : {false, true}) {
      test.prepare = [=](AttentionBackward& a) {
        const Tensor& rows = of_value ? a.value : a.key;
        for (int64_t d = 0; d < 64; ++d) {
          const int64_t element = at(rows, {0, 0, 48 + number, d});
          put(rows, element, get(rows, element) * (of_value ? 0x1p9 : 0x1p-12));
        }
      };
      check<kLongTiles>(test);
    }
}

constexpr PortableForwardConfig kCausal{
    .dtype = DType::kF32, .key_dim = 80, .value_dim = 48, .right = true};

// Hidden keys and values that are not finite, and some that are seen.
TEST(EmulatedFloat32Attention, CausalWithNonfinite) {
  Case test = forward_case(DType::kF32, 1, 2, 2, 130, 150, 80, 48);
  test.layout = Layout::kBshd;
  test.problem.causal = Causal::kTopLeft;
  check<kCausal>(test);
  test.prepare = [](AttentionBackward& a) {
    put(a.key, at(a.key, {0, 0, 140, 5}), kNaN);
    put(a.value, at(a.value, {0, 0, 100, 3}), kInfinity);
    put(a.value, at(a.value, {0, 1, 145, 3}), kNaN);
    put(a.key, at(a.key, {0, 1, 110, 5}), -kInfinity);
    put(a.query, at(a.query, {0, 1, 7, 5}), kNaN);
  };
  check<kCausal>(test);
}

// Keys, values and queries that planes do not hold.
TEST(EmulatedFloat32Attention, ComputesRowsThatPlanesDoNotHold) {
  for (const bool large : {false, true}) {
    Case test = forward_case(DType::kF32, 1, 1, 1, 20, 100, 64, 64);
    test.prepare = [large](AttentionBackward& a) {
      if (large) {
        put(a.value, at(a.value, {0, 0, 30, 3}), 1e30);
        return;
      }
      for (int d = 0; d < 64; ++d) put(a.query, at(a.query, {0, 0, 3, d}), 1e-25);
      // A score that consists of the products of large and small numbers.
      for (int d = 0; d < 64; ++d) {
        put(a.query, at(a.query, {0, 0, 5, d}), d == 0 ? 0 : 3e10);
        put(a.key, at(a.key, {0, 0, 9, d}), d == 0 ? 3e10 : 1.3e-11 * (d % 7));
      }
    };
    check<kFew>(test);
  }
}

constexpr PortableForwardConfig kGathered{.dtype = DType::kF32,
                                          .key_dim = 16,
                                          .value_dim = 32,
                                          .scale_first = true,
                                          .right = true,
                                          .left = true};

TEST(EmulatedFloat32Attention, AnyStridesAndScale) {
  check<kGathered>(
      with_any_strides_and_scale(forward_case(DType::kF32, 1, 2, 1, 100, 170, 13, 19)));
}

constexpr PortableForwardConfig kEverything{.dtype = DType::kF32,
                                            .key_dim = 128,
                                            .value_dim = 64,
                                            .rows = 16,
                                            .keys = 32,
                                            .right = true,
                                            .lengths = true,
                                            .visible = true,
                                            .dropout = true,
                                            .bias = DType::kF32};

TEST(EmulatedFloat32Attention, EverythingAtOnce) {
  check<kEverything>(
      with_everything(forward_case(DType::kF32, 0, 4, 2, 0, 0, 128, 64), 70, 100, DType::kF32));
}

constexpr PortableForwardConfig kLengths{
    .dtype = DType::kF32, .key_dim = 64, .value_dim = 64, .lengths = true};

// Rows that the lengths leave out are NaN, keys of other sequences too.
TEST(EmulatedFloat32Attention, QueryLengthsAndCaches) {
  Case test = forward_case(DType::kF32, 3, 2, 1, 70, 101, 64, 64);
  test.problem.q_lens = true;
  test.seen_q_lens = {70, 0, 17};
  test.prepare = [](AttentionBackward& a) {
    for (int64_t i = 17; i < 70; ++i) put(a.query, at(a.query, {2, 1, i, 3}), kNaN);
  };
  check<kLengths>(test);
  for (const Case& other : cases_of_caches(DType::kF32)) check<kLengths>(other);
}

constexpr PortableForwardConfig kSplit{.dtype = DType::kF32,
                                       .key_dim = 64,
                                       .value_dim = 48,
                                       .rows = 16,
                                       .right = true,
                                       .split = true,
                                       .packs = true};

TEST(EmulatedFloat32Attention, SplitsKeysOfFewQueries) {
  const Case test = split_case(DType::kF32, 1);
  check<kSplit>(test);
  check<kSplit>(with_nonfinite_values(test));
}

constexpr PortableForwardConfig kQuery{
    .dtype = DType::kF32, .key_dim = 64, .value_dim = 64, .rows = 16, .split = true};

TEST(EmulatedFloat32Attention, SplitsWhoseScoresAreAllNaN) {
  check<kQuery>(query_case(DType::kF32));
  check<kQuery>(with_nan(query_case(DType::kF32)));
}

constexpr PortableForwardConfig kCut{
    .dtype = DType::kF32, .key_dim = 160, .value_dim = 144, .rows = 16, .right = true};

TEST(EmulatedFloat32Attention, CutsLargeDims) {
  Case test = forward_case(DType::kF32, 1, 1, 1, 40, 70, 160, 144);
  test.problem.causal = Causal::kBottomRight;
  check<kCut>(test);
  test.prepare = [](AttentionBackward& a) { put(a.value, at(a.value, {0, 0, 5, 140}), kInfinity); };
  check<kCut>(test);
}

// ---- Accuracy ----

// Errors against float64: of the norm of the results, of the worst row's, and the largest of lse.
struct Errors {
  double norm = 0, row = 0, lse = 0;
};

struct Rows {
  std::vector<double> query, key, value, want, lse;
  int64_t queries, keys, dim;
  double scale;

  template <class Real>
  void attend(std::vector<Real>& out, std::vector<Real>& lse_of) const {
    for (int64_t i = 0; i < queries; ++i) {
      std::vector<Real> scores(static_cast<size_t>(keys));
      Real most = -std::numeric_limits<Real>::infinity(), sum = 0;
      for (int64_t j = 0; j < keys; ++j) {
        Real score = 0;
        for (int64_t d = 0; d < dim; ++d)
          score = std::fma(static_cast<Real>(query[static_cast<size_t>(i * dim + d)]),
                           static_cast<Real>(key[static_cast<size_t>(j * dim + d)]), score);
        scores[static_cast<size_t>(j)] = score * static_cast<Real>(scale);
        most = std::max(most, scores[static_cast<size_t>(j)]);
      }
      for (Real& score : scores) sum += score = std::exp(score - most);
      lse_of.push_back(most + std::log(sum));
      for (int64_t d = 0; d < dim; ++d) {
        Real total = 0;
        for (int64_t j = 0; j < keys; ++j)
          total = std::fma(scores[static_cast<size_t>(j)],
                           static_cast<Real>(value[static_cast<size_t>(j * dim + d)]), total);
        out.push_back(total / sum);
      }
    }
  }
  template <class Real>
  Errors errors(const std::vector<Real>& out, const std::vector<Real>& lse_of) const {
    Errors found;
    double all = 0, norm = 0;
    for (int64_t i = 0; i < queries; ++i) {
      double of_row = 0, norm_of_row = 0;
      for (auto e = static_cast<size_t>(i * dim); e < static_cast<size_t>((i + 1) * dim); ++e) {
        of_row += std::pow(static_cast<double>(out[e]) - want[e], 2);
        norm_of_row += want[e] * want[e];
      }
      found.row = std::max(found.row, std::sqrt(of_row / norm_of_row));
      all += of_row;
      norm += norm_of_row;
      found.lse =
          std::max(found.lse, std::fabs(static_cast<double>(lse_of[static_cast<size_t>(i)]) -
                                        lse[static_cast<size_t>(i)]));
    }
    found.norm = std::sqrt(all / norm);
    return found;
  }
};

// Inputs by the number of the element, from a normal number x and a uniform one of [-1, 1].
struct Inputs {
  const char* name;
  std::function<double(int64_t row, int64_t d, double x, double u)> query, key, value;
};

template <PortableForwardConfig C>
void compare_errors(const Inputs& inputs, int64_t keys) {
  SCOPED_TRACE(inputs.name);
  constexpr int64_t kQueries = 64, kDim = C.key_dim;
  const Case test = forward_case(DType::kF32, 1, 1, 1, kQueries, keys, kDim, kDim);
  Fixture fixture(test);
  Random random{7};
  const auto normal = [&] {
    double sum = 0;
    for (int i = 0; i < 12; ++i) sum += random.uniform() / 2;
    return sum;
  };
  Rows rows;
  rows.queries = kQueries;
  rows.keys = keys;
  rows.dim = kDim;
  rows.scale = test.problem.scale;
  const auto fill_with = [&](const Tensor& tensor, std::vector<double>& copy, int64_t count,
                             const auto& value_of) {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t d = 0; d < kDim; ++d) {
        const double x = normal(), u = random.uniform();
        put(tensor, at(tensor, {0, 0, i, d}), value_of(i, d, x, u));
        copy.push_back(get(tensor, at(tensor, {0, 0, i, d})));
      }
  };
  fill_with(fixture.arguments.query, rows.query, kQueries, inputs.query);
  fill_with(fixture.arguments.key, rows.key, keys, inputs.key);
  fill_with(fixture.arguments.value, rows.value, keys, inputs.value);
  rows.attend<double>(rows.want, rows.lse);
  std::vector<float> plain, plain_lse, out, lse;
  rows.attend<float>(plain, plain_lse);
  run<C>(fixture);
  for (int64_t i = 0; i < kQueries; ++i) {
    lse.push_back(static_cast<float>(get(fixture.lse.tensor, at(fixture.lse.tensor, {0, 0, i}))));
    for (int64_t d = 0; d < kDim; ++d)
      out.push_back(
          static_cast<float>(get(fixture.out.tensor, at(fixture.out.tensor, {0, 0, i, d}))));
  }
  const Errors formula = rows.errors(plain, plain_lse), own = rows.errors(out, lse);
  EXPECT_LE(own.norm, formula.norm);
  EXPECT_LE(own.row, 3 * formula.row);
  EXPECT_LE(own.lse, 1.5 * formula.lse);
}

TEST(EmulatedFloat32Attention, IsAsAccurateAsTheFormula) {
  const auto plain = [](int64_t, int64_t, double x, double) { return x; };
  const auto power = [](double most) {
    return
        [=](int64_t, int64_t, double x, double u) { return x * std::exp2(std::round(most * u)); };
  };
  const auto along = [](double most) {
    return [=](int64_t, int64_t d, double x, double) {
      return x * std::exp2(std::round(most * (static_cast<double>(d) / 32 - 1)));
    };
  };
  const Inputs all[] = {
      {"normal", plain, plain, plain},
      {"large", [](int64_t, int64_t, double x, double) { return 4 * x; },
       [](int64_t, int64_t, double x, double) { return 4 * x; }, plain},
      {"offset", plain, plain, [](int64_t, int64_t, double x, double) { return 1 + 0.1 * x; }},
      {"wide", power(8),
       [=](int64_t row, int64_t d, double x, double u) { return 0x1p-11 * power(8)(row, d, x, u); },
       power(20)},
      {"cross", along(9), along(-9), plain},
      {"rows", plain, plain,
       [](int64_t row, int64_t, double x, double) { return row % 3 == 0 ? 0x1p24 * x : x; }}};
  for (const Inputs& inputs : all)
    for (const int64_t keys : {130, 500}) compare_errors<kFew>(inputs, keys);
}

// Probabilities of two keys, which values of 0 and 1 show: exponents of large weights are not
// rounded as parts of larger numbers.
TEST(EmulatedFloat32Attention, WeightsOfTwoKeys) {
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
TEST(EmulatedFloat32Attention, LseInUnitsOfLog2) {
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
