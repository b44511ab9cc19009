// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The edges of the C ABI: defaults and explicit zeros, directions that a plan lacks, problems
// without elements and enormous ones, strides at the end of 64 bits.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <optional>

#include "api_test_tools.hpp"
#include "op/overlap.hpp"

namespace {

constexpr int64_t kEnormous = int64_t{1} << 42;

std::vector<std::byte> workspace_of(const Plan& plan, perseid_direction direction) {
  size_t bytes = 0;
  EXPECT_EQ(perseid_plan_workspace_size(plan.get(), direction, &bytes), PERSEID_OK)
      << perseid_last_error();
  EXPECT_LT(bytes, size_t{1} << 30);
  return std::vector<std::byte>(bytes);
}

// ---- Defaults

struct SmallMatmul {
  float a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8}, c[4] = {100, 200, 300, 400};
  Context context{1};
  std::optional<Plan> made;

  static perseid_matmul_desc describe() {
    auto desc = sized<perseid_matmul_desc>();
    desc.dtype = PERSEID_F32;
    desc.m = desc.n = desc.k = 2;
    return desc;
  }
  perseid_status make(const perseid_matmul_desc& desc) {
    made.emplace();
    return perseid_matmul_plan_create(context.get(), &desc, made->out());
  }
  perseid_status run(const Tensor& a_view, const Tensor& b_view, const Tensor& c_view) {
    auto args = sized<perseid_matmul_args>();
    args.a = a_view.dl();
    args.b = b_view.dl();
    args.c = c_view.dl();
    std::vector<std::byte> workspace = workspace_of(*made, PERSEID_FORWARD);
    return perseid_matmul_execute(made->get(), &args, workspace.data(), workspace.size(), nullptr);
  }
  perseid_status run() { return run({a, {2, 2}}, {b, {2, 2}}, {c, {2, 2}}); }
};

