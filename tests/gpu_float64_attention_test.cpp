// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention in float64 on a GPU, forward and backward, against the reference.
#include "gpu_attention_backward_tools.hpp"
#include "gpu_attention_tools.hpp"

namespace perseid::internal {
namespace {

using namespace testing_gpu;

using GpuFloat64Attention = GpuAttention;
using GpuFloat64Backward = GpuAttentionBackward;
class GpuFloat64Cases : public GpuAttention, public testing::WithParamInterface<Case> {};
class GpuFloat64BackwardCases : public GpuAttentionBackward,
                                public testing::WithParamInterface<Case> {};

Case make_f64(int64_t batch, int64_t heads, int64_t kv_heads, int64_t q_len, int64_t kv_len,
              int64_t dim, int64_t value_dim) {
  return make_case(DType::kF64, batch, heads, kv_heads, q_len, kv_len, dim, value_dim);
}

// What both directions are tested with.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  // Any dims, those that are cut too.
  for (const auto& [dim, value_dim] :
       {Dims{1, 1}, {7, 13}, {64, 64}, {65, 63}, {128, 128}, {200, 96}, {300, 270}}) {
    Case test = make_f64(2, 4, 2, 100, 170, dim, value_dim);
    test.layout = dim % 2 == 0 ? Layout::kBshd : Layout::kBhsd;
    test.grad_lse = true;
    cases.push_back(test);
    test.problem.causal = Causal::kBottomRight;
    cases.push_back(test);
  }
  // Strides and scales.
  for (const Layout layout : {Layout::kReversed, Layout::kSpread}) {
    Case test = make_f64(2, 4, 2, 150, 233, 64, 64);
    test.layout = layout;
    test.problem.scale = layout == Layout::kSpread ? -0.125 : 2;
    test.problem.causal = Causal::kTopLeft;
    test.problem.window_left = 50;
    cases.push_back(test);
  }
  Case zero = make_f64(3, 4, 2, 80, 100, 64, 64);
  zero.prepare = [](AttentionBackward& a) {
    for (Tensor* tensor : {&a.query, &a.key, &a.value, &a.grad_out}) tensor->stride[1] = 0;
  };
  cases.push_back(zero);
  Case peaked = make_f64(1, 2, 1, 100, 301, 128, 64);
  peaked.input_scale = 10;
  cases.push_back(peaked);
  // Bias, repeated or not, mask, dropout, lengths.
  for (const auto& shape : {std::vector<int64_t>{2, 4, 70, 133}, {1, 4, 70, 1}, {1, 1, 1, 133}}) {
    Case test = make_f64(2, 4, 2, 70, 133, 48, 64);
    add_bias(test, DType::kF64, shape, true);
    set_visible(test, {1, 4, 70, 133});
    test.problem.dropout = 0.2;
    cases.push_back(test);
  }
  Case lengths = make_f64(0, 4, 2, 0, 0, 128, 64);
  set_ragged(lengths, {5, 0, 130, 1, 64}, {7, 3, 200, 0, 64});
  lengths.layout = Layout::kBshd;
  lengths.problem.causal = Causal::kBottomRight;
  lengths.problem.kv_lens = true;
  lengths.kv_lens = {7, 1, 90, 0, 63};
  add_bias(lengths, DType::kF64, {5, 1, 130, 200}, true);
  cases.push_back(lengths);
  return cases;
}
// Hidden keys that are not finite, and some that are seen.
Case nonfinite_case(double poison) {
  Case test = make_f64(1, 4, 1, 150, 200, 64, 64);
  test.problem.causal = Causal::kTopLeft;
  test.prepare = [=](AttentionBackward& a) {
    put(a.value, at(a.value, {0, 0, 30, 3}), poison);
    put(a.value, at(a.value, {0, 0, 180, 3}), poison);
    put(a.key, at(a.key, {0, 0, 140, 5}), kNaN);
  };
  return test;
}

TEST_P(GpuFloat64Cases, MatchTheReference) {
  Case test = GetParam();
  AttentionProblem& p = test.problem;
  p.grad_query = p.grad_key = p.grad_value = p.grad_bias = false;
  numbers_on_gpu_ = p.dropout > 0;
  check(test);
}
INSTANTIATE_TEST_SUITE_P(All, GpuFloat64Cases, testing::ValuesIn(all_cases()));

TEST_F(GpuFloat64Attention, AnyAlignment) {
  misalign_ = 1;
  check(forward_case(DType::kF64, 2, 2, 1, 130, 200, 64, 64));
}
// Not one bit of a row depends on what it does not see.
TEST_F(GpuFloat64Attention, NothingLeaksFromMaskedKeys) {
  Case clean = nonfinite_case(0.5);
  clean.problem.grad_query = clean.problem.grad_key = clean.problem.grad_value = false;
  clean.prepare = nullptr;
  Fixture before(clean);
  run(before);
  for (const double poison : {kNaN, kInfinity}) {
    Case test = nonfinite_case(poison);
    test.problem = clean.problem;
    Fixture fixture(test);
    fixture.use_limits_of(before);
    run(fixture);
    fixture.compare_forward();
    for (int64_t head = 0; head < 4; ++head)
      for (int64_t row = 0; row < 30; ++row)
        for (int64_t d = 0; d < 64; ++d) {
          const int64_t element = at(fixture.out.tensor, {0, head, row, d});
          ASSERT_EQ(get(fixture.out.tensor, element), get(before.out.tensor, element));
        }
  }
}

TEST_P(GpuFloat64BackwardCases, MatchTheReference) { check(GetParam()); }
INSTANTIATE_TEST_SUITE_P(All, GpuFloat64BackwardCases, testing::ValuesIn(all_cases()));

TEST_F(GpuFloat64Backward, NothingLeaksFromMaskedKeys) {
  const Fixture clean(nonfinite_case(0.5));
  for (const double poison : {kNaN, kInfinity}) {
    Fixture fixture(nonfinite_case(poison));
    fixture.use_limits_of(clean);
    run(fixture);
    fixture.compare_gradients();
  }
}

}  // namespace
}  // namespace perseid::internal
