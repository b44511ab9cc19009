// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the portable kernels of attention backward take beyond those of compute capability 9.0, and
// what is special to them.
#include "cuda/portable/attention.hpp"
#include "gpu_attention_backward_tools.hpp"
#include "gpu_portable_cases.hpp"

namespace perseid::internal {
namespace testing_gpu {

INSTANTIATE_TYPED_TEST_SUITE_P(Backward, GpuPortable, GpuAttentionBackward);

}  // namespace testing_gpu
namespace {

using namespace cpu::attention_cases;
using GpuPortableBackward = OfAnyGpu<testing_gpu::GpuAttentionBackward>;
using Dims = std::pair<int64_t, int64_t>;

TEST_F(GpuPortableBackward, EverythingAtOnce) {
  for (const auto& shape : {std::vector<int64_t>{5, 1, 130, 200}, {1, 4, 1, 200}}) {
    Case all = make_case(DType::kF16, 0, 4, 2, 0, 0, 128, 64);
    set_ragged(all, {5, 0, 130, 1, 64}, {7, 3, 200, 0, 64});
    all.layout = Layout::kBshd;
    all.grad_lse = true;
    all.problem.causal = Causal::kBottomRight;
    all.problem.window_left = 90;
    all.problem.dropout = 0.3;
    all.problem.kv_lens = true;
    all.kv_lens = {7, 1, 90, 0, 63};
    add_bias(all, DType::kF32, shape, true);
    set_visible(all, {1, 4, 130, 1});
    check(all);
  }
}

// Whose gradient is dS where it is not repeated. Rows of whole vectors and others.
TEST_F(GpuPortableBackward, BiasOf16Bits) {
  for (const auto& [keys, dim] : {Dims{328, 64}, {201, 128}}) {
    Case test = make_case(DType::kBF16, 2, 4, 2, 300, keys, dim, dim);
    add_bias(test, DType::kBF16, {2, 4, 300, keys}, true);
    check(test);
    test.problem.causal = Causal::kTopLeft;
    test.problem.window_left = 100;
    test.problem.dropout = 0.2;
    check(test);
    test.problem.deterministic = true;
    check(test);
  }
  Case test = make_case(DType::kF16, 1, 2, 2, 140, 136, 64, 32);
  add_bias(test, DType::kF16, {1, 2, 140, 136}, true);
  test.problem.scale = 0;
  check(test);
  set_visible(test, {1, 1, 140, 136});
  check(test);
}

// Queries and keys that planes of float32 do not hold.
TEST_F(GpuPortableBackward, BiasOfRowsThatPlanesDoNotHold) {
  for (const bool repeated : {false, true}) {
    Case test = make_case(DType::kBF16, 2, 2, 1, 150, 201, 64, 64);
    add_bias(test, DType::kF32, {2, repeated ? 1 : 2, 150, 201}, true);
    test.problem.causal = Causal::kBottomRight;
    test.prepare = [](AttentionBackward& a) {
      for (int d = 0; d < 64; ++d) {
        put(a.query, at(a.query, {0, 0, 3, d}), 1e-25);
        put(a.key, at(a.key, {1, 0, 41, d}), 1e-25);
        put(a.key, at(a.key, {1, 0, 66, d}), d == 0 ? 1030 : 1e-9 * (d % 7));
      }
    };
    check(test);
  }
}

// What GPUs run whose blocks have least shared memory.
TEST_F(GpuPortableBackward, LeastSharedMemory) {
  shared_bytes_ = cuda::kLeastShared;
  for (const auto& [dim, value_dim] : {Dims{128, 128}, {96, 40}, {72, 128}}) {
    Case test = make_case(DType::kBF16, 2, 4, 2, 200, 333, dim, value_dim);
    check(test);
    test.problem.causal = Causal::kBottomRight;
    test.problem.window_left = 100;
    check(test);
    test.problem.dropout = 0.2;
    check(test);
  }
}

// Rows of gradients of out, queries and keys whose sizes differ by more than f16 holds: grad_query
// has the accuracy that each row's own gradient of out asks for.
TEST_F(GpuPortableBackward, RowsOfAnySize) {
  if (tested_kernels() != TestedKernels::kFloat32) GTEST_SKIP() << "float32 alone";
  constexpr int64_t kQueries = 200, kKeys = 330, kDim = 64;
  std::vector<double> sizes(kQueries);
  for (int64_t i = 0; i < kQueries; ++i) sizes[i] = std::exp2(i * 7 % 25 - 18);
  Case test = make_case(DType::kBF16, 1, 1, 1, kQueries, kKeys, kDim, kDim);
  test.prepare = [&](AttentionBackward& a) {
    Random random{3};
    fill(a.query, random, 1);
    fill(a.key, random, 1);
    for (int64_t d = 0; d < kDim; ++d) {
      for (int64_t i = 0; i < kQueries; ++i) {
        put(a.grad_out, at(a.grad_out, {0, 0, i, d}), sizes[i] * std::cos(i + 3 * d));
        if (i % 5 == 0) put(a.query, at(a.query, {0, 0, i, d}), 1e-6 * std::sin(i + 5 * d));
      }
      for (int64_t i = 0; i < kKeys; i += 7)
        put(a.key, at(a.key, {0, 0, i, d}), 1e-5 * std::cos(2 * i + d));
    }
  };
  Fixture fixture(test);
  const auto expect_rows = [&] {
    const std::vector<double>& want = fixture.want.at("grad_query");
    const std::vector<double> got = tests::values_of(fixture.grad_query.tensor);
    double error = 0, most = 0;  // of a row, in units of its gradient of out
    for (int64_t i = 0; i < kQueries * kDim; ++i) {
      most = std::max(most, std::abs(want[i]) / sizes[i / kDim]);
      error = std::max(error, std::abs(got[i] - want[i]) / sizes[i / kDim]);
    }
    EXPECT_LE(error, 1e-5 * most);
  };
  run_by<cuda::PortableAttentionBackward>(fixture);
  expect_rows();
  if (gpu_->facts().major != 9) return;
  run_by<cuda::Sm90Float32AttentionBackward>(fixture);
  expect_rows();
}

// NaN and infinity at hidden keys and queries, and at those that some rows see, where elements are
// gathered and dims are cut.
TEST_F(GpuPortableBackward, NothingLeaksFromMaskedRows) {
  for (const auto& [dim, value_dim] : {Dims{65, 63}, {320, 300}})
    for (const double poison : {kNaN, kInfinity}) {
      Case test = make_case(DType::kBF16, 1, 4, 1, 150, 400, dim, value_dim);
      test.problem.causal = Causal::kTopLeft;
      test.prepare = [=, last = value_dim - 1](AttentionBackward& a) {
        put(a.value, at(a.value, {0, 0, 100, last}), poison);
        put(a.value, at(a.value, {0, 0, 300, 3}), poison);
        put(a.key, at(a.key, {0, 0, 140, 5}), kNaN);
        put(a.query, at(a.query, {0, 1, 20, 7}), kNaN);
        put(a.grad_out, at(a.grad_out, {0, 2, 60, last}), poison);
      };
      check(test);
    }
}

}  // namespace
}  // namespace perseid::internal
