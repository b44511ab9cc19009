// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Random problems, each given to every kernel table that this machine can run, in one process: all
// results are within the rule, and dropout masks have the same bits. Another instruction set may
// round differently; nothing else may differ.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "attention_cases.hpp"
#include "matmul_cases.hpp"

namespace perseid::internal::cpu {
namespace {

using attention_cases::Case;
using attention_cases::Fixture;
using tests::Array;

class Dice {
 public:
  explicit Dice(uint32_t seed) : random_(seed) {}
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool one_in(int64_t count) { return between(1, count) == 1; }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[random_() % choices.size()];
  }
  // Mostly small, often next to a tile's end.
  int64_t length(int64_t most) {
    if (one_in(8)) return between(0, 2);
    if (one_in(2)) return std::min(most, pick<int64_t>({15, 16, 17, 63, 64, 65, 96, 97, 192, 193}));
    return between(1, most);
  }

 private:
  std::mt19937 random_;
};

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

Case random_attention(uint32_t seed) {
  Dice dice(seed);
  const int64_t kv_heads = dice.between(1, 2), q_most = dice.one_in(3) ? 6 : 130;
  Case test = attention_cases::make_case(
      kTypes[dice.between(0, 3)], dice.between(1, 2), kv_heads * dice.between(1, 3), kv_heads,
      dice.length(q_most), dice.length(dice.one_in(6) ? 1100 : 260), dice.length(70),
      dice.length(70));
  AttentionProblem& p = test.problem;
  p.head_dim = max(p.head_dim, int64_t{1});
  p.value_dim = max(p.value_dim, int64_t{1});
  p.scale = 1 / std::sqrt(static_cast<double>(p.head_dim));
  test.seed = seed;
  test.input_scale = dice.pick({1.0, 1.0, 0.1, 3.0, 10.0});
  test.layout = static_cast<attention_cases::Layout>(dice.between(0, 3));
  test.grad_lse = dice.one_in(3);
  p.causal = dice.pick({Causal::kNone, Causal::kTopLeft, Causal::kBottomRight});
  if (dice.one_in(4)) p.window_left = dice.between(0, 100);
  if (dice.one_in(6)) p.window_right = dice.between(0, 100);
  if (dice.one_in(4)) p.dropout = dice.pick({0.1, 0.5});
  if (dice.one_in(4)) {
    std::vector<int64_t> q_lens, kv_lens;
    for (int64_t b = 0; b < p.batch; ++b) {
      q_lens.push_back(dice.length(90));
      kv_lens.push_back(dice.length(200));
    }
    p.q_len = p.kv_len = 0;
    set_ragged(test, q_lens, kv_lens);
  } else if (dice.one_in(4)) {
    p.kv_lens = true;
    for (int64_t b = 0; b < p.batch; ++b) test.kv_lens.push_back(dice.between(0, p.kv_len));
  }
  const auto shape = [&] {
    std::vector<int64_t> full = {p.batch, p.heads, p.q_len, p.kv_len};
    for (int64_t& extent : full)
      if (dice.one_in(2)) extent = 1;
    return full;
  };
  if (dice.one_in(4)) add_bias(test, p.dtype, shape(), dice.one_in(2));
  if (dice.one_in(5)) set_visible(test, shape());
  return test;
}

void check_attention(uint32_t first, uint32_t end) {
  for (uint32_t seed = first; seed < end && !testing::Test::HasFailure(); ++seed) {
    const Case test = random_attention(seed);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << text_of(test));
    Fixture fixture(test);
    for (const KernelTable* table : available_kernel_tables()) {
      fixture.check_forward(*table);
      fixture.check(*table);
    }
  }
}
TEST(InstructionSets, Attention) { check_attention(0, 60); }
TEST(InstructionSetsSweep, Attention) { check_attention(60, 1200); }

