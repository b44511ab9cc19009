// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What a GPU's attention does not see leaves no trace in gradients, which are summed in a fixed
// order here: NaN and infinity at keys change no bit of those of queries that do not see them, and
// of other keys that share no query with them.
#include "gpu_attention_backward_tools.hpp"
#include "gpu_hidden_keys_tools.hpp"

namespace perseid::internal {
namespace {

using namespace testing_gpu;

constexpr Poison kPoisons[] = {
    {},
    {.value = kInfinity, .key = false, .one_column = true},
    {.value = -kInfinity, .values = false, .one_column = true},
    {.value = 1e30, .one_column = true},  // in bf16
};

class GpuHiddenKeysBackward : public GpuAttentionBackward,
                              public testing::WithParamInterface<int64_t> {
 protected:
  // Whether a query that sees the key sees one of those that are replaced.
  static bool is_affected(const Fixture& fixture, int64_t batch, int64_t kv_head, int64_t key,
                          const std::vector<int64_t>& keys) {
    const AttentionProblem& p = fixture.problem;
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) return true;
    const Sequence sequence = sequence_of(p, fixture.arguments, batch);
    for (int64_t head = kv_head * p.group(); head < (kv_head + 1) * p.group(); ++head)
      for (int64_t row = 0; row < sequence.q_len; ++row)
        if (sees(fixture, batch, head, row, key) && sees_any(fixture, batch, head, row, keys))
          return true;
    return false;
  }
  static void compare_bits(const Fixture& before, const Fixture& after, const Hidden& hidden) {
    const AttentionProblem& p = before.problem;
    int64_t rows = 0, changed_rows = 0, changed_keys = 0;
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      const Sequence sequence = sequence_of(p, before.arguments, batch);
      const auto same = [&](const Array& a, const Array& b, int64_t begin, int64_t head,
                            int64_t row) {
        return same_row(a.tensor, b.tensor, row_of(p, a.tensor, begin, batch, head, row),
                        a.tensor.shape[a.tensor.rank - 1]);
      };
      for (int64_t head = 0; head < p.heads; ++head)
        for (int64_t row = 0; row < sequence.q_len; ++row) {
          if (sees_any(before, batch, head, row, hidden.keys)) continue;
          ++rows;
          if (same(before.grad_query, after.grad_query, sequence.q_begin, head, row)) continue;
          if (changed_rows++ == 0)
            ADD_FAILURE() << "first changed: batch " << batch << " head " << head << " row " << row;
        }
      for (int64_t head = 0; head < p.kv_heads; ++head)
        for (int64_t key = 0; key < sequence.kv_len; ++key) {
          if (is_affected(before, batch, head, key, hidden.keys)) continue;
          if (same(before.grad_key, after.grad_key, sequence.kv_begin, head, key) &&
              same(before.grad_value, after.grad_value, sequence.kv_begin, head, key))
            continue;
          if (changed_keys++ == 0)
            ADD_FAILURE() << "first changed: batch " << batch << " head " << head << " key " << key;
        }
    }
    EXPECT_GT(rows, 0);
    EXPECT_EQ(changed_rows, 0) << "of " << rows;
    EXPECT_EQ(changed_keys, 0);
  }
  void check(Hidden hidden) {
    SCOPED_TRACE(concatenate(hidden.name, ": ", text_of(hidden.test)));
    AttentionProblem& p = hidden.test.problem;
    p.grad_query = p.grad_key = p.grad_value = p.deterministic = true;
    Fixture before(hidden.test);
    run(before);
    for (const Poison& poison : kPoisons) {
      SCOPED_TRACE(concatenate("value ", poison.value, " key ", poison.key));
      Fixture after(with_poison(hidden, poison));
      run(after);
      compare_bits(before, after, hidden);
      if (after.problem.dtype == DType::kF32) after.use_limits_of(before);
      // A dropped weight is 0 on a GPU, even where the formula says 0 times NaN.
      if (std::isfinite(poison.value) || p.dropout > 0) continue;
      after.compare_gradients();
      after.problem.deterministic = false;
      run(after);
      after.compare_gradients();
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Dims, GpuHiddenKeysBackward, testing::Values(40, 64, 72, 128, 192, 256));

TEST_P(GpuHiddenKeysBackward, Causal) {
  for (const auto& keys : {std::vector<int64_t>{180, 320, 399}, std::vector<int64_t>{330, 350}}) {
    Hidden hidden = masked("causal", DType::kBF16, 2, 300, 400, GetParam(), keys);
    for (const Causal causal : {Causal::kTopLeft, Causal::kBottomRight}) {
      hidden.test.problem.causal = causal;
      check(hidden);
    }
  }
}

TEST_P(GpuHiddenKeysBackward, Window) {
  Hidden hidden = masked("window", DType::kBF16, 1, 500, 620, GetParam(), {170, 171, 619});
  hidden.test.problem.window_left = 60;
  hidden.test.problem.window_right = 20;
  check(hidden);
}

TEST_P(GpuHiddenKeysBackward, Visible) {
  Hidden hidden = masked("visible", DType::kBF16, 2, 150, 201, GetParam(), {130});
  set_visible(hidden.test, {1, 2, 150, 201});
  check(hidden);
  hidden.test.problem.dropout = 0.25;
  hidden.test.problem.causal = Causal::kTopLeft;
  check(hidden);
}

TEST_P(GpuHiddenKeysBackward, Lengths) {
  Hidden hidden = {"key lengths",
                   forward_case(DType::kBF16, 3, 4, 2, 140, 300, GetParam(), GetParam()),
                   {150, 220, 290}};
  hidden.test.problem.kv_lens = true;
  hidden.test.kv_lens = {149, 300, 200};
  check(hidden);
  Hidden ragged = {
      "ragged", forward_case(DType::kBF16, 0, 2, 1, 0, 0, GetParam(), GetParam()), {90, 200, 310}};
  set_ragged(ragged.test, {200, 0, 77, 120}, {250, 60, 100, 120});
  ragged.test.layout = Layout::kBshd;
  ragged.test.problem.causal = Causal::kTopLeft;
  check(ragged);
}

TEST_P(GpuHiddenKeysBackward, Bias) {
  Hidden hidden = masked("bias", DType::kBF16, 2, 150, 201, GetParam(), {100, 180});
  add_bias(hidden.test, DType::kBF16, {1, 2, 150, 201}, false);
  hidden.test.problem.causal = Causal::kTopLeft;
  check(hidden);
}

// Blocks share a tile.
TEST_P(GpuHiddenKeysBackward, SharedKeyHeads) {
  Hidden hidden = masked("shared key heads", DType::kF16, 8, 130, 200, GetParam(), {60, 150, 199});
  hidden.test.problem.causal = Causal::kTopLeft;
  check(hidden);
}

}  // namespace
}  // namespace perseid::internal
