// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention in float32 by planes of f16 on an emulated GPU: every feature against the float64
// reference, and what planes do not hold.
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

// Maxima follow in some tiles and rows of a warp, and not in others.
TEST(EmulatedFloat32Attention, TilesOfCommonExponentsWithLargeScores) {
  for (const double scale : {2.0, 3.5}) {
    Case test = forward_case(DType::kF32, 1, 2, 1, 100, 7 * 48 - 5, 64, 64);
    test.input_scale = scale;
    check<kLongTiles>(test);
  }
}

constexpr PortableForwardConfig kLongWindow{
    .dtype = DType::kF32, .key_dim = 64, .value_dim = 64, .keys = 48, .right = true, .left = true};

// Rows have the same bits by tiles of common exponents, whose exponentials overlap with products,
// and by those with another key, which the rows do not see. Their last tiles come first: m follows
// in this one.
TEST(EmulatedFloat32Attention, TilesOfCommonExponentsHaveTheBitsOfOthers) {
  constexpr int64_t kKey = 5, kLeft = 60, kRows = 128;
  Case test = forward_case(DType::kF32, 1, 1, 1, kRows, kRows, 64, 64);
  test.problem.window_left = kLeft;
  test.problem.window_right = 0;
  test.input_scale = 2;
  Fixture common(test);
  run<kLongWindow>(common);
  for (const bool of_value : {false, true}) {
    test.prepare = [=](AttentionBackward& a) {
      const Tensor& rows = of_value ? a.value : a.key;
      for (int64_t d = 0; d < 64; ++d) {
        const int64_t element = at(rows, {0, 0, kKey, d});
        put(rows, element, get(rows, element) * (of_value ? 0x1p9 : 0x1p-12));
      }
    };
    Fixture other(test);
    run<kLongWindow>(other);
    for (int64_t row = kKey + kLeft + 1; row < kRows; ++row)
      for (int64_t d = 0; d < 64; ++d) {
        const int64_t element = at(common.out.tensor, {0, 0, row, d});
        ASSERT_EQ(get(common.out.tensor, element), get(other.out.tensor, element))
            << row << ", " << d;
      }
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

}  // namespace
}  // namespace perseid::internal