void check_matmul(uint32_t first, uint32_t end) {
  using matmul_cases::Layout;
  for (uint32_t seed = first; seed < end && !testing::Test::HasFailure(); ++seed) {
    Dice dice(seed);
    const auto& types = matmul_cases::kTypes[dice.between(0, 5)];
    const auto layout = [&] { return static_cast<Layout>(dice.between(0, 5)); };
    const matmul_cases::Problem problem({.dtype = types[0],
                                         .out_dtype = types[1],
                                         .batch = dice.between(1, 2),
                                         .m = dice.length(90),
                                         .n = dice.length(150),
                                         .k = dice.length(300),
                                         .alpha = dice.pick({1.0, -2.5}),
                                         .beta = dice.pick({0.0, 1.0, 0.25}),
                                         .bias = dice.one_in(2),
                                         .a = layout(),
                                         .b = layout(),
                                         .c = layout()});
    for (const KernelTable* table : available_kernel_tables()) {
      SCOPED_TRACE(matmul_cases::describe(problem.given) << " seed " << seed << " " << table->isa);
      matmul_cases::BackwardExecutor executor(2);
      Array c = problem.c;
      Fixture::run_in(table->matmul_workspace(problem.problem, 2), executor,
                      [&](const Execution& execution) {
                        table->matmul(problem.problem, problem.arguments(c.tensor), execution);
                      });
      matmul_cases::expect_product(problem, c);
    }
  }
}
TEST(InstructionSets, Matmul) { check_matmul(0, 200); }
TEST(InstructionSetsSweep, Matmul) { check_matmul(200, 4000); }

void check_softmax(uint32_t first, uint32_t end) {
  const auto pool = make_thread_pool(2);
  for (uint32_t seed = first; seed < end && !testing::Test::HasFailure(); ++seed) {
    Dice dice(seed);
    SoftmaxProblem p;
    p.dtype = kTypes[dice.between(0, 3)];
    p.out_dtype = dice.one_in(3) ? kTypes[dice.between(0, 3)] : p.dtype;
    p.rank = 3;
    p.dim = static_cast<int32_t>(dice.between(0, 2));
    for (int32_t d = 0; d < 3; ++d) p.shape[d] = d == p.dim ? dice.length(900) : dice.between(1, 9);
    p.log = dice.one_in(2);
    p.scale = dice.pick({1.0, 0.25, -3.0});
    p.visible = dice.one_in(3);
    const tests::Shape shape(p.shape, p.shape + 3);
    tests::Shape row = shape;
    row[static_cast<size_t>(p.dim)] = 1;
    const DType wide = p.compute_dtype();
    Array x(shape, p.dtype), seen(shape, DType::kBool), y(shape, p.out_dtype), lse(row, wide);
    Array x64(shape), y64(shape), lse64(row);
    x.randomise_normal(seed, 0, dice.pick({0.2, 2.0, 6.0, 20.0}));
    seen.randomise(seed + 1);
    x64.copy_from(x);
    const Tensor mask = p.visible ? seen.tensor : Tensor();
    SoftmaxProblem exact = p;
    exact.dtype = exact.out_dtype = DType::kF64;
    reference::softmax_forward(exact, {x64.tensor, y64.tensor, mask, lse64.tensor},
                               {*pool, nullptr});
    std::map<std::string, std::vector<double>> inputs = {{"input", x.values()}};
    if (p.visible) inputs["visible"] = seen.values();
    const tests::Limits limits(tests::harness_problem(p), inputs);
    for (const KernelTable* table : available_kernel_tables()) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " " << table->isa);
      y.blank();
      lse.blank();
      Fixture::run_in(
          table->softmax_workspace(p, 2, false), *pool, [&](const Execution& execution) {
            table->softmax_forward(p, {x.tensor, y.tensor, mask, lse.tensor}, execution);
          });
      limits.expect("output", y.tensor, y64.values());
      limits.expect("lse", lse.tensor, lse64.values());
      y.expect_guards();
    }
  }
}
TEST(InstructionSets, Softmax) { check_softmax(0, 200); }
TEST(InstructionSetsSweep, Softmax) { check_softmax(200, 4000); }

TEST(InstructionSets, DropoutMasksHaveTheSameBits) {
  constexpr int64_t kRows = 48, kColumns = 96;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    Dice dice(seed);
    const Dropout dropout{static_cast<uint32_t>(dice.between(1, 255)),
                          static_cast<uint64_t>(dice.between(0, 1LL << 62)) * 3,
                          static_cast<uint32_t>(dice.between(0, 0xffffffff))};
    const int64_t head = dice.between(0, 1 << 20), row = 16 * dice.between(0, 1 << 16),
                  column = 32 * dice.between(0, 1 << 16);
    std::vector<uint8_t> want;
    for (int64_t i = 0; i < kRows; ++i)
      for (int64_t j = 0; j < kColumns; ++j)
        want.push_back(dropout_keeps(dropout, head, row + i, column + j));
    for (const KernelTable* table : available_kernel_tables()) {
      std::vector<uint8_t> got(want.size(), 7);
      table->dropout_mask(dropout, head, row, kRows, column, kColumns, got.data(), kColumns, 1);
      EXPECT_EQ(got, want) << table->isa << " seed " << seed;
    }
  }
}

}  // namespace
}  // namespace perseid::internal::cpu
