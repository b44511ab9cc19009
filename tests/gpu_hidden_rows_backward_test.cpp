// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Whole rows of large numbers, of infinity or NaN change no bit of a gradient that does not depend
// on them: rows of key and value that queries do not see, and rows of query and grad_out that keys
// do not see. Products of the largest numbers are beyond float32. Roundings may change in default
// mode: of grad_query, which is summed in any order, and of gradients of keys whose step has a
// hidden query with an lse of NaN. They may also change in float32 on Hopper, where tiles with such
// rows run another loop.
#include "gpu_attention_backward_tools.hpp"
#include "gpu_hidden_keys_tools.hpp"

namespace perseid::internal {
namespace {

using namespace testing_gpu;

constexpr double kLargest = 3.3895313892515355e38;  // of bf16; infinity in f16
constexpr double kRounding = 0x1p-6, kRoundingOfFloat32 = 0x1p-17;

class GpuHiddenRowsBackward : public GpuAttentionBackward,
                              public testing::WithParamInterface<int64_t> {
 protected:
  // Tries `values`; those that are not finite in deterministic mode alone.
  void check(HiddenRows hidden, const std::vector<double>& values) {
    SCOPED_TRACE(text_of(hidden.test));
    hidden.test.bits_alone = true;
    AttentionProblem& problem = hidden.test.problem;
    problem.grad_query = problem.grad_key = problem.grad_value = true;
    for (const bool deterministic : {true, false}) {
      SCOPED_TRACE(deterministic ? "deterministic" : "default");
      problem.deterministic = deterministic;
      compare(hidden, values);
    }
  }

 private:
  // By the kernels under test; of float32 by those of each GPU, and on Hopper by its own.
  void compare(const HiddenRows& hidden, const std::vector<double>& values) {
    const AttentionProblem& problem = hidden.test.problem;
    const auto by_any = [this](Fixture& fixture) { run(fixture); };
    if (tested_kernels() != TestedKernels::kFloat32) return compare(hidden, values, by_any);
    compare(hidden, values,
            [this](Fixture& fixture) { run_by<cuda::PortableAttentionBackward>(fixture); });
    if (gpu_->facts().major == 9 && cuda::refuse_attention(problem, gpu_->facts()).empty() &&
        cuda::refuse_float32_attention_backward(problem).empty())
      compare(hidden, values,
              [this](Fixture& fixture) { run_by<cuda::Sm90Float32AttentionBackward>(fixture); });
  }
  template <class Run>
  void compare(const HiddenRows& hidden, const std::vector<double>& values, const Run& run) {
    const AttentionProblem& problem = hidden.test.problem;
    const bool deterministic = problem.deterministic;
    Fixture before(hidden.test);
    run(before);
    for (const double value : values)
      for (const bool both : {false, true}) {
        if (!deterministic && !std::isfinite(value)) continue;
        SCOPED_TRACE(concatenate("value ", value, " both tensors ", both));
        Fixture after(replaced(hidden, value, both));
        run(after);
        HiddenTolerance tolerance;
        if (!deterministic) {
          tolerance.queries = kRounding;
          if (!hidden.queries.empty() && both && std::abs(value) == kLargest)
            tolerance.keys = kRounding;
          if (problem.dtype == DType::kF32) tolerance = {kRoundingOfFloat32, kRoundingOfFloat32};
        }
        compare_gradients(before, after, hidden, tolerance);
      }
  }

 protected:
  const std::vector<double> keys_ = {kLargest, -1e30, 0x1p40, kInfinity, kNaN};
  // Those that are not finite are not cleared: rows that do not see them are computed again.
  const std::vector<double> queries_ = {kLargest, -1e30, 0x1p40};
};

INSTANTIATE_TEST_SUITE_P(Dims, GpuHiddenRowsBackward, testing::Values(64, 72, 128, 256));

TEST_P(GpuHiddenRowsBackward, Causal) {
  const Case test = masked("causal", DType::kBF16, 2, 200, 260, GetParam(), {}).test;
  for (const Causal causal : {Causal::kTopLeft, Causal::kBottomRight}) {
    HiddenRows hidden{test, {150, 230, 259}, {}};
    hidden.test.problem.causal = causal;
    check(hidden, keys_);
    check({hidden.test, {}, {30, 31}}, queries_);
  }
}
// No gradient depends on a key that no query sees.
TEST_P(GpuHiddenRowsBackward, KeysThatNoQuerySees) {
  HiddenRows hidden{
      masked("unseen", DType::kBF16, 2, 200, 260, GetParam(), {}).test, {200, 259}, {}};
  hidden.test.problem.causal = Causal::kTopLeft;
  check(hidden, keys_);
}
TEST_P(GpuHiddenRowsBackward, Window) {
  HiddenRows hidden{masked("window", DType::kBF16, 1, 300, 310, GetParam(), {}).test, {170}, {}};
  hidden.test.problem.window_left = 60;
  hidden.test.problem.window_right = 20;
  check(hidden, keys_);
  check({hidden.test, {}, {200}}, queries_);
}
TEST_P(GpuHiddenRowsBackward, Visible) {
  HiddenRows hidden{masked("visible", DType::kBF16, 2, 130, 201, GetParam(), {}).test, {130}, {}};
  set_visible(hidden.test, {1, 2, 130, 201});
  hidden.test.problem.causal = Causal::kTopLeft;
  check(hidden, {kLargest, kNaN});
  hidden.test.problem.dropout = 0.25;
  check(hidden, {kLargest});
}
TEST_P(GpuHiddenRowsBackward, Lengths) {
  const int64_t dim = GetParam();
  HiddenRows hidden{forward_case(DType::kBF16, 3, 4, 2, 140, 300, dim, dim), {150, 220, 290}, {}};
  hidden.test.problem.kv_lens = true;
  hidden.test.kv_lens = {149, 300, 200};
  check(hidden, keys_);
  HiddenRows ragged{forward_case(DType::kBF16, 0, 2, 1, 0, 0, dim, dim), {90, 200}, {}};
  set_ragged(ragged.test, {150, 0, 77, 100}, {210, 60, 100, 120});
  ragged.test.layout = Layout::kBshd;
  ragged.test.problem.causal = Causal::kTopLeft;
  check(ragged, keys_);
  check({ragged.test, {}, {0, 99}}, queries_);
}
TEST_P(GpuHiddenRowsBackward, BiasWithGradient) {
  HiddenRows hidden{masked("bias", DType::kBF16, 2, 150, 200, GetParam(), {}).test, {100, 180}, {}};
  add_bias(hidden.test, hidden.test.problem.dtype, {1, 2, 150, 200}, true);
  hidden.test.problem.causal = Causal::kTopLeft;
  check(hidden, {kLargest});
}
// In f16 no product overflows.
TEST_P(GpuHiddenRowsBackward, SharedKeyHeadsInF16) {
  HiddenRows hidden{masked("f16", DType::kF16, 8, 130, 200, GetParam(), {}).test, {60, 150}, {}};
  hidden.test.problem.causal = Causal::kTopLeft;
  check(hidden, {65504, kInfinity});
}

}  // namespace
}  // namespace perseid::internal