TEST(Defaults, AlphaAndBatchAreOne) {
  SmallMatmul matmul;
  ASSERT_EQ(matmul.make(SmallMatmul::describe()), PERSEID_OK) << perseid_last_error();
  ASSERT_EQ(matmul.run(), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(matmul.c[0], 1 * 5 + 2 * 7);
  EXPECT_EQ(matmul.c[3], 3 * 6 + 4 * 8);

  auto desc = SmallAttention::describe(8);
  desc.batch = 0;
  Plan plan;
  ASSERT_EQ(perseid_attention_plan_create(matmul.context.get(), &desc, plan.out()), PERSEID_OK);
  const char* text = nullptr;
  ASSERT_EQ(perseid_plan_explain(plan.get(), &text), PERSEID_OK);
  EXPECT_NE(std::strstr(text, "batch 1"), nullptr) << text;
}

TEST(Defaults, AlphaMayBeZeroExplicitly) {
  SmallMatmul matmul;
  auto desc = SmallMatmul::describe();
  desc.zero_alpha = 1;
  desc.beta = 0.5;
  ASSERT_EQ(matmul.make(desc), PERSEID_OK) << perseid_last_error();
  ASSERT_EQ(matmul.run(), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(matmul.c[0], 50);
  EXPECT_EQ(matmul.c[3], 200);

  desc.alpha = 2;
  EXPECT_FAILS(matmul.make(desc), PERSEID_INVALID_ARGUMENT,
               "zero_alpha is 1, but alpha is 2; leave one of them 0");
  desc.zero_alpha = 2;
  EXPECT_FAILS(matmul.make(desc), PERSEID_INVALID_ARGUMENT, "zero_alpha is 2, expected 0 (no)");
}

TEST(Defaults, BatchMayBeZeroExplicitly) {
  SmallMatmul matmul;
  auto desc = SmallMatmul::describe();
  desc.zero_batch = 1;
  ASSERT_EQ(matmul.make(desc), PERSEID_OK) << perseid_last_error();
  const Tensor none(matmul.c, {0, 2, 2});
  EXPECT_EQ(matmul.run(none, none, none), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(matmul.c[0], 100);
  EXPECT_FAILS(matmul.run(), PERSEID_INVALID_ARGUMENT, "c has shape [2, 2], expected 3");
  desc.batch = 3;
  EXPECT_FAILS(matmul.make(desc), PERSEID_INVALID_ARGUMENT, "zero_batch is 1, but batch is 3");
  // Sizes have no default: nothing is written where m is 0.
  desc = SmallMatmul::describe();
  desc.m = 0;
  Plan plan;
  ASSERT_EQ(perseid_matmul_plan_create(matmul.context.get(), &desc, plan.out()), PERSEID_OK);

  auto attention = SmallAttention::describe(8);
  attention.batch = 0;
  attention.zero_batch = 1;
  Plan empty;
  ASSERT_EQ(perseid_attention_plan_create(matmul.context.get(), &attention, empty.out()),
            PERSEID_OK);
  float unused = 7;
  const Tensor q(&unused, {0, 8, 4, 16}), k(&unused, {0, 8, 2, 16});
  auto args = sized<perseid_attention_forward_args>();
  args.query = args.out = q.dl();
  args.key = args.value = k.dl();
  std::vector<std::byte> workspace = workspace_of(empty, PERSEID_FORWARD);
  EXPECT_EQ(
      perseid_attention_forward(empty.get(), &args, workspace.data(), workspace.size(), nullptr),
      PERSEID_OK)
      << perseid_last_error();
  attention.batch = 2;
  Plan plan2;
  EXPECT_FAILS(perseid_attention_plan_create(matmul.context.get(), &attention, plan2.out()),
               PERSEID_INVALID_ARGUMENT, "zero_batch is 1, but batch is 2");
}

// ---- Directions, timers, counts

TEST(Directions, ThatAPlanLacksNeedNoWorkspace) {
  SmallMatmul matmul;
  ASSERT_EQ(matmul.make(SmallMatmul::describe()), PERSEID_OK);
  size_t bytes = 1;
  EXPECT_EQ(perseid_plan_workspace_size(matmul.made->get(), PERSEID_BACKWARD, &bytes), PERSEID_OK);
  EXPECT_EQ(bytes, 0u);

  auto desc = SmallAttention::describe(8);
  desc.gradients = 0;
  Plan plan;
  ASSERT_EQ(perseid_attention_plan_create(matmul.context.get(), &desc, plan.out()), PERSEID_OK);
  bytes = 1;
  EXPECT_EQ(perseid_plan_workspace_size(plan.get(), PERSEID_BACKWARD, &bytes), PERSEID_OK);
  EXPECT_EQ(bytes, 0u);
  const auto args = sized<perseid_attention_backward_args>();
  EXPECT_FAILS(perseid_attention_backward(plan.get(), &args, nullptr, 0, nullptr),
               PERSEID_INVALID_ARGUMENT, "attention backward: the plan has no backward");
}

TEST(Timer, NeedsBothPoints) {
  Context context(1);
  perseid_timer_t timer = nullptr;
  ASSERT_EQ(perseid_timer_create(context.get(), &timer), PERSEID_OK);
  double seconds = -1;
  EXPECT_FAILS(perseid_timer_seconds(timer, &seconds), PERSEID_INVALID_ARGUMENT,
               "timer: its start was not set");
  EXPECT_EQ(perseid_timer_start(timer, nullptr), PERSEID_OK);
  EXPECT_FAILS(perseid_timer_seconds(timer, &seconds), PERSEID_INVALID_ARGUMENT,
               "timer: it was not stopped since it was started");
  EXPECT_EQ(perseid_timer_stop(timer, nullptr), PERSEID_OK);
  EXPECT_EQ(perseid_timer_seconds(timer, &seconds), PERSEID_OK);
  EXPECT_GE(seconds, 0);
  EXPECT_EQ(perseid_timer_start(timer, nullptr), PERSEID_OK);
  EXPECT_FAILS(perseid_timer_seconds(timer, &seconds), PERSEID_INVALID_ARGUMENT, "not stopped");
  perseid_timer_destroy(timer);
}

// More elements than a container may have: with fewer, a sanitizer ends the program.
TEST(Counts, BeyondAllMemoryAreOutOfMemory) {
  const perseid_named_tensor tensor{};
  for (const size_t count : {SIZE_MAX, SIZE_MAX / 2})
    EXPECT_FAILS(perseid_file_write("enormous.safetensors", &tensor, count, nullptr, 0),
                 PERSEID_OUT_OF_MEMORY, "do not fit into memory");
  EXPECT_FAILS(perseid_file_write("enormous.safetensors", &tensor, SIZE_MAX / 1024, nullptr, 0),
               PERSEID_OUT_OF_MEMORY, "memory is exhausted");
}

// ---- Nothing to write

// Shapes of which one dimension is 0 and another larger than any memory: every call returns at
// once, for the loops behind them are bounded by what the tensors hold.
TEST(Nothing, OfSoftmax) {
  Context context(2);
  for (const int32_t dim : {0, 1})
    for (const char* implementation : {"cpu:simd", "cpu:reference"}) {
      auto desc = SmallSoftmax::describe();
      desc.shape[0] = kEnormous;
      desc.shape[1] = 0;
      desc.dim = dim;
      desc.implementation = implementation;
      Plan plan;
      ASSERT_EQ(perseid_softmax_plan_create(context.get(), &desc, plan.out()), PERSEID_OK)
          << perseid_last_error();
      const Tensor empty(static_cast<float*>(nullptr), {kEnormous, 0});
      auto forward = sized<perseid_softmax_forward_args>();
      forward.input = forward.output = empty.dl();
      auto workspace = workspace_of(plan, PERSEID_FORWARD);
      EXPECT_EQ(perseid_softmax_forward(plan.get(), &forward, workspace.data(), workspace.size(),
                                        nullptr),
                PERSEID_OK)
          << perseid_last_error();
      auto backward = sized<perseid_softmax_backward_args>();
      backward.grad_output = backward.output = backward.grad_input = empty.dl();
      workspace = workspace_of(plan, PERSEID_BACKWARD);
      EXPECT_EQ(perseid_softmax_backward(plan.get(), &backward, workspace.data(), workspace.size(),
                                         nullptr),
                PERSEID_OK)
          << perseid_last_error();
    }
}

// Attention of batch 2^42 whose sequences are empty. What it has to write is the gradient of a bias
// that is broadcast over the batch, and it is 0.
struct EmptyAttention {
  perseid_attention_desc desc = sized<perseid_attention_desc>();
  Context context{2};
  float number = 3;
  float grad_bias[4] = {7, 7, 7, 7};
  Tensor query, key, lse, lengths;

  EmptyAttention(int64_t q_len, int64_t kv_len) {
    desc.dtype = PERSEID_F32;
    desc.batch = kEnormous;
    desc.heads = desc.head_dim = 1;
    desc.q_len = q_len;
    desc.kv_len = kv_len;
    desc.bias = 1;
    for (int64_t& size : desc.bias_shape) size = 1;
    desc.gradients = 15;
    query = view({kEnormous, q_len, 1, 1});
    key = view({kEnormous, kv_len, 1, 1});
    lse = view({kEnormous, 1, q_len});
  }
  // Any shape of one element, repeated.
  Tensor view(const perseid::Dims& shape) const {
    const std::vector<int64_t> zeros(shape.size(), 0);
    return Tensor(&number, perseid::f32, shape, perseid::Dims(std::span(zeros)));
  }
  template <class Args>
  void set_inputs(Args& args) const {
    args.query = query.dl();
    args.key = args.value = key.dl();
    args.bias = bias.dl();
    args.lse = lse.dl();
    args.out = query.dl();
    if (desc.ragged != 0) args.cu_seqlens_q = args.cu_seqlens_kv = lengths.dl();
    if (desc.kv_lens != 0) args.kv_lens = kv_lens.dl();
  }
  void check(const char* implementation) {
    SCOPED_TRACE(implementation);
    desc.implementation = implementation;
    Plan plan;
    ASSERT_EQ(perseid_attention_plan_create(context.get(), &desc, plan.out()), PERSEID_OK)
        << perseid_last_error();
    if (forward_writes_nothing) {
      auto forward = sized<perseid_attention_forward_args>();
      set_inputs(forward);
      forward.out = out.dl();
      if (desc.q_len > 0) forward.lse = nullptr;
      auto workspace = workspace_of(plan, PERSEID_FORWARD);
      EXPECT_EQ(perseid_attention_forward(plan.get(), &forward, workspace.data(), workspace.size(),
                                          nullptr),
                PERSEID_OK)
          << perseid_last_error();
    }
    auto backward = sized<perseid_attention_backward_args>();
    set_inputs(backward);
    backward.grad_out = query.dl();
    backward.grad_bias = grad_bias_view.dl();
    auto workspace = workspace_of(plan, PERSEID_BACKWARD);
    grad_bias[0] = 7;
    EXPECT_EQ(perseid_attention_backward(plan.get(), &backward, workspace.data(), workspace.size(),
                                         nullptr),
              PERSEID_OK)
        << perseid_last_error();
    EXPECT_EQ(grad_bias[0], 0);
    EXPECT_EQ(grad_bias[1], 7);
  }
  void check() {
    check("cpu:tiled");
    check("cpu:reference");
  }

  bool forward_writes_nothing = true;
  int64_t kv_length = 0;
  Tensor bias{&number, {1, 1, 1, 1}}, grad_bias_view{grad_bias, {1, 1, 1, 1}}, out, kv_lens;
};

TEST(Nothing, OfAttentionWithoutQueries) {
  for (const int64_t kv_len : {0, 1}) {
    EmptyAttention attention(0, kv_len);
    attention.out = attention.query;
    attention.check();
    // One number tells the length of every sequence's keys.
    const Tensor lengths(&attention.kv_length, perseid::i64, {kEnormous}, {0});
    attention.kv_lens = lengths;
    attention.desc.kv_lens = 1;
    attention.check();
  }
}

TEST(Nothing, OfAttentionWithoutKeys) {
  EmptyAttention attention(1, 0);
  attention.forward_writes_nothing = false;  // zeros, which are as many as the batch has queries
  attention.check();
}

TEST(Nothing, OfAttentionOfEmptySequences) {
  EmptyAttention attention(1, 1);
  std::vector<float> out(4, 5.0f);
  const int32_t zero = 0;
  attention.desc.ragged = 1;
  attention.desc.total_q = attention.desc.total_kv = 4;
  attention.query = attention.key = attention.view({4, 1, 1});
  attention.out = Tensor(out.data(), {4, 1, 1});
  attention.lse = attention.view({1, 4});
  attention.lengths = Tensor(&zero, perseid::i32, {kEnormous + 1}, {0});
  attention.check("cpu:reference");  // the workspace of cpu:tiled has numbers of every sequence
  EXPECT_EQ(out, std::vector<float>(4, 5.0f));  // rows past the last sequence
}

// Where queries or keys are missing, all gradients are 0, whatever their strides; packed rows past
// the last sequence stay as they are.
TEST(Nothing, GradientsAreZerosOfAnyLayout) {
  Context context(2);
  auto desc = SmallAttention::describe(0);
  desc.batch = 2;
  desc.heads = desc.kv_heads = 2;
  desc.kv_len = 3;
  desc.head_dim = 4;
  Plan plan;
  ASSERT_EQ(perseid_attention_plan_create(context.get(), &desc, plan.out()), PERSEID_OK);
  std::vector<float> key(48, 1.0f), grad_key(200, 7.0f), grad_value(200, 7.0f);
  const Tensor q(key.data(), {2, 0, 2, 4}), k(key.data(), {2, 3, 2, 4}), l(key.data(), {2, 2, 0});
  // Every second element of rows of 5, and whole rows with a gap.
  const Tensor gk(grad_key.data(), perseid::f32, {2, 3, 2, 4}, {60, 20, 10, 2}),
      gv(grad_value.data(), perseid::f32, {2, 3, 2, 4}, {60, 20, 5, 1});
  auto args = sized<perseid_attention_backward_args>();
  args.query = args.out = args.grad_out = args.grad_query = q.dl();
  args.key = args.value = k.dl();
  args.lse = l.dl();
  args.grad_key = gk.dl();
  args.grad_value = gv.dl();
  auto workspace = workspace_of(plan, PERSEID_BACKWARD);
  ASSERT_EQ(
      perseid_attention_backward(plan.get(), &args, workspace.data(), workspace.size(), nullptr),
      PERSEID_OK)
      << perseid_last_error();
  const auto zeros = [](const std::vector<float>& values) {
    return std::count(values.begin(), values.end(), 0.0f);
  };
  EXPECT_EQ(zeros(grad_key), 48);
  EXPECT_EQ(zeros(grad_value), 48);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t d = 0; d < 4; ++d) {
          EXPECT_EQ(grad_key[static_cast<size_t>(60 * b + 20 * i + 10 * h + 2 * d)], 0);
          EXPECT_EQ(grad_value[static_cast<size_t>(60 * b + 20 * i + 5 * h + d)], 0);
        }
}

// ---- Strides

TEST(Strides, AtTheEndOf64Bits) {
  Context context(1);
  SmallSoftmax softmax(context);
  const auto run = [&](std::array<int64_t, 2> shape, std::array<int64_t, 2> strides,
                       uint64_t byte_offset) {
    const Tensor out(softmax.output.data(), {2, 3});
    DLTensor input =
        perseid_tensor(softmax.input.data(), kDLFloat, 32, 2, shape.data(), strides.data());
    input.byte_offset = byte_offset;
    auto args = sized<perseid_softmax_forward_args>();
    args.input = &input;
    args.output = out.dl();
    return perseid_softmax_forward(softmax.plan(), &args, softmax.workspace.data(),
                                   softmax.workspace.size(), nullptr);
  };
  constexpr int64_t kMost = INT64_MAX, kLeast = INT64_MIN;
  for (const auto& strides :
       {std::array{kMost, kMost}, std::array{kLeast, kLeast}, std::array{kMost, kLeast}})
    for (const auto& shape : {std::array{kMost, kMost}, std::array{kMost, int64_t{2}},
                              std::array{int64_t{2}, int64_t{3}}})
      EXPECT_FAILS(run(shape, strides, 0), PERSEID_INVALID_ARGUMENT,
                   "input reaches outside of the address space");
  EXPECT_FAILS(run({kMost, kMost}, {0, 0}, 0), PERSEID_INVALID_ARGUMENT,
               "input has dimension 0 9223372036854775807");
  EXPECT_FAILS(run({2, 3}, {3, 1}, UINT64_MAX), PERSEID_INVALID_ARGUMENT,
               "input reaches outside of the address space");
  // The stride of a dimension of one element, and of a tensor without elements, means nothing.
  auto desc = SmallSoftmax::describe();
  desc.shape[0] = 1;
  Plan one;
  ASSERT_EQ(perseid_softmax_plan_create(context.get(), &desc, one.out()), PERSEID_OK);
}

// Sizes that wrap around where an allocator rounds them up, too.
TEST(Memory, MoreThanAMachineHasIsRefused) {
  const Context context;
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 63, SIZE_MAX - 64, SIZE_MAX / 2 + 1}) {
    void* data = &data;
    EXPECT_FAILS(perseid_memory_allocate(context.get(), bytes, &data), PERSEID_OUT_OF_MEMORY,
                 "memory: " + std::to_string(bytes) + " bytes were asked for");
    EXPECT_EQ(data, nullptr);
  }
}

