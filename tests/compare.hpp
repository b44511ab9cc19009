// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The one comparison of every test of kernels: results against float64, within the rule of
// cli/harness/tolerance.hpp. The reference is src/cpu/reference; the naive formulas and the rule
// are the harness's. This file only says a kernel's problem in the harness's words.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "harness/tolerance.hpp"
#include "math/attention_problem.hpp"
#include "math/softmax_problem.hpp"
#include "tensor.hpp"

namespace perseid::internal::tests {

inline perseid::DType public_dtype(DType dtype) { return harness::parse_dtype(name_of(dtype)); }

// Holds `got` to float64; limits by the rule, or by a bound of the test's own.
inline void expect_close(std::string_view name, const Tensor& got, const std::vector<double>& want,
                         const harness::Limit& limit) {
  ASSERT_EQ(got.elements(), static_cast<int64_t>(want.size())) << name;
  const std::vector<double> values = values_of(got);
  const harness::Deviation worst = harness::deviation(values, want, limit, public_dtype(got.dtype));
  EXPECT_TRUE(worst.ok()) << name << ": " << worst.wrong << " of " << want.size()
                          << " elements are wrong; element " << worst.element << " is "
                          << values[worst.element] << ", expected " << want[worst.element]
                          << ": off by " << worst.error << ", more than " << worst.limit;
}

// Limits of one problem's outputs, by the names of their operands.
class Limits {
 public:
  // `inputs`: the values of every tensor that is read, row-major. `keep`: the dropout mask. `out`:
  // that which attention's backward reads.
  Limits(const harness::Problem& problem, const std::map<std::string, std::vector<double>>& inputs,
         const std::vector<double>& keep = {}, const std::vector<double>& out = {})
      : problem_(problem),
        estimates_(harness::naive(problem, operands(problem, inputs), keep, out)) {}

  void expect(const char* name, const Tensor& got, const std::vector<double>& want) const {
    const auto found = estimates_.find(std::string_view(name));
    ASSERT_NE(found, estimates_.end()) << name;
    expect_close(name, got, want,
                 harness::limit_of(found->second, want, public_dtype(got.dtype),
                                   harness::working_type(problem_)));
  }

 private:
  static harness::Operands operands(const harness::Problem& problem,
                                    const std::map<std::string, std::vector<double>>& inputs) {
    harness::Problem exact = problem;
    exact.dtype.value = PERSEID_F64;
    exact.output_dtype.value = exact.bias_dtype.value = 0;
    return harness::Operands(exact, inputs);
  }
  harness::Problem problem_;
  harness::Estimates estimates_;
};

inline harness::Problem harness_problem(const SoftmaxProblem& p) {
  harness::Problem problem;
  problem.op = harness::Op::kSoftmax;
  problem.dtype.value = static_cast<uint32_t>(public_dtype(p.dtype));
  problem.output_dtype.value = static_cast<uint32_t>(public_dtype(p.out_dtype));
  problem.shape.assign(p.shape, p.shape + p.rank);
  problem.dim = p.dim;
  problem.scale = p.scale;
  problem.log = p.log;
  problem.lse = true;
  if (p.visible) problem.visible = problem.shape;
  problem.empty_rows.value = p.empty_rows_nan ? 1 : 0;
  return problem;
}

// Lengths come as numbers, and the mask's shape, which the kernel's problem does not have.
inline harness::Problem harness_problem(const AttentionProblem& p, const Shape& cu_seqlens_q,
                                        const Shape& cu_seqlens_kv, const Shape& kv_lens,
                                        const Shape& visible_shape, bool grad_lse) {
  harness::Problem problem;
  problem.op = harness::Op::kAttention;
  problem.dtype.value = static_cast<uint32_t>(public_dtype(p.dtype));
  problem.batch = p.batch;
  problem.heads = p.heads;
  problem.kv_heads = p.kv_heads;
  problem.q_len = p.q_len;
  problem.kv_len = p.kv_len;
  problem.head_dim = p.head_dim;
  problem.value_dim = p.value_dim;
  problem.layout.value = PERSEID_BHSD;
  problem.scale = p.scale;
  problem.causal.value = p.causal == Causal::kNone      ? PERSEID_CAUSAL_NONE
                         : p.causal == Causal::kTopLeft ? PERSEID_CAUSAL_TOP_LEFT
                                                        : PERSEID_CAUSAL_BOTTOM_RIGHT;
  if (p.window_left >= 0 || p.window_right >= 0) problem.window = {p.window_left, p.window_right};
  problem.window_bottom_right = p.window_bottom_right;
  problem.dropout = p.dropout;
  problem.lse = true;
  problem.cu_seqlens_q = cu_seqlens_q;
  problem.cu_seqlens_kv = cu_seqlens_kv;
  problem.total_q = p.total_q;
  problem.total_kv = p.total_kv;
  problem.kv_lens = kv_lens;
  if (p.bias) {
    problem.bias.assign(p.bias_shape, p.bias_shape + 4);
    problem.bias_dtype.value = static_cast<uint32_t>(public_dtype(p.bias_dtype));
  }
  problem.visible = visible_shape;
  problem.gradients.bits =
      (p.grad_query ? PERSEID_GRAD_QUERY : 0) | (p.grad_key ? PERSEID_GRAD_KEY : 0) |
      (p.grad_value ? PERSEID_GRAD_VALUE : 0) | (p.grad_bias ? PERSEID_GRAD_BIAS : 0);
  problem.grad_lse = grad_lse && problem.gradients.bits != 0;
  return problem;
}

}  // namespace perseid::internal::tests
