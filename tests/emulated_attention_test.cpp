// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The portable attention kernel on an emulated GPU (emulated_gpu.hpp) against the float64
// reference: layouts of fragments and tiles, copies, masks and the per-score operations, without a
// GPU.
#include "emulated_attention.hpp"

namespace perseid::internal {
namespace {

using namespace emulated_attention;

constexpr PortableForwardConfig kFull{.key_dim = 64, .value_dim = 64, .keys = 128};

TEST(EmulatedAttention, Full) {
  check<kFull>(forward_case(DType::kBF16, 2, 2, 1, 130, 201, 64, 64));
  check<kFull>(forward_case(DType::kBF16, 1, 1, 1, 70, 0, 64, 64));
  check<kFull>(forward_case(DType::kBF16, 1, 2, 1, 290, 40, 64, 56));
}

constexpr PortableForwardConfig kCausal64{
    .key_dim = 64, .value_dim = 64, .keys = 128, .right = true};

TEST(EmulatedAttention, CausalOfDim64) {
  for (const Causal causal : {Causal::kTopLeft, Causal::kBottomRight}) {
    Case test = forward_case(DType::kBF16, 1, 2, 1, 300, 290, 64, 64);
    test.problem.causal = causal;
    check<kCausal64>(test);
    test.prepare = [](AttentionBackward& a) {
      put(a.key, at(a.key, {0, 0, 200, 5}), kNaN);
      put(a.value, at(a.value, {0, 0, 240, 3}), kInfinity);
    };
    check<kCausal64>(test);
  }
}

// In canonical order a row has the same bits wherever it lies in a tile, and among however few.
TEST(EmulatedAttention, RowsOfRanksHaveTheBitsOfAllRows) {
  constexpr int64_t kRows = 160, kKeys = 600;
  Case all = forward_case(DType::kBF16, 1, 2, 1, kRows, kKeys, 64, 64);
  all.problem.causal = Causal::kBottomRight;
  all.problem.rows.canonical = true;
  Fixture whole(all);
  run<kCausal64>(whole);
  whole.compare_forward();
  for (const KeyRange rows : {KeyRange{0, 48}, {48, 81}, {81, 160}}) {
    Case part = all;
    part.bits_alone = true;
    part.problem.q_len = rows.end - rows.begin;
    part.problem.rows = {.ranks = 3, .begin = rows.begin, .total = kRows, .canonical = true};
    part.prepare = [&](AttentionBackward& a) {
      a.query.data = whole.query.tensor.as<uint16_t>() + rows.begin * whole.query.tensor.stride[2];
      for (int d = 0; d < 3; ++d) a.query.stride[d] = whole.query.tensor.stride[d];
      a.key = whole.arguments.key;
      a.value = whole.arguments.value;
    };
    Fixture own(part);
    run<kCausal64>(own);
    for (int64_t head = 0; head < 2; ++head)
      for (int64_t row = 0; row < part.problem.q_len; ++row) {
        const int64_t of_all = rows.begin + row;
        ASSERT_EQ(get(own.lse.tensor, at(own.lse.tensor, {0, head, row})),
                  get(whole.lse.tensor, at(whole.lse.tensor, {0, head, of_all})))
            << "row " << row << " from " << rows.begin;
        for (int64_t column = 0; column < 64; ++column)
          ASSERT_EQ(get(own.out.tensor, at(own.out.tensor, {0, head, row, column})),
                    get(whole.out.tensor, at(whole.out.tensor, {0, head, of_all, column})))
              << "row " << row << " from " << rows.begin;
      }
  }
}

constexpr PortableForwardConfig kHalf{
    .dtype = DType::kF16, .key_dim = 64, .value_dim = 64, .rows = 16, .query_in_registers = true};

// Maxima that grow from tile to tile, and rows that are one and the same in memory.
TEST(EmulatedAttention, PeakedRows) {
  for (const double scale : {0.1, 10.0}) {
    Case test = forward_case(DType::kF16, 1, 2, 1, 60, 300, 64, 64);
    test.input_scale = scale;
    check<kHalf>(test);
    test.prepare = [](AttentionBackward& a) { a.query.stride[2] = a.key.stride[1] = 0; };
    check<kHalf>(test);
  }
}
// Both tiles of 16 rows of a warp, of which one follows its maxima where the other does not.
TEST(EmulatedAttention, PeakedRowsOfTwoTiles) {
  for (const double scale : {1.0, 10.0}) {
    Case test = forward_case(DType::kBF16, 1, 1, 1, 140, 700, 64, 64);
    test.input_scale = scale;
    check<kFull>(test);
    // Rows of zeros, whose maxima never grow: the first tile of one warp, the second of another.
    test.prepare = [](AttentionBackward& a) {
      for (const int64_t first : {0, 48})
        for (int64_t row = first; row < first + 16; ++row)
          for (int64_t column = 0; column < 64; ++column)
            put(a.query, at(a.query, {0, 0, row, column}), 0);
    };
    check<kFull>(test);
  }
}

constexpr PortableForwardConfig kCausal{.key_dim = 80, .value_dim = 48, .right = true};

TEST(EmulatedAttention, CausalWithHiddenNonfiniteValues) {
  Case test = forward_case(DType::kBF16, 1, 2, 2, 150, 180, 80, 48);
  test.layout = Layout::kBshd;
  test.problem.causal = Causal::kTopLeft;
  check<kCausal>(test);
  test.prepare = [](AttentionBackward& a) {
    put(a.key, at(a.key, {0, 0, 140, 5}), kNaN);
    put(a.value, at(a.value, {0, 0, 100, 3}), kInfinity);
    put(a.value, at(a.value, {0, 1, 170, 3}), kNaN);
  };
  check<kCausal>(test);
}

constexpr PortableForwardConfig kGathered{.key_dim = 16,
                                          .value_dim = 32,
                                          .query_in_registers = true,
                                          .vectors = false,
                                          .scale_first = true,
                                          .right = true,
                                          .left = true};

TEST(EmulatedAttention, GathersElements) {
  check<kGathered>(
      with_any_strides_and_scale(forward_case(DType::kBF16, 1, 2, 1, 100, 170, 13, 19)));
}

constexpr PortableForwardConfig kEverything{.key_dim = 128,
                                            .value_dim = 64,
                                            .rows = 16,
                                            .right = true,
                                            .lengths = true,
                                            .visible = true,
                                            .dropout = true,
                                            .bias = DType::kF32};

TEST(EmulatedAttention, EverythingAtOnce) {
  check<kEverything>(
      with_everything(forward_case(DType::kBF16, 0, 4, 2, 0, 0, 128, 64), 130, 200, DType::kF32));
}

constexpr PortableForwardConfig kBias{
    .key_dim = 64, .value_dim = 64, .query_in_registers = true, .bias = DType::kBF16};
constexpr PortableForwardConfig kFloatBias{.dtype = DType::kF16,
                                           .key_dim = 128,
                                           .value_dim = 128,
                                           .rows = 16,
                                           .keys = 32,
                                           .right = true,
                                           .bias = DType::kF32};
constexpr PortableForwardConfig kReadBias{
    .key_dim = 256, .value_dim = 256, .rows = 16, .keys = 32, .bias = DType::kBF16};
static_assert(kBias.copies_bias() && kFloatBias.copies_bias() && !kReadBias.copies_bias());

// In vectors, or elements; of each query, or the same of many.
TEST(EmulatedAttention, Bias) {
  for (const int64_t keys : {208, 201})
    for (const auto& shape :
         {std::vector<int64_t>{2, 2, 130, keys}, {1, 2, 1, keys}, {2, 1, 130, 1}, {1, 1, 1, 1}}) {
      Case test = forward_case(DType::kBF16, 2, 2, 1, 130, keys, 64, 64);
      add_bias(test, DType::kBF16, shape, false);
      check<kBias>(test);
    }
  Case test = forward_case(DType::kF16, 1, 2, 2, 70, 131, 128, 128);
  test.problem.causal = Causal::kBottomRight;
  test.prepare = [](AttentionBackward& a) {
    for (int64_t key = 64; key < 131; ++key)
      put(a.bias, at(a.bias, {0, 1, 0, key}), kNaN);  // hidden
  };
  add_bias(test, DType::kF32, {1, 2, 70, 131}, false);
  check<kFloatBias>(test);
  Case large = forward_case(DType::kBF16, 1, 1, 1, 70, 72, 256, 256);
  add_bias(large, DType::kBF16, {1, 1, 70, 72}, false);
  check<kReadBias>(large);
}

constexpr PortableForwardConfig kSharded = [] {
  PortableForwardConfig config = kEverything;
  config.sharded = true;
  return config;
}();

TEST(EmulatedAttention, RowsOfARank) {
  check<kSharded>(with_rows_of_a_rank(
      with_everything(forward_case(DType::kBF16, 0, 4, 2, 0, 0, 128, 64), 130, 200, DType::kF32)));
}

// The largest weight of every row is dropped, the others are subnormal numbers.
TEST(EmulatedAttention, DropoutOfAllButTheSmallestWeights) {
  Case test = forward_case(DType::kBF16, 0, 4, 2, 0, 0, 128, 64);
  set_ragged(test, {20}, {60});
  test.layout = Layout::kBshd;
  test.problem.causal = Causal::kBottomRight;
  test.problem.dropout = 0.999;
  test.problem.scale = 1;
  test.problem.kv_lens = true;
  test.kv_lens = {60};
  add_bias(test, DType::kF32, {1, 1, 1, 60}, false);
  set_visible(test, {1, 1, 1, 1});
  test.prepare = [](AttentionBackward& a) {
    put(a.visible, 0, 1);
    for (int64_t key = 0; key < 60; ++key) put(a.bias, key, key == 0 ? 89.5 : 0);  // 2^-129
    for (int64_t i = 0; i < a.key.elements(); ++i) put(a.key, i, 0);
  };
  Fixture fixture(test);
  run<kEverything>(fixture);
  fixture.compare_forward();
  double most = 0;
  for (int64_t i = 0; i < fixture.out.tensor.elements(); ++i)
    most = max(most, std::fabs(get(fixture.out.tensor, i)));
  EXPECT_GT(most, 1e-38);
  EXPECT_LT(most, 1e-35);
}

constexpr PortableForwardConfig kSplit{.key_dim = 64,
                                       .value_dim = 48,
                                       .rows = 16,
                                       .query_in_registers = true,
                                       .right = true,
                                       .split = true,
                                       .packs = true};

constexpr PortableForwardConfig of_lengths(PortableForwardConfig config) {
  config.lengths = true;
  config.packs = false;  // heads of ragged batches are not
  return config;
}
constexpr PortableForwardConfig kSplitLengths = of_lengths(kSplit);

TEST(EmulatedAttention, SplitsKeysOfFewQueries) {
  const Case test = split_case(DType::kBF16, 2);
  check<kSplit>(test);
  check<kSplit>(with_nonfinite_values(test));
  Case ragged = forward_case(DType::kBF16, 0, 4, 2, 0, 0, 64, 48);
  ragged.problem.causal = Causal::kBottomRight;
  set_ragged(ragged, {1, 0, 3, 2}, {1700, 3, 200, 0});
  ragged.layout = Layout::kBshd;
  check<kSplitLengths>(ragged);
}

constexpr PortableForwardConfig kQuery{
    .key_dim = 64, .value_dim = 64, .rows = 16, .query_in_registers = true, .split = true};

TEST(EmulatedAttention, SplitsWhoseScoresAreAllNaN) {
  check<kQuery>(query_case(DType::kBF16));
  check<kQuery>(with_nan(query_case(DType::kBF16)));
}

constexpr PortableForwardConfig kPacked{.key_dim = 64,
                                        .value_dim = 48,
                                        .rows = 16,
                                        .query_in_registers = true,
                                        .lengths = true,
                                        .visible = true,
                                        .bias = DType::kBF16,
                                        .split = true};

// One query: the heads that share a key head are the rows of a tile.
TEST(EmulatedAttention, PacksHeadsOfOneQuery) {
  for (const Layout layout : {Layout::kBshd, Layout::kBhsd}) {
    Case test = forward_case(DType::kBF16, 2, 10, 2, 1, 1300, 64, 48);
    test.layout = layout;
    test.problem.causal = Causal::kBottomRight;
    test.problem.kv_lens = true;
    test.kv_lens = {700, 1300};
    add_bias(test, DType::kBF16, {1, 10, 1, 1300}, false);
    set_visible(test, {2, 1, 1, 1300});
    check<kPacked>(test);
  }
  const std::function<void(AttentionProblem&)> kBounds[] = {
      [](AttentionProblem& p) { p.window_left = 50; },
      [](AttentionProblem& p) { p.causal = Causal::kTopLeft; },
      [](AttentionProblem& p) { p.dropout = 0.5; },
      [](AttentionProblem& p) { p.q_len = 2; },
      [](AttentionProblem& p) { p.kv_heads = 10; },
      [](AttentionProblem& p) { p.ragged = true; }};
  for (const auto& bound : kBounds) {
    AttentionProblem problem = forward_case(DType::kBF16, 2, 10, 2, 1, 1300, 64, 48).problem;
    EXPECT_TRUE(cuda::takes_heads_as_rows(problem));
    bound(problem);
    EXPECT_FALSE(cuda::takes_heads_as_rows(problem));
  }
}

constexpr PortableForwardConfig kPackedQueries{.key_dim = 64,
                                               .value_dim = 48,
                                               .rows = 16,
                                               .query_in_registers = true,
                                               .right = true,
                                               .left = true,
                                               .lengths = true,
                                               .packs = true};
constexpr PortableForwardConfig kPackedElements{.key_dim = 16,
                                                .value_dim = 32,
                                                .rows = 16,
                                                .query_in_registers = true,
                                                .vectors = false,
                                                .right = true,
                                                .packs = true};

// Several queries of the heads that share a key head are the rows of a block, each with its own
// bounds.
TEST(EmulatedAttention, PacksHeadsOfFewQueries) {
  for (const int64_t q_len : {3, 13}) {  // 12 rows of a warp; 52 of four
    Case test = forward_case(DType::kBF16, 3, 8, 2, q_len, 200, 64, 48);
    test.layout = Layout::kBshd;
    test.problem.causal = Causal::kBottomRight;
    test.problem.window_left = 70;
    test.problem.q_lens = test.problem.kv_lens = true;
    test.seen_q_lens = {q_len, 1, 2};
    test.kv_lens = {200, 0, 90};
    check<kPackedQueries>(test);
    test.prepare = [](AttentionBackward& a) {
      put(a.value, at(a.value, {0, 1, 199, 5}), kNaN);
      put(a.value, at(a.value, {2, 0, 60, 40}), kInfinity);
      put(a.query, at(a.query, {0, 5, 1, 5}), kNaN);
    };
    check<kPackedQueries>(test);
  }
  Case test = forward_case(DType::kBF16, 2, 8, 2, 5, 100, 13, 19);
  test.layout = Layout::kSpread;
  test.problem.causal = Causal::kTopLeft;
  check<kPackedElements>(test);
}

constexpr PortableForwardConfig kLengths{
    .key_dim = 64, .value_dim = 64, .keys = 128, .lengths = true};
constexpr PortableForwardConfig kWindowLengths{
    .key_dim = 64, .value_dim = 64, .keys = 128, .right = true, .left = true, .lengths = true};

// Rows that the lengths leave out are NaN, keys of other sequences too.
TEST(EmulatedAttention, QueryLengths) {
  Case test = forward_case(DType::kBF16, 4, 2, 1, 150, 201, 64, 64);
  test.problem.q_lens = true;
  test.seen_q_lens = {150, 0, 17, 129};
  test.prepare = [](AttentionBackward& a) {
    for (int64_t i = 17; i < 150; ++i) put(a.query, at(a.query, {2, 1, i, 3}), kNaN);
  };
  check<kLengths>(test);
  test.problem.window_left = 30;
  test.problem.window_right = 4;
  test.problem.window_bottom_right = true;
  check<kWindowLengths>(test);
  Case ragged = forward_case(DType::kBF16, 0, 2, 1, 0, 0, 64, 48);
  set_ragged(ragged, {1, 0, 3, 2}, {1700, 3, 200, 0});
  ragged.problem.causal = Causal::kBottomRight;
  ragged.layout = Layout::kBshd;
  ragged.problem.q_lens = true;
  ragged.seen_q_lens = {0, 0, 2, 2};
  check<kSplitLengths>(ragged);
}

TEST(EmulatedAttention, KeysFromAnywhereInACache) {
  for (const Case& test : cases_of_caches(DType::kBF16)) check<kLengths>(test);
}

// As for a plan of longer tensors: its splits and bounds, the lengths of the execution.
TEST(EmulatedAttention, ShorterTensorsThanThePlan) {
  Case test = forward_case(DType::kBF16, 2, 4, 2, 5, 700, 64, 48);
  Case plan = forward_case(DType::kBF16, 2, 4, 2, 64, 5000, 64, 48);
  plan.problem.causal = test.problem.causal = Causal::kBottomRight;
  plan.problem.max_lengths = true;
  cuda::PortableForwardArguments arguments =
      cuda::portable_attention_arguments(plan.problem, kSplit);
  ASSERT_EQ(cuda::choose_portable_attention(plan.problem).split, true);
  const size_t bytes = cuda::portable_attention_workspace(arguments);
  const AttentionProblem shorter = with_lengths(plan.problem, {5, 700, 0, 0});
  cuda::set_portable_attention_lengths(shorter, kSplit, &arguments);
  EXPECT_EQ(arguments.num_splits, 1);
  EXPECT_GT(cuda::portable_attention_workspace(arguments), 0u);
  EXPECT_LE(cuda::portable_attention_workspace(arguments), bytes);
  EXPECT_EQ(arguments.right, 700 - 5 + 1);

  // The plan decides whether heads are packed, not the lengths of an execution.
  AttentionForward tensors;
  tensors.lengths = {1, 700, 0, 0};
  for (const auto& [most, rows] : {std::pair<int64_t, int64_t>{4, 1}, {1, 2}}) {
    plan.problem.q_len = most;
    const AttentionProblem packed =
        with_lengths(cuda::with_heads_as_rows(plan.problem),
                     cuda::with_heads_as_rows(plan.problem, tensors).lengths);
    EXPECT_EQ(packed.q_len, rows);
    EXPECT_EQ(packed.heads, 4 / rows);
    EXPECT_EQ(packed.kv_len, 700);
  }
}

constexpr PortableForwardConfig kCut{.key_dim = 320, .value_dim = 288, .rows = 16, .right = true};

TEST(EmulatedAttention, CutsLargeDims) {
  Case test = forward_case(DType::kBF16, 1, 1, 1, 64, 90, 320, 288);
  test.problem.causal = Causal::kBottomRight;
  check<kCut>(test);
}

}  // namespace
}  // namespace perseid::internal