// Against all pairs of elements.
TEST(Strides, DistinctElementsAreTaken) {
  const auto distinct = [](const std::vector<int64_t>& shape, const std::vector<int64_t>& stride) {
    perseid::internal::Tensor tensor{.dtype = perseid::internal::DType::kF32,
                                     .rank = static_cast<int32_t>(shape.size())};
    std::copy(shape.begin(), shape.end(), tensor.shape);
    std::copy(stride.begin(), stride.end(), tensor.stride);
    return perseid::internal::op::elements_are_distinct(tensor);
  };
  EXPECT_TRUE(distinct({2, 3}, {3, 2}));
  EXPECT_FALSE(distinct({4, 3}, {2, 3}));
  EXPECT_FALSE(distinct({2, 3}, {0, 1}));
  EXPECT_TRUE(distinct({1, 3}, {0, 1}));
  int64_t counted = 0;
  for (int64_t code = 0; code < 4 * 4 * 4 * 11 * 11 * 11; ++code) {
    int64_t rest = code;
    const auto next = [&rest](int64_t count) {
      const int64_t digit = rest % count;
      rest /= count;
      return digit;
    };
    const std::vector<int64_t> shape = {1 + next(4), 1 + next(4), 1 + next(4)};
    const std::vector<int64_t> stride = {next(11) - 3, next(11) - 3, next(11) - 3};
    bool seen[128] = {}, expected = true;
    for (int64_t i = 0; i < shape[0]; ++i)
      for (int64_t j = 0; j < shape[1]; ++j)
        for (int64_t k = 0; k < shape[2]; ++k) {
          bool& at = seen[32 + i * stride[0] + j * stride[1] + k * stride[2]];
          expected &= !at;
          at = true;
        }
    ASSERT_EQ(distinct(shape, stride), expected)
        << shape[0] << "x" << shape[1] << "x" << shape[2] << " by " << stride[0] << ", "
        << stride[1] << ", " << stride[2];
    counted += expected;
  }
  EXPECT_GT(counted, 1000);
}

}  // namespace
