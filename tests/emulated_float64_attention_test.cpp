// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The float64 kernels of attention on an emulated GPU (emulated_gpu.hpp), forward and backward,
// against the float64 reference.
#include "cuda/portable/attention_backward.hpp"
#include "cuda/portable/attention_float64.hpp"
#include "cuda/runtime/kernel_name.hpp"
#include "emulated_attention_cases.hpp"
// Kernels.
#include "cuda/device/portable/attention/backward.hpp"
#include "cuda/device/portable/attention/float64_forward.hpp"

namespace perseid::internal {
namespace {

using namespace emulated_attention;
using cuda::Float64Arguments;
using cuda::Float64ForwardConfig;
using cuda::GradientsOf;
using cuda::PortableBackwardConfig;

Case make_f64(int64_t batch, int64_t heads, int64_t kv_heads, int64_t q_len, int64_t kv_len,
              int64_t dim, int64_t value_dim) {
  return make_case(DType::kF64, batch, heads, kv_heads, q_len, kv_len, dim, value_dim);
}

// The configuration has to be the problem's choice.
template <Float64ForwardConfig C>
void check_forward(Fixture& fixture) {
  fixture.out.blank();
  fixture.lse.blank();
  const AttentionProblem problem = cuda::with_heads_as_rows(fixture.problem);
  Float64Arguments arguments = cuda::float64_attention_arguments(problem, C);
  Float64ForwardConfig chosen = cuda::choose_float64_attention(problem);
  chosen.vectors = cuda::bind_float64_attention(
      cuda::with_heads_as_rows(fixture.problem, fixture.forward_arguments()), &arguments);
  ASSERT_EQ(cuda::kernel_name("", chosen), cuda::kernel_name("", C));
  const Array workspace = make_workspace(cuda::float64_attention_workspace(arguments));
  cuda::bind_float64_attention_workspace(workspace.tensor.as<std::byte>(), &arguments);
  arguments.launch = 6;
  for (int b = 0; b < cuda::float64_attention_blocks(arguments, C); ++b) {
    emulated_gpu::Block block(b, C.threads, static_cast<size_t>(C.shared_bytes()));
    block.run([&] { cuda::Float64Forward<C>(arguments, block.shared.data()).run(); });
  }
  if constexpr (C.split)
    launch_after_splits(
        arguments, C.fixes_splits(), [&] { cuda::float64_attention_combine<C>(arguments); },
        [&] { cuda::float64_attention_fixup<C>(arguments); });
  fixture.compare_forward();
}

constexpr int32_t kShared = 232448;  // that a block may have

// Launches of an execution, the preparation before the first, the last after the sums of dQ.
enum class Launch { kPrepare, kGradients, kFinish };
template <PortableBackwardConfig C>
void launch(const Fixture& fixture, const AttentionProblem& plan, std::byte* workspace,
            Launch which) {
  ASSERT_EQ(
      cuda::kernel_name("", cuda::choose_portable_attention_backward(plan, C.gradients, kShared)),
      cuda::kernel_name("", C));
  auto arguments = cuda::portable_attention_backward_arguments<double>(
      plan, C,
      {fixture.problem.q_len, fixture.problem.kv_len, fixture.problem.total_q,
       fixture.problem.total_kv});
  cuda::bind_portable_attention_backward(plan, {}, fixture.arguments, workspace, &arguments);
  const bool sums = which == Launch::kGradients;
  const auto blocks =
      static_cast<int>(sums ? cuda::portable_attention_backward_blocks(arguments, C)
                            : cuda::portable_attention_backward_q_blocks(fixture.problem));
  for (int b = 0; b < blocks; ++b) {
    emulated_gpu::Block block(b, sums ? C.threads() : cuda::kPrepareThreads,
                              static_cast<size_t>(C.shared_bytes()), blocks);
    block.run([&] {
      if (which == Launch::kPrepare)
        cuda::PortableBackwardPrepare<C>(arguments).run(b, blocks);
      else if (sums)
        cuda::PortableBackward<C>(arguments, block.shared.data()).run();
      else
        cuda::PortableBackwardFinish<C>(arguments, b,
                                        reinterpret_cast<uint32_t*>(block.shared.data()))
            .run();
    });
  }
}
constexpr PortableBackwardConfig of(const Float64ForwardConfig& forward, GradientsOf gradients,
                                    bool adds_queries = false) {
  PortableBackwardConfig config{.dtype = DType::kF64,
                                .key_dim = forward.key_dim,
                                .value_dim = forward.value_dim,
                                .gradients = gradients,
                                .adds_queries = adds_queries,
                                .warps = 8,
                                .chunk = 32,
                                .right = forward.right,
                                .left = forward.left,
                                .lengths = forward.lengths,
                                .visible = forward.visible,
                                .dropout = forward.dropout,
                                .bias = forward.bias};
  const bool cut = config.streams();
  config.columns = config.of_bias() || (!cut && config.most_dim() <= 64) ? 32 : 16;
  return config;
}
// In the fixed order, or in any. By a plan of the fixture's problem, or of more.
template <Float64ForwardConfig C, bool kAdds>
void check_backward(Fixture& fixture, const AttentionProblem* of_more = nullptr) {
  fixture.problem.deterministic = !kAdds;
  AttentionProblem plan = of_more == nullptr ? fixture.problem : *of_more;
  plan.deterministic = !kAdds;
  for (Array* result :
       {&fixture.grad_query, &fixture.grad_key, &fixture.grad_value, &fixture.grad_bias})
    if (result->tensor.present()) result->blank();
  constexpr bool kBias = C.bias != DType::kNone;
  constexpr PortableBackwardConfig kKeys = of(C, GradientsOf::kKeys, kAdds);
  const Array workspace = make_workspace(cuda::portable_attention_backward_workspace(plan, {}));
  std::byte* const bytes = workspace.tensor.as<std::byte>();
  launch<kKeys>(fixture, plan, bytes, Launch::kPrepare);
  launch<kKeys>(fixture, plan, bytes, Launch::kGradients);
  if constexpr (kAdds)
    launch<kKeys>(fixture, plan, bytes, Launch::kFinish);
  else
    launch<of(C, GradientsOf::kQueries)>(fixture, plan, bytes, Launch::kGradients);
  if constexpr (kBias) {
    launch<of(C, GradientsOf::kBias)>(fixture, plan, bytes, Launch::kPrepare);
    launch<of(C, GradientsOf::kBias)>(fixture, plan, bytes, Launch::kGradients);
  }
  fixture.compare_gradients();
  workspace.expect_guards();
}
// `clean`: other inputs, whose limits are taken.
template <Float64ForwardConfig C>
void check(const Case& test, const Fixture* clean = nullptr) {
  SCOPED_TRACE(text_of(test));
  Fixture fixture(test);
  if (clean != nullptr) fixture.use_limits_of(*clean);
  // Backward reads the reference's out and lse.
  check_backward<C, false>(fixture);
  if constexpr (max(C.key_dim, C.value_dim) <= 128) check_backward<C, true>(fixture);
  check_forward<C>(fixture);
}

constexpr Float64ForwardConfig kFull{.keys = 32};

TEST(EmulatedFloat64Attention, Full) {
  check<kFull>(make_f64(1, 2, 1, 70, 101, 64, 64));
  check<kFull>(make_f64(1, 1, 1, 20, 0, 64, 64));
  for (const double scale : {0.1, 30.0}) {
    Case test = make_f64(1, 2, 1, 20, 130, 64, 64);
    test.grad_lse = true;
    test.input_scale = scale;
    check<kFull>(test);
  }
}

constexpr Float64ForwardConfig kCausal{.key_dim = 80, .value_dim = 48, .right = true};

// Hidden keys and values that are not finite, and some that are seen.
TEST(EmulatedFloat64Attention, CausalWithNonfinite) {
  Case test = make_f64(1, 2, 2, 70, 90, 80, 48);
  test.layout = Layout::kBshd;
  test.problem.causal = Causal::kTopLeft;
  check<kCausal>(test);
  const Fixture clean(test);
  test.prepare = [](AttentionBackward& a) {
    put(a.key, at(a.key, {0, 0, 66, 5}), kNaN);
    put(a.value, at(a.value, {0, 0, 50, 3}), kInfinity);
    put(a.value, at(a.value, {0, 1, 80, 3}), kNaN);
    put(a.query, at(a.query, {0, 1, 7, 5}), kNaN);
  };
  check<kCausal>(test, &clean);
}

constexpr Float64ForwardConfig kSplit{.value_dim = 48, .keys = 32, .right = true, .split = true};
constexpr Float64ForwardConfig kQuery{.keys = 32, .split = true};

constexpr Float64ForwardConfig kSplitLengths{
    .value_dim = 48, .keys = 32, .right = true, .lengths = true, .split = true};

template <Float64ForwardConfig C>
void check_splits(const Case& test, const Fixture* clean = nullptr) {
  SCOPED_TRACE(text_of(test));
  Fixture fixture(test);
  if (clean != nullptr) fixture.use_limits_of(*clean);
  check_forward<C>(fixture);
}

// Few queries with heads of their own; one whose heads are rows.
TEST(EmulatedFloat64Attention, SplitsKeysOfFewQueries) {
  const Case test = split_case(DType::kF64, 1);
  check_splits<kSplit>(test);
  const Fixture clean(test);
  check_splits<kSplit>(with_nonfinite_values(test), &clean);
  Case ragged = forward_case(DType::kF64, 0, 4, 2, 0, 0, 64, 48);
  ragged.problem.causal = Causal::kBottomRight;
  set_ragged(ragged, {1, 0, 3, 2}, {1700, 3, 200, 0});
  ragged.layout = Layout::kBshd;
  check_splits<kSplitLengths>(ragged);
  check_splits<kQuery>(query_case(DType::kF64));
}

TEST(EmulatedFloat64Attention, SplitsWhoseScoresAreAllNaN) {
  const Case test = query_case(DType::kF64);
  const Fixture clean(test);
  check_splits<kQuery>(with_nan(test), &clean);
}

constexpr Float64ForwardConfig kGathered{
    .key_dim = 16, .value_dim = 32, .keys = 32, .vectors = false, .right = true, .left = true};

TEST(EmulatedFloat64Attention, AnyStridesAndScale) {
  check<kGathered>(with_any_strides_and_scale(make_f64(1, 2, 1, 60, 100, 13, 19)));
}

constexpr Float64ForwardConfig kEverything{.key_dim = 96,
                                           .value_dim = 64,
                                           .right = true,
                                           .lengths = true,
                                           .visible = true,
                                           .dropout = true,
                                           .bias = DType::kF64};

TEST(EmulatedFloat64Attention, EverythingAtOnce) {
  for (const auto& shape : {std::vector<int64_t>{}, {1, 2, 1, 100}})
    check<kEverything>(
        with_everything(make_f64(0, 2, 1, 0, 0, 96, 64), 70, 100, DType::kF64, shape));
}

// By a plan of more queries and keys, which splits less of the gradient of bias.
TEST(EmulatedFloat64Attention, ShorterTensorsThanThePlan) {
  constexpr Float64ForwardConfig kBias{.keys = 32, .right = true, .bias = DType::kF64};
  for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{70, 101}, {1, 40}}) {
    Case test = make_f64(2, 2, 1, queries, keys, 64, 64);
    test.problem.causal = Causal::kBottomRight;
    add_bias(test, DType::kF64, {1, 2, 1, keys}, true);
    AttentionProblem plan = test.problem;
    plan.max_lengths = true;
    plan.q_len = 300;
    plan.kv_len = plan.bias_shape[3] = 5000;
    Fixture fixture(test);
    check_backward<kBias, false>(fixture, &plan);
    check_backward<kBias, true>(fixture, &plan);
  }
}

constexpr Float64ForwardConfig kLarge{.key_dim = 272, .value_dim = 144};

TEST(EmulatedFloat64Attention, CutsLargeDims) {
  check<kLarge>(make_f64(1, 1, 1, 20, 50, 270, 140));
}

// Powers in the whole range, and what is beyond it.
TEST(EmulatedFloat64Attention, Exponential) {
  using cuda::DoubleArithmetic;
  for (double x = -1021.9; x < 1021.9; x += 0.37)
    EXPECT_NEAR(DoubleArithmetic::exp2(x) / std::exp2(x), 1, 4e-16) << x;
  for (const double x : {0.0, -0.0, 1.0, -3.0, 1021.0})
    EXPECT_EQ(DoubleArithmetic::exp2(x), std::exp2(x));
  for (const double x : {-1022.5, -1e300, -kInfinity}) EXPECT_EQ(DoubleArithmetic::exp2(x), 0);
  for (const double x : {1024.0, 1e300, kInfinity}) EXPECT_EQ(DoubleArithmetic::exp2(x), kInfinity);
  for (const double x : {kNaN, -kNaN}) EXPECT_TRUE(std::isnan(DoubleArithmetic::exp2(x)));
}

}  // namespace
}  // namespace perseid::internal
