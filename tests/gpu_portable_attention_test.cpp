// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the portable attention kernels take beyond those of compute capability 9.0.
#include "gpu_attention_tools.hpp"
#include "gpu_portable_cases.hpp"

namespace perseid::internal {
namespace testing_gpu {

INSTANTIATE_TYPED_TEST_SUITE_P(Forward, GpuPortable, GpuAttention);

}  // namespace testing_gpu
namespace {

using namespace testing_gpu;

using GpuPortableAttention = OfAnyGpu<GpuAttention>;

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
