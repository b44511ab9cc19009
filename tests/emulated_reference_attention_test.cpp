// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The kernels of cuda:reference on an emulated GPU (emulated_gpu.hpp), against the CPU's float64
// reference: results are its numbers, rounded to the type.
#include "cuda/attention/reference.hpp"
#include "emulated_attention_cases.hpp"
// Kernels.
#include "cuda/device/attention/reference.hpp"

namespace perseid::internal {
namespace {

using namespace emulated_attention;
using cuda::ReferenceArguments;
using cuda::ReferenceShared;

constexpr int kBlocks = 3;  // which take rows in turns

template <DType D, class Tensors, class Kernel>
void launch(const ReferenceArguments<Tensors>& arguments, const Kernel& kernel) {
  for (int b = 0; b < kBlocks; ++b) {
    emulated_gpu::Block block(b, cuda::kReferenceThreads, sizeof(ReferenceShared), kBlocks);
    auto& shared = *reinterpret_cast<ReferenceShared*>(block.shared.data());
    block.run([&] { kernel(cuda::Reference<D, Tensors>(arguments, shared)); });
  }
}

// Half a step of the type, and what sums of float64 in another order may differ by.
void expect_rounded(const char* name, const Fixture& fixture, const Tensor& got, double before) {
  const std::vector<double>& want = fixture.want.at(name);
  harness::Limit limit;
  double largest = 0;
  for (const double each : want)
    if (std::isfinite(each)) largest = std::max(largest, std::abs(each));
  const double step = got.dtype == DType::kBF16  ? 0x1p-9
                      : got.dtype == DType::kF16 ? 0x1p-12
                      : got.dtype == DType::kF32 ? 0x1p-25
                                                 : 0;
  std::vector<double> exact = want;
  for (double& each : exact) {
    each += before;
    const double magnitude = std::isfinite(each) ? std::abs(each) : 0;
    limit.each.push_back(1e-12 * std::max(largest, 1.0) + 2.04 * step * magnitude +
                         (got.dtype == DType::kF16 ? 0x1p-25 : 0));
  }
  expect_close(name, got, exact, limit);
}

template <DType D>
void run_forward(Fixture& fixture) {
  fixture.out.blank();
  fixture.lse.blank();
  const ReferenceArguments<AttentionForward> arguments{fixture.problem,
                                                       fixture.forward_arguments()};
  launch<D>(arguments, [](auto kernel) { kernel.forward(); });
  expect_rounded("out", fixture, fixture.out.tensor, 0);
  expect_rounded("lse", fixture, fixture.lse.tensor, 0);
  fixture.out.expect_guards();
  fixture.lse.expect_guards();
}

// `before`: if not 0, in every element of the gradients, which are added to it.
template <DType D>
void run_backward(Fixture& fixture, double before) {
  AttentionProblem& p = fixture.problem;
  p.accumulate_query = p.accumulate_key = p.accumulate_value = p.accumulate_bias = before != 0;
  for (Array* result :
       {&fixture.grad_query, &fixture.grad_key, &fixture.grad_value, &fixture.grad_bias}) {
    if (!result->tensor.present()) continue;
    result->blank();
    if (before != 0)
      for_each(result->tensor, [&](int64_t at, int64_t) { put(result->tensor, at, before); });
  }
  const Array workspace = make_workspace(cuda::reference_attention_backward_workspace(p));
  const ReferenceArguments<AttentionBackward> arguments{p, fixture.arguments,
                                                        workspace.tensor.as<cuda::ReferenceSums>()};
  launch<D>(arguments, [](auto kernel) { kernel.grad_queries(); });
  launch<D>(arguments, [](auto kernel) { kernel.grad_keys(); });
  if (p.grad_bias) launch<D>(arguments, [](auto kernel) { kernel.grad_bias(); });
  const auto compare = [&](const char* name, const Array& result) {
    expect_rounded(name, fixture, result.tensor, before);
    result.expect_guards();
  };
  compare("grad_query", fixture.grad_query);
  compare("grad_key", fixture.grad_key);
  compare("grad_value", fixture.grad_value);
  if (p.grad_bias) compare("grad_bias", fixture.grad_bias);
  workspace.expect_guards();
}

template <DType D>
void run(const Case& test, double before) {
  SCOPED_TRACE(text_of(test));
  Fixture fixture(test);
  // Backward reads the reference's out and lse.
  if (test.problem.backward()) run_backward<D>(fixture, before);
  run_forward<D>(fixture);
}
void check(const Case& test, double before = 0) {
  if (test.problem.dtype == DType::kF16) run<DType::kF16>(test, before);
  if (test.problem.dtype == DType::kBF16) run<DType::kBF16>(test, before);
  if (test.problem.dtype == DType::kF32) run<DType::kF32>(test, before);
  if (test.problem.dtype == DType::kF64) run<DType::kF64>(test, before);
}

// More keys than a block has threads, more columns, more query heads than key heads.
TEST(EmulatedReferenceAttention, EveryType) {
  for (const DType dtype : kTypes) {
    Case test = make_case(dtype, 2, 2, 1, 17, 133, 21, 150);
    test.grad_lse = true;
    check(test);
    test.problem.causal = Causal::kBottomRight;
    test.input_scale = 5;
    check(test);
  }
}
TEST(EmulatedReferenceAttention, NoQueriesAndNoKeys) {
  check(make_case(DType::kF32, 1, 2, 1, 3, 0, 8, 8));
  check(make_case(DType::kF32, 1, 2, 1, 0, 3, 8, 8));
}

TEST(EmulatedReferenceAttention, EverythingAtOnce) {
  for (const DType dtype : {DType::kBF16, DType::kF64})
    for (const auto& shape : {std::vector<int64_t>{}, {1, 2, 1, 100}, {5, 1, 35, 1}, {1, 1, 1, 1}})
      check(with_everything(make_case(dtype, 0, 4, 2, 0, 0, 20, 12), 35, 100, dtype, shape));
}

TEST(EmulatedReferenceAttention, AnyStridesAndScale) {
  check(with_any_strides_and_scale(make_case(DType::kF16, 1, 2, 1, 30, 100, 13, 19)));
  Case test = make_case(DType::kF32, 2, 4, 2, 10, 40, 16, 16);
  test.layout = Layout::kReversed;
  test.problem.scale = 3;
  test.problem.window_right = 2;
  test.problem.window_bottom_right = true;
  check(test);
  test.layout = Layout::kBhsd;
  test.prepare = [](AttentionBackward& a) {
    for (Tensor* each : {&a.query, &a.key, &a.value, &a.grad_out})
      each->stride[1] = each->stride[3] = 0;
  };
  check(test);
}

TEST(EmulatedReferenceAttention, GradientsAreAddedToWhatIsThere) {
  Case test = make_case(DType::kF32, 2, 2, 1, 20, 30, 8, 8);
  add_bias(test, DType::kF32, {1, 2, 20, 30}, true);
  test.problem.q_lens = test.problem.kv_lens = true;
  test.seen_q_lens = {20, 3};
  test.kv_lens = {30, 11};
  check(test);
  check(test, 0.75);
}

TEST(EmulatedReferenceAttention, QueryLengths) {
  Case test = make_case(DType::kF64, 3, 2, 1, 12, 20, 8, 8);
  test.problem.q_lens = true;
  test.seen_q_lens = {12, 0, 5};
  test.problem.causal = Causal::kBottomRight;
  check(test);
  Case ragged = make_case(DType::kBF16, 0, 2, 1, 0, 0, 8, 8);
  set_ragged(ragged, {9, 4, 13}, {20, 3, 8});
  ragged.problem.q_lens = true;
  ragged.seen_q_lens = {7, 0, 13};
  check(ragged);
}
TEST(EmulatedReferenceAttention, Caches) {
  for (const Case& test : cases_of_caches(DType::kF32)) check(test);
}

// Dropout counts by the rows of whole sequences.
TEST(EmulatedReferenceAttention, RowsOfARank) {
  for (const bool zigzag : {false, true}) {
    Case test = make_case(DType::kF64, 1, 2, 1, 18, 70, 12, 12);
    test.problem.rows = {.ranks = 3, .rank = 1, .zigzag = zigzag};
    test.problem.dropout = 0.4;
    test.problem.causal = Causal::kBottomRight;
    check(test);
  }
}

// What no query sees may hold anything; what one sees is NaN in its rows alone.
TEST(EmulatedReferenceAttention, Nonfinite) {
  Case test = make_case(DType::kF32, 1, 2, 2, 20, 30, 8, 8);
  test.problem.causal = Causal::kTopLeft;
  add_bias(test, DType::kF32, {1, 1, 20, 30}, true);
  test.prepare = [](AttentionBackward& a) {
    put(a.value, at(a.value, {0, 0, 15, 3}), kInfinity);
    put(a.key, at(a.key, {0, 1, 25, 3}), kNaN);
    put(a.query, at(a.query, {0, 1, 7, 5}), kNaN);
    for (int64_t j = 0; j < 5; ++j) put(a.bias, at(a.bias, {0, 0, 4, j}), -kInfinity);
  };
  check(test);
}

// Lengths that exceed the tensors are cut: nothing is read or written beyond.
TEST(EmulatedReferenceAttention, LengthsAreKeptWithinTheTensors) {
  Case test = make_case(DType::kF32, 0, 2, 1, 0, 0, 8, 8);
  set_ragged(test, {9, 4, 13}, {20, 3, 8});
  Fixture fixture(test);
  fixture.cu_q.fill({0, 20, 1000000, -5});
  fixture.cu_kv.fill({0, 23, -7, 1000000000});  // no keys: zeros would be written
  const ReferenceArguments<AttentionForward> arguments{fixture.problem,
                                                       fixture.forward_arguments()};
  launch<DType::kF32>(arguments, [](auto kernel) { kernel.forward(); });
  fixture.out.expect_guards();
  fixture.lse.expect_guards();
}

}  // namespace
}  // namespace perseid::internal
