// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the portable attention kernels take beyond those of compute capability 9.0: any head dims,
// strides, alignment and scale.
#include "gpu_attention_tools.hpp"

namespace perseid::internal {
namespace {

using namespace testing_gpu;

using GpuPortableAttention = OfAnyGpu<GpuAttention>;

// Dims that are no multiples of 8 or 16, and those beyond 256, which are cut.
class GpuPortableDims : public GpuPortableAttention, public testing::WithParamInterface<Dims> {};

TEST_P(GpuPortableDims, MatchTheReference) {
  const auto [dim, value_dim] = GetParam();
  Case test = forward_case(DType::kBF16, 2, 4, 2, 100, 170, dim, value_dim);
  test.layout = dim % 2 == 0 ? Layout::kBshd : Layout::kBhsd;
  check(test);
  if (test.problem.dtype == DType::kBF16) test.problem.dtype = DType::kF16;
  test.problem.causal = Causal::kBottomRight;
  check(test);
}
INSTANTIATE_TEST_SUITE_P(Dims, GpuPortableDims,
                         testing::Values(Dims{1, 1}, Dims{7, 13}, Dims{65, 63}, Dims{100, 36},
                                         Dims{24, 264}, Dims{320, 64}, Dims{513, 530}));

TEST_F(GpuPortableAttention, AnyStrides) {
  for (const Layout layout : {Layout::kReversed, Layout::kSpread})
    for (const int64_t dim : {64, 128}) {
      Case test = forward_case(DType::kBF16, 2, 4, 2, 200, 333, dim, dim);
      test.layout = layout;
      test.problem.causal = Causal::kTopLeft;
      check(test);
    }
}

TEST_F(GpuPortableAttention, AnyAlignment) {
  for (misalign_ = 1; misalign_ < 8; misalign_ += 3)
    check(forward_case(DType::kBF16, 2, 2, 1, 130, 200, 64, 64));
}

// Rows, heads and batch entries that are one and the same in memory.
TEST_F(GpuPortableAttention, StridesOfZero) {
  for (int d = 0; d < 3; ++d) {
    Case test = forward_case(DType::kBF16, 3, 4, 2, 130, 200, 64, 64);
    test.prepare = [d](AttentionBackward& a) {
      for (Tensor* tensor : {&a.query, &a.key, &a.value}) tensor->stride[d] = 0;
    };
    check(test);
  }
}

TEST_F(GpuPortableAttention, AnyScale) {
  for (const double scale : {-0.125, 0.0, 2.0, -1.0})
    for (const bool bias : {false, true}) {
      Case test = forward_case(DType::kBF16, 2, 2, 2, 150, 301, 64, 64);
      test.problem.scale = scale;
      test.problem.causal = Causal::kBottomRight;
      if (bias) add_bias(test, DType::kF32, {1, 2, 150, 301}, false);
      check(test);
    }
}

// NaN and infinity at hidden keys, and at keys that some rows see, where elements are gathered and
// dims are cut.
TEST_F(GpuPortableAttention, NothingLeaksFromMaskedKeys) {
  for (const auto& [dim, value_dim] : {Dims{65, 63}, {320, 300}})
    for (const double poison : {kNaN, kInfinity}) {
      Case test = forward_case(DType::kBF16, 1, 4, 1, 150, 400, dim, value_dim);
      test.problem.causal = Causal::kTopLeft;
      test.prepare = [=, last = value_dim - 1](AttentionBackward& a) {
        put(a.value, at(a.value, {0, 0, 30, 3}), poison);
        put(a.value, at(a.value, {0, 0, 100, last}), poison);
        put(a.value, at(a.value, {0, 0, 300, 3}), poison);
        put(a.key, at(a.key, {0, 0, 140, 5}), kNaN);
      };
      check(test);
    }
}

}  // namespace
}  // namespace perseid::internal
