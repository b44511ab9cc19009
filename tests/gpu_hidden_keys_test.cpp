// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What a GPU's attention does not see leaves no trace: NaN, infinity and the largest number at keys
// hidden by causal, window, visible or lengths change no bit of what does not depend on them.
#include "gpu_attention_tools.hpp"

namespace perseid::internal {
namespace {

using namespace testing_gpu;

// The keys of every sequence whose rows of key and value are replaced. In both, all columns or one.
struct Poison {
  double value = kNaN;
  bool key = true, values = true, one_column = false;
};
constexpr Poison kPoisons[] = {
    {},
    {.value = kInfinity},
    {.value = -kInfinity, .key = false},
    {.value = kNaN, .key = false, .one_column = true},
    {.value = 3.3895313892515355e38, .one_column = true},  // of bf16; infinity in f16
};

struct Hidden {
  const char* name;
  Case test;
  std::vector<int64_t> keys;
};

class GpuHiddenKeys : public GpuAttention, public testing::WithParamInterface<int64_t> {
 protected:
  static bool sees(const Fixture& fixture, int64_t batch, int64_t head, int64_t row, int64_t key) {
    const AttentionProblem& p = fixture.problem;
    const Sequence sequence = sequence_of(p, fixture.arguments, batch);
    const KeyRange range = visible_keys(p, row, sequence.q_len, sequence.kv_len);
    if (key < range.begin || key >= range.end) return false;
    const Tensor& visible = fixture.arguments.visible;
    return !p.visible || get(visible, at(visible, {batch, head, row, key})) != 0;
  }
  // Offsets of element 0 of a row of query, key or value, and of one number a row.
  static int64_t row_of(const AttentionProblem& p, const Tensor& tensor, int64_t begin,
                        int64_t batch, int64_t head, int64_t row) {
    return p.ragged ? at(tensor, {head, begin + row}) : at(tensor, {batch, head, row});
  }
  static void replace(const AttentionProblem& p, const AttentionBackward& arguments,
                      const std::vector<int64_t>& keys, const Poison& poison) {
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      const Sequence sequence = sequence_of(p, arguments, batch);
      const int64_t rows = p.ragged ? sequence.kv_len : p.kv_len;  // that there are
      for (const int64_t key : keys) {
        if (key >= rows) continue;
        for (int64_t head = 0; head < p.kv_heads; ++head)
          for (const bool values : {false, true}) {
            if (!(values ? poison.values : poison.key)) continue;
            const Tensor& tensor = values ? arguments.value : arguments.key;
            const int64_t first = row_of(p, tensor, sequence.kv_begin, batch, head, key);
            const int64_t dim = tensor.shape[tensor.rank - 1];
            for (int64_t column = 0; column < dim; ++column)
              if (!poison.one_column || column == dim / 2 + 1)
                put(tensor, first + column * tensor.stride[tensor.rank - 1], poison.value);
          }
      }
    }
  }
  // Rows that see none of the keys have the bits of `before`; the others what the formula says.
  static void compare(const Fixture& before, const Fixture& after, const Hidden& hidden,
                      const Poison& poison) {
    const AttentionProblem& p = before.problem;
    int64_t unseen = 0, changed = 0;
    const auto same = [](const Tensor& a, const Tensor& b, int64_t offset) {
      const auto bytes = static_cast<size_t>(size_of(a.dtype));
      return std::memcmp(a.as<std::byte>() + offset * size_of(a.dtype),
                         b.as<std::byte>() + offset * size_of(a.dtype), bytes) == 0;
    };
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      const Sequence sequence = sequence_of(p, before.arguments, batch);
      for (int64_t head = 0; head < p.heads; ++head)
        for (int64_t row = 0; row < sequence.q_len; ++row) {
          bool seen = false;
          for (const int64_t key : hidden.keys) seen = seen || sees(before, batch, head, row, key);
          if (seen) continue;
          ++unseen;
          const Tensor& out = before.out.tensor;
          const int64_t first = row_of(p, out, sequence.q_begin, batch, head, row);
          bool equal = same(before.lse.tensor, after.lse.tensor,
                            row_of(p, before.lse.tensor, sequence.q_begin, batch, head, row));
          for (int64_t column = 0; column < p.value_dim; ++column)
            equal = equal && same(out, after.out.tensor, first + column * out.stride[out.rank - 1]);
          if (!equal && changed++ == 0)
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
      Case poisoned = hidden.test;
      poisoned.prepare = [&](AttentionBackward& arguments) {
        replace(poisoned.problem, arguments, hidden.keys, poison);
      };
      Fixture after(poisoned);
      run(after);
      compare(before, after, hidden, poison);
    }
  }
};

Hidden masked(const char* name, DType dtype, int64_t heads, int64_t q_len, int64_t kv_len,
              int64_t dim, std::vector<int64_t> keys) {
  Case test = forward_case(dtype, 1, heads, 1, q_len, kv_len, dim, dim);
  test.layout = Layout::kBshd;
  return {name, test, std::move(keys)};
}

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
