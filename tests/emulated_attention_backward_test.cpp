// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The portable kernels of attention backward on an emulated GPU (emulated_gpu.hpp) against the
// float64 reference.
#include "emulated_attention_backward.hpp"
#include "attention_heads_apart.hpp"
#include "hidden_rows.hpp"

namespace perseid::internal {
namespace {

using namespace emulated_attention;
template <PortableBackwardConfig C>
void check_launches(Fixture& fixture) {
  run_backward<C>(fixture);
  fixture.compare_gradients();
}
// In the fixed order, and in any.
template <PortableBackwardConfig C, PortableBackwardConfig kWithSums = with_sums(C)>
void check(const Case& test) {
  SCOPED_TRACE(text_of(test));
  Fixture fixture(test);
  fixture.problem.deterministic = true;
  check_launches<C>(fixture);
  fixture.problem.deterministic = false;
  if constexpr (C.planes() == 1 || !C.streams()) check_launches<kWithSums>(fixture);
}

constexpr PortableBackwardConfig kFloat32{
    .dtype = DType::kF32, .key_dim = 64, .value_dim = 64, .largest = 64};
constexpr PortableBackwardConfig kFloat32Large{
    .dtype = DType::kF32, .key_dim = 128, .value_dim = 80, .right = true};
constexpr PortableBackwardConfig kFloat32Cut{.dtype = DType::kF32,
                                             .key_dim = 80,
                                             .value_dim = 160,
                                             .largest = 64,
                                             .chunk = 128,
                                             .right = true};

TEST(EmulatedAttentionBackward, Float32) {
  check<kFloat32>(make_case(DType::kF32, 1, 2, 1, 130, 201, 64, 64));
  check<kFloat32>(make_case(DType::kF32, 1, 1, 1, 70, 0, 64, 64));
  Case test = make_case(DType::kF32, 1, 2, 1, 60, 150, 64, 64);
  test.grad_lse = true;
  test.input_scale = 10;
  check<kFloat32>(test);
}
TEST(EmulatedAttentionBackward, Float32HeadsOfUnequalExponents) {
  Case test = make_case(DType::kF32, 2, 6, 3, 70, 150, 64, 64);
  test.prepare = scale_heads_apart;
  check<kFloat32>(test);
}
TEST(EmulatedAttentionBackward, Float32LargeDims) {
  Case test = make_case(DType::kF32, 1, 2, 2, 70, 140, 128, 80);
  test.problem.causal = Causal::kBottomRight;
  check<kFloat32Large>(test);
  Case cut = make_case(DType::kF32, 1, 2, 2, 70, 140, 80, 160);
  cut.problem.causal = Causal::kBottomRight;
  check<kFloat32Cut>(cut);
}

constexpr PortableBackwardConfig kFloat32Window{.dtype = DType::kF32,
                                                .key_dim = 48,
                                                .value_dim = 48,
                                                .largest = 64,
                                                .right = true,
                                                .left = true};

// Keys and values that are not finite, hidden from all queries or seen by some.
TEST(EmulatedAttentionBackward, Float32Nonfinite) {
  Case test = make_case(DType::kF32, 1, 2, 1, 130, 180, 40, 40);
  test.layout = Layout::kBshd;
  test.problem.window_left = 30;
  test.problem.window_right = 10;
  test.problem.deterministic = true;
  const Fixture clean(test);
  test.prepare = [](AttentionBackward& a) {
    for (const int64_t key : {70, 71, 179}) {
      put(a.key, at(a.key, {0, 0, key, 5}), kNaN);
      put(a.value, at(a.value, {0, 0, key, 7}), kInfinity);
    }
    put(a.query, at(a.query, {0, 1, 100, 3}), kNaN);
  };
  Fixture fixture(test);
  fixture.use_limits_of(clean);
  check_launches<kFloat32Window>(fixture);
}

constexpr PortableBackwardConfig kFloat32Everything{.dtype = DType::kF32,
                                                    .key_dim = 80,
                                                    .value_dim = 64,
                                                    .largest = 0,
                                                    .chunk = 128,
                                                    .right = true,
                                                    .lengths = true,
                                                    .visible = true,
                                                    .dropout = true,
                                                    .bias = DType::kF32};

TEST(EmulatedAttentionBackward, Float32EverythingAtOnce) {
  Case all = with_everything(make_case(DType::kF32, 0, 2, 1, 0, 0, 80, 64), 70, 100, DType::kF32);
  check<kFloat32Everything>(all);
  all.problem.q_lens = true;
  all.seen_q_lens = {5, 0, 33, 1, 30};
  check<kFloat32Everything>(all);
}

constexpr PortableBackwardConfig kFloat32Bias{
    .dtype = DType::kF32, .key_dim = 64, .value_dim = 64, .largest = 0, .bias = DType::kF32};

// A row of zeros of value times one of grad_out.
TEST(EmulatedAttentionBackward, Float32BiasOfZeros) {
  Case test = make_case(DType::kF32, 1, 1, 1, 60, 70, 64, 64);
  add_bias(test, DType::kF32, {1, 1, 60, 70}, true);
  test.prepare = [](AttentionBackward& a) {
    for (int d = 0; d < 64; ++d) {
      put(a.value, at(a.value, {0, 0, 7, d}), 0);
      put(a.grad_out, at(a.grad_out, {0, 0, 5, d}), 0);
    }
  };
  check<kFloat32Bias>(test);
}

// Queries and keys that planes do not hold.
TEST(EmulatedAttentionBackward, Float32BiasOfRowsThatPlanesDoNotHold) {
  Case test = make_case(DType::kF32, 1, 2, 1, 60, 70, 64, 64);
  test.grad_lse = true;
  add_bias(test, DType::kF32, {1, 1, 60, 70}, true);
  test.prepare = [](AttentionBackward& a) {
    for (int d = 0; d < 64; ++d) {
      put(a.query, at(a.query, {0, 0, 3, d}), 1e-25);
      put(a.key, at(a.key, {0, 0, 41, d}), 1e-25);
      put(a.key, at(a.key, {0, 0, 66, d}), d == 0 ? 1030 : 1e-9 * (d % 7));
    }
  };
  check<kFloat32Bias>(test);
}

constexpr PortableBackwardConfig kFull{.key_dim = 64, .value_dim = 64};

TEST(EmulatedAttentionBackward, Full) {
  check<kFull>(make_case(DType::kBF16, 2, 2, 1, 130, 201, 64, 64));
  check<kFull>(make_case(DType::kBF16, 1, 1, 1, 70, 0, 64, 64));
  Case test = make_case(DType::kBF16, 1, 2, 1, 60, 150, 64, 64);
  test.grad_lse = true;
  test.input_scale = 10;
  check<kFull>(test);
}

constexpr PortableBackwardConfig kWide{.key_dim = 64, .value_dim = 64, .rows = 32};
constexpr PortableBackwardConfig kWideCausal{
    .key_dim = 64, .value_dim = 64, .rows = 32, .right = true};
static_assert(with_sums(kWide).adds_pairs());

// Even and odd numbers of steps, of one query head and of two.
TEST(EmulatedAttentionBackward, AddsQueriesOfTwoSteps) {
  for (const int64_t queries : {20, 60, 70, 130})
    check<kWide>(make_case(DType::kBF16, 1, 2, 2, queries, 140, 64, 64));
  check<kWide>(make_case(DType::kBF16, 1, 2, 1, 70, 30, 64, 56));
  Case test = make_case(DType::kBF16, 1, 2, 1, 150, 180, 64, 64);
  test.problem.causal = Causal::kTopLeft;
  check<kWideCausal>(test);
  test.prepare = [](AttentionBackward& a) {
    put(a.key, at(a.key, {0, 0, 140, 5}), kNaN);
    put(a.query, at(a.query, {0, 1, 20, 7}), kNaN);
  };
  check<kWideCausal>(test);
}

constexpr PortableBackwardConfig kCausal{
    .dtype = DType::kF16, .key_dim = 80, .value_dim = 48, .right = true};

TEST(EmulatedAttentionBackward, CausalWithHiddenNonfiniteValues) {
  Case test = make_case(DType::kF16, 1, 2, 2, 150, 180, 80, 48);
  test.layout = Layout::kBshd;
  test.problem.causal = Causal::kTopLeft;
  check<kCausal>(test);
  test.prepare = [](AttentionBackward& a) {
    put(a.key, at(a.key, {0, 0, 140, 5}), kNaN);
    put(a.value, at(a.value, {0, 0, 100, 3}), kInfinity);
    put(a.value, at(a.value, {0, 1, 170, 3}), kNaN);
    put(a.query, at(a.query, {0, 1, 20, 7}), kNaN);
    put(a.grad_out, at(a.grad_out, {0, 1, 60, 7}), kNaN);
  };
  check<kCausal>(test);
}

constexpr PortableBackwardConfig kHalves{.key_dim = 128, .value_dim = 128};

// Two warps share 32 keys, of which each has half of the queries and of the columns.
TEST(EmulatedAttentionBackward, HalvesOfPairs) {
  Fixture fixture(make_case(DType::kBF16, 1, 2, 1, 130, 201, 128, 128));
  check_launches<with_sums(kHalves)>(fixture);
  Case test = make_case(DType::kBF16, 1, 2, 1, 60, 150, 120, 125);
  test.grad_lse = true;
  test.input_scale = 10;
  check<kHalves>(test);
}

constexpr PortableBackwardConfig kHalvesOfWindow{.dtype = DType::kF16,
                                                 .key_dim = 128,
                                                 .value_dim = 128,
                                                 .right = true,
                                                 .left = true,
                                                 .lengths = true};

// Pairs of which a step's columns are hidden, and others that see some.
TEST(EmulatedAttentionBackward, HalvesOfPairsInAWindowWithHiddenNonfiniteValues) {
  Case test = make_case(DType::kF16, 2, 2, 2, 230, 180, 128, 128);
  test.problem.window_left = 50;
  test.problem.window_right = 10;
  test.problem.q_lens = true;
  test.seen_q_lens = {230, 131};
  const Fixture clean(test);
  test.prepare = [](AttentionBackward& a) {
    put(a.key, at(a.key, {0, 0, 140, 5}), kNaN);
    put(a.value, at(a.value, {0, 0, 100, 3}), kInfinity);
    put(a.value, at(a.value, {0, 1, 170, 100}), kNaN);
    put(a.query, at(a.query, {0, 1, 20, 7}), kNaN);
    put(a.grad_out, at(a.grad_out, {1, 1, 60, 70}), kNaN);
  };
  Fixture fixture(test);
  fixture.use_limits_of(clean);
  check_launches<with_sums(kHalvesOfWindow)>(fixture);
}

constexpr PortableBackwardConfig kGathered{
    .key_dim = 16, .value_dim = 32, .right = true, .left = true};

TEST(EmulatedAttentionBackward, GathersElements) {
  check<kGathered>(with_any_strides_and_scale(make_case(DType::kBF16, 1, 4, 2, 100, 170, 13, 19)));
}

constexpr PortableBackwardConfig kEverything{.key_dim = 128,
                                             .value_dim = 64,
                                             .right = true,
                                             .lengths = true,
                                             .visible = true,
                                             .dropout = true,
                                             .bias = DType::kF32};

TEST(EmulatedAttentionBackward, EverythingAtOnce) {
  for (const auto& shape : {std::vector<int64_t>{}, {1, 1, 1, 200}})
    check<kEverything>(with_everything(make_case(DType::kBF16, 0, 2, 1, 0, 0, 128, 64), 70, 200,
                                       DType::kF32, shape));
}

constexpr PortableBackwardConfig kSharded = [] {
  PortableBackwardConfig config = kEverything;
  config.sharded = true;
  return config;
}();

TEST(EmulatedAttentionBackward, RowsOfARank) {
  check<kSharded>(with_rows_of_a_rank(
      with_everything(make_case(DType::kBF16, 0, 2, 1, 0, 0, 128, 64), 70, 200, DType::kF32)));
}

constexpr PortableBackwardConfig kLengths{.key_dim = 64, .value_dim = 64, .lengths = true};

// Rows that the lengths leave out are NaN; their gradients are cleared by a kernel of its own.
TEST(EmulatedAttentionBackward, QueryLengths) {
  Case test = make_case(DType::kBF16, 3, 2, 1, 130, 141, 64, 64);
  test.problem.q_lens = true;
  test.seen_q_lens = {130, 0, 17};
  test.grad_lse = true;
  test.prepare = [](AttentionBackward& a) {
    for (int64_t i = 17; i < 130; ++i) {
      put(a.query, at(a.query, {2, 1, i, 3}), kNaN);
      put(a.grad_out, at(a.grad_out, {2, 0, i, 60}), kNaN);
      put(a.grad_lse, at(a.grad_lse, {2, 0, i}), kNaN);
    }
  };
  check<kLengths>(test);
}

constexpr PortableBackwardConfig kBiased{
    .key_dim = 32, .value_dim = 64, .dropout = true, .bias = DType::kBF16};

TEST(EmulatedAttentionBackward, RepeatedBiasWithDropout) {
  for (const auto& shape :
       {std::vector<int64_t>{1, 2, 100, 90}, {1, 2, 100, 1}, {1, 1, 1, 1}, {2, 1, 100, 90}}) {
    Case test = make_case(DType::kBF16, 2, 2, 1, 100, 90, 32, 64);
    test.problem.dropout = 0.2;
    add_bias(test, DType::kBF16, shape, true);
    check<kBiased>(test);
  }
}

constexpr PortableBackwardConfig kDense{.key_dim = 64, .value_dim = 64, .bias = DType::kBF16};
constexpr PortableBackwardConfig kDenseWindow{.dtype = DType::kF16,
                                              .key_dim = 48,
                                              .value_dim = 64,
                                              .right = true,
                                              .left = true,
                                              .dropout = true,
                                              .bias = DType::kF16};
constexpr PortableBackwardConfig kDenseVisible{
    .key_dim = 64, .value_dim = 32, .visible = true, .bias = DType::kBF16};
constexpr PortableBackwardConfig kDenseLarge{
    .key_dim = 128, .value_dim = 80, .right = true, .bias = DType::kBF16};

// The gradient of a bias that is not repeated is dS. Keys are whole vectors, or are not.
TEST(EmulatedAttentionBackward, DenseBias) {
  for (const int64_t kv_len : {144, 201}) {
    Case test = make_case(DType::kBF16, 2, 2, 1, 100, kv_len, 64, 64);
    add_bias(test, DType::kBF16, {2, 2, 100, kv_len}, true);
    Fixture fixture(test);
    check_launches<storing_bias(kDense)>(fixture);
    test.problem.scale = 0;
    test.layout = Layout::kReversed;
    check<kDense, storing_bias(kDense)>(test);
  }
}
TEST(EmulatedAttentionBackward, DenseBiasInAWindowWithHiddenNonfiniteValues) {
  for (const int64_t kv_len : {208, 181}) {
    Case test = make_case(DType::kF16, 1, 4, 2, 330, kv_len, 48, 64);
    test.problem.window_left = 50;
    test.problem.window_right = 10;
    test.problem.dropout = 0.2;
    add_bias(test, DType::kF16, {1, 4, 330, kv_len}, true);
    const Fixture clean(test);
    test.prepare = [](AttentionBackward& a) {
      put(a.key, at(a.key, {0, 0, 140, 5}), kNaN);
      put(a.value, at(a.value, {0, 0, 100, 3}), kInfinity);
      put(a.bias, at(a.bias, {0, 1, 40, 150}), kNaN);
    };
    Fixture fixture(test);
    fixture.use_limits_of(clean);
    check_launches<storing_bias(kDenseWindow)>(fixture);
  }
}
TEST(EmulatedAttentionBackward, DenseBiasWithAMask) {
  Case test = make_case(DType::kBF16, 1, 2, 2, 70, 136, 64, 32);
  add_bias(test, DType::kBF16, {1, 2, 70, 136}, true);
  set_visible(test, {1, 1, 70, 136});
  check<kDenseVisible, storing_bias(kDenseVisible)>(test);
}
TEST(EmulatedAttentionBackward, DenseBiasOfLargeDims) {
  Case test = make_case(DType::kBF16, 1, 2, 1, 100, 168, 128, 80);
  test.problem.causal = Causal::kTopLeft;
  add_bias(test, DType::kBF16, {1, 2, 100, 168}, true);
  test.prepare = [](AttentionBackward& a) {
    put(a.query, at(a.query, {0, 1, 20, 7}), kNaN);
    put(a.grad_out, at(a.grad_out, {0, 0, 40, 7}), kNaN);
  };
  check<kDenseLarge, storing_bias(kDenseLarge)>(test);
}

constexpr PortableBackwardConfig kDropout{
    .key_dim = 64, .value_dim = 64, .right = true, .dropout = true};

TEST(EmulatedAttentionBackward, Dropout) {
  Case test = make_case(DType::kBF16, 1, 4, 2, 130, 201, 64, 64);
  test.problem.dropout = 0.3;
  test.problem.causal = Causal::kBottomRight;
  check<kDropout>(test);
}

constexpr PortableBackwardConfig kCut{.key_dim = 160, .value_dim = 272, .right = true};

TEST(EmulatedAttentionBackward, CutsLargeDims) {
  Case test = make_case(DType::kBF16, 1, 2, 1, 64, 90, 160, 272);
  test.problem.causal = Causal::kBottomRight;
  check<kCut>(test);
  test.prepare = [](AttentionBackward& a) {
    put(a.key, at(a.key, {0, 0, 80, 130}), kNaN);
    put(a.grad_out, at(a.grad_out, {0, 1, 10, 200}), kNaN);
  };
  check<kCut>(test);
}

constexpr PortableBackwardConfig kHiddenWindow{
    .key_dim = 48, .value_dim = 48, .right = true, .left = true};
constexpr PortableBackwardConfig kHiddenLengths{
    .key_dim = 48, .value_dim = 48, .right = true, .lengths = true};
constexpr PortableBackwardConfig kHiddenVisible{.key_dim = 48, .value_dim = 48, .visible = true};

// Of the type: with planes, where it is float32.
constexpr PortableBackwardConfig of_type(PortableBackwardConfig config, DType dtype) {
  config.dtype = dtype;
  if (dtype == DType::kF32) config.largest = 64;
  return config;
}

template <PortableBackwardConfig C>
void compare_hidden(const hidden_rows::HiddenRows& hidden, const std::vector<double>& values,
                    hidden_rows::HiddenTolerance tolerance) {
  Fixture before(hidden.test);
  run_backward<C>(before);
  for (const double value : values)
    for (const bool both : {false, true}) {
      SCOPED_TRACE(concatenate("value ", value, " both tensors ", both));
      Fixture after(hidden_rows::replaced(hidden, value, both));
      run_backward<C>(after);
      hidden_rows::compare_gradients(before, after, hidden, tolerance);
    }
}
// Rows of large numbers, infinity and NaN change no bit of gradients that do not depend on them,
// where sums have a fixed order: of keys, or of queries. Where blocks of keys add dQ, planes of dS
// may be those of the block or of each row: roundings may change.
template <PortableBackwardConfig C>
void check_hidden(hidden_rows::HiddenRows hidden) {
  SCOPED_TRACE(text_of(hidden.test));
  hidden.test.bits_alone = hidden.test.problem.deterministic = true;
  compare_hidden<C>(hidden, {3.3895313892515355e38, kInfinity, kNaN}, {});
  hidden.test.problem.deterministic = false;
  if constexpr (C.planes() == 2)
    compare_hidden<with_sums(C)>(hidden, {0x1p40, -1e30}, {0x1p-17, 0x1p-17});
}
template <DType D>
void check_hidden() {
  Case window = make_case(D, 1, 1, 1, 100, 130, 48, 48);
  window.problem.window_left = 20;
  window.problem.window_right = 10;
  for (const auto& keys : {std::vector<int64_t>{75}, {115, 129}})
    check_hidden<of_type(kHiddenWindow, D)>({window, keys, {}});
  check_hidden<of_type(kHiddenWindow, D)>({window, {}, {60}});
  Case lengths = make_case(D, 2, 2, 1, 70, 90, 48, 48);
  lengths.problem.causal = Causal::kTopLeft;
  lengths.problem.kv_lens = lengths.problem.q_lens = true;
  lengths.kv_lens = {41, 90};
  lengths.seen_q_lens = {70, 33};
  check_hidden<of_type(kHiddenLengths, D)>({lengths, {30, 41, 80}, {}});
  check_hidden<of_type(kHiddenLengths, D)>({lengths, {}, {33, 69}});
  Case visible = make_case(D, 1, 2, 1, 40, 70, 48, 48);
  set_visible(visible, {1, 2, 40, 70});
  check_hidden<of_type(kHiddenVisible, D)>({visible, {50}, {}});
}

TEST(EmulatedAttentionBackward, HiddenRowsChangeNoBit) { check_hidden<DType::kBF16>(); }
TEST(EmulatedAttentionBackward, HiddenRowsChangeNoBitInFloat32) { check_hidden<DType::kF32>(); }

}  // namespace
}  // namespace perseid::internal
