// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Tests of what the portable attention kernels take beyond those of compute capability 9.0: any
// head dims, strides, alignment and scale. Forward and backward instantiate them, each with its
// fixture, whose kBackward says whether check() computes gradients.
#pragma once

#include "attention_cases.hpp"
#include "tested_kernels.hpp"

namespace perseid::internal::testing_gpu {

using namespace cpu::attention_cases;

template <class Fixture>
class GpuPortable : public tests::OfAnyGpu<Fixture> {
 protected:
  static Case portable_case(int64_t batch, int64_t heads, int64_t kv_heads, int64_t q_len,
                            int64_t kv_len, int64_t dim, int64_t value_dim) {
    Case test = make_case(DType::kBF16, batch, heads, kv_heads, q_len, kv_len, dim, value_dim);
    AttentionProblem& p = test.problem;
    p.grad_query = p.grad_key = p.grad_value = Fixture::kBackward;
    return test;
  }
};
TYPED_TEST_SUITE_P(GpuPortable);

// Dims that are no multiples of 8 or 16, and those that are cut.
TYPED_TEST_P(GpuPortable, AnyDims) {
  const std::pair<int64_t, int64_t> kDims[] = {{1, 1},    {7, 13},   {65, 63},  {100, 36},
                                               {24, 264}, {320, 64}, {513, 530}};
  for (const auto& [dim, value_dim] : kDims) {
    Case test = this->portable_case(2, 4, 2, 100, 170, dim, value_dim);
    test.layout = dim % 2 == 0 ? Layout::kBshd : Layout::kBhsd;
    test.grad_lse = TypeParam::kBackward;
    this->check(test);
    if (test.problem.dtype == DType::kBF16) test.problem.dtype = DType::kF16;
    test.problem.causal = Causal::kBottomRight;
    this->check(test);
  }
}

TYPED_TEST_P(GpuPortable, AnyStrides) {
  for (const Layout layout : {Layout::kReversed, Layout::kSpread})
    for (const int64_t dim : {64, 128}) {
      Case test = this->portable_case(2, 4, 2, 200, 333, dim, dim);
      test.layout = layout;
      test.problem.causal = Causal::kTopLeft;
      this->check(test);
    }
}

TYPED_TEST_P(GpuPortable, AnyAlignment) {
  for (this->misalign_ = 1; this->misalign_ < 8; this->misalign_ += 3)
    this->check(this->portable_case(2, 2, 1, 130, 200, 64, 64));
}

// Rows, heads and batch entries that are one and the same in memory.
TYPED_TEST_P(GpuPortable, StridesOfZero) {
  for (int d = 0; d < 3; ++d) {
    Case test = this->portable_case(3, 4, 2, 130, 200, 64, 64);
    test.prepare = [d](AttentionBackward& a) {
      for (Tensor* tensor : {&a.query, &a.key, &a.value, &a.grad_out}) tensor->stride[d] = 0;
    };
    this->check(test);
  }
}

TYPED_TEST_P(GpuPortable, AnyScale) {
  for (const double scale : {-0.125, 0.0, 2.0, -1.0})
    for (const bool bias : {false, true}) {
      Case test = this->portable_case(2, 2, 2, 150, 301, 64, 64);
      test.problem.scale = scale;
      test.problem.causal = Causal::kBottomRight;
      if (bias) add_bias(test, DType::kF32, {1, 2, 150, 301}, TypeParam::kBackward);
      this->check(test);
    }
}

REGISTER_TYPED_TEST_SUITE_P(GpuPortable, AnyDims, AnyStrides, AnyAlignment, StridesOfZero,
                            AnyScale);

}  // namespace perseid::internal::testing_gpu
