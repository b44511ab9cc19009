// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What a GPU's attention does not see leaves no trace: NaN, infinity and the largest number at keys
// hidden by causal, window, visible or lengths change no bit of what does not depend on them.
#include "gpu_hidden_keys_tools.hpp"

namespace perseid::internal {
namespace {

using namespace testing_gpu;

constexpr Poison kPoisons[] = {
    {},
    {.value = kInfinity},
    {.value = -kInfinity, .key = false},
    {.value = kNaN, .key = false, .one_column = true},
    {.value = 3.3895313892515355e38, .one_column = true},  // of bf16; infinity in f16
};

class GpuHiddenKeys : public GpuAttention, public testing::WithParamInterface<int64_t> {
 protected:
  // Rows that see none of the keys have the bits of `before`; the others what the formula says.
  static void compare(const Fixture& before, const Fixture& after, const Hidden& hidden,
                      const Poison& poison) {
    const AttentionProblem& p = before.problem;
    int64_t unseen = 0, changed = 0;
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      const Sequence sequence = sequence_of(p, before.arguments, batch);
      for (int64_t head = 0; head < p.heads; ++head)
        for (int64_t row = 0; row < sequence.q_len; ++row) {
          if (sees_any(before, batch, head, row, hidden.keys)) continue;
          ++unseen;
          const auto first = [&](const Tensor& tensor) {
            return row_of(p, tensor, sequence.q_begin, batch, head, row);
          };
          const Tensor &out = before.out.tensor, &lse = before.lse.tensor;
          if (same_row(out, after.out.tensor, first(out), p.value_dim) &&
              same_row(lse, after.lse.tensor, first(lse), 1))
            continue;
          if (changed++ == 0)
            ADD_FAILURE() << "first changed: batch " << batch << " head " << head << " row " << row;
        }
    }
    EXPECT_GT(unseen, 0);
    EXPECT_EQ(changed, 0) << "of " << unseen;
    if (std::isfinite(poison.value)) return;
    after.compare_forward();
  }
  void check(const Hidden& hidden) {
    SCOPED_TRACE(concatenate(hidden.name, ": ", text_of(hidden.test)));
    Fixture before(hidden.test);
    run(before);
    for (const Poison& poison : kPoisons) {
      SCOPED_TRACE(concatenate("value ", poison.value, " key ", poison.key, " one column ",
                               poison.one_column));
      Fixture after(with_poison(hidden, poison));
      run(after);
      compare(before, after, hidden, poison);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Dims, GpuHiddenKeys, testing::Values(40, 64, 72, 96, 128, 192, 256));

TEST_P(GpuHiddenKeys, Causal) {
  const int64_t dim = GetParam();
  for (const Causal causal : {Causal::kTopLeft, Causal::kBottomRight}) {
    Hidden hidden = masked("causal", dim % 64 == 0 ? DType::kF16 : DType::kBF16, 2, 620, 700, dim,
                           {200, 333, 600, 650, 699});
    hidden.test.problem.causal = causal;
    check(hidden);
  }
}

TEST_P(GpuHiddenKeys, Window) {
  const int64_t dim = GetParam();
  Hidden hidden = masked("window", DType::kBF16, 1, 1300, 1400, dim, {400, 401, 900, 1399});
  hidden.test.problem.window_left = 200;
  hidden.test.problem.window_right = dim == 64 ? 130 : 5;
  check(hidden);
}

// Keys and values that arrive in pieces, and results in two parts.
class GpuHiddenKeysInPieces : public GpuHiddenKeys {};
INSTANTIATE_TEST_SUITE_P(Dims, GpuHiddenKeysInPieces, testing::Values(264, 512));

TEST_P(GpuHiddenKeysInPieces, MasksAndLengths) {
  const int64_t dim = GetParam();
  Hidden hidden = masked("causal", DType::kBF16, 2, 300, 400, dim, {150, 200, 299, 399});
  hidden.test.problem.causal = Causal::kBottomRight;
  check(hidden);
  hidden.test.problem.window_left = 100;
  check(hidden);
  hidden.test = forward_case(DType::kBF16, 3, 2, 1, 300, 400, dim, dim);
  hidden.test.problem.kv_lens = true;
  hidden.test.kv_lens = {149, 400, 230};
  check(hidden);
}

TEST_P(GpuHiddenKeys, Visible) {
  Hidden hidden = masked("visible", DType::kBF16, 2, 150, 301, GetParam(), {170});
  set_visible(hidden.test, {1, 2, 150, 301});
  check(hidden);
  add_bias(hidden.test, DType::kBF16, {1, 2, 150, 301}, false);
  hidden.test.problem.causal = Causal::kTopLeft;
  check(hidden);
}

TEST_P(GpuHiddenKeys, KeyLengths) {
  for (const Causal causal : {Causal::kNone, Causal::kBottomRight}) {
    Hidden hidden = masked("key lengths", DType::kBF16, 2, 300, 400, GetParam(), {150, 220, 390});
    hidden.test = forward_case(DType::kBF16, 3, 2, 1, 300, 400, GetParam(), GetParam());
    hidden.test.problem.kv_lens = true;
    hidden.test.problem.causal = causal;
    hidden.test.kv_lens = {149, 400, 230};
    check(hidden);
  }
}

TEST_P(GpuHiddenKeys, Ragged) {
  for (const Causal causal : {Causal::kTopLeft, Causal::kBottomRight}) {
    Hidden hidden = {"ragged",
                     forward_case(DType::kBF16, 0, 2, 1, 0, 0, GetParam(), GetParam()),
                     {90, 300, 310}};
    set_ragged(hidden.test, {200, 0, 77, 320}, {350, 60, 100, 320});
    hidden.test.layout = Layout::kBshd;
    hidden.test.problem.causal = causal;
    check(hidden);
  }
}

TEST_P(GpuHiddenKeys, BiasAndDropout) {
  const int64_t dim = GetParam();
  for (const DType bias : {DType::kNone, DType::kBF16, DType::kF32}) {
    if (dim % 64 != 0 && bias == DType::kF32) continue;
    Hidden hidden = masked("bias and dropout", DType::kBF16, 2, 300, 400, dim, {170, 299, 350});
    hidden.test.problem.causal = Causal::kTopLeft;
    if (bias == DType::kNone)
      hidden.test.problem.dropout = 0.25;
    else
      add_bias(hidden.test, bias, {1, 2, 300, 400}, false);
    check(hidden);
  }
}

// Keys in parts.
TEST_P(GpuHiddenKeys, FewQueries) {
  const int64_t dim = GetParam();
  Hidden window = masked("few queries, window", DType::kF16, 4, 9, 4100, dim,
                         {1000, 4100 - 9 - 700 + 3, 4097, 4099});
  window.test.problem.causal = Causal::kBottomRight;
  window.test.problem.window_left = 700;
  check(window);
  Hidden visible = masked("few queries, visible", DType::kBF16, 4, 3, 2500, dim, {1300});
  set_visible(visible.test, {1, 4, 3, 2500});
  check(visible);
  Hidden ragged = {"few queries, ragged",
                   forward_case(DType::kBF16, 0, 4, 2, 0, 0, dim, dim),
                   {199, 1099, 2698}};
  set_ragged(ragged.test, {2, 0, 3, 2, 1}, {2699, 3, 200, 0, 1100});
  ragged.test.layout = Layout::kBshd;
  ragged.test.problem.causal = Causal::kBottomRight;
  check(ragged);
}

// More tiles than blocks.
TEST_P(GpuHiddenKeys, ManyTiles) {
  Hidden hidden = masked("many tiles", DType::kBF16, 50, 520, 520, GetParam(), {300, 400, 515});
  hidden.test.problem.causal = Causal::kTopLeft;
  check(hidden);
}

}  // namespace
}  // namespace perseid::internal
