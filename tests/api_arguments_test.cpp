// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the C ABI says to descriptors and tensors that are wrong: a status and a sentence with the
// values. And what it takes, though it looks odd.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "api_test_tools.hpp"
#include "math/philox.hpp"

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// ---- Descriptors

template <class Descriptor, class Create>
void expect_refused(const Descriptor& desc, const Create& create, const std::string& part) {
  Context context(1);
  perseid_plan_t plan = nullptr;
  EXPECT_FAILS(create(context.get(), &desc, &plan), PERSEID_INVALID_ARGUMENT, part);
  EXPECT_EQ(plan, nullptr);
}

TEST(Descriptor, OfSoftmax) {
  const auto refused = [](const std::function<void(perseid_softmax_desc&)>& change,
                          const std::string& part) {
    auto desc = SmallSoftmax::describe();
    change(desc);
    expect_refused(desc, perseid_softmax_plan_create, part);
  };
  refused([](auto& d) { d.struct_size = 0; }, "perseid_softmax_desc.struct_size is 0, expected ");
  refused([](auto& d) { d.kind = 2; }, "kind is 2, expected PERSEID_SOFTMAX (0) or ");
  refused([](auto& d) { d.dtype = 0; }, "dtype is 0, expected PERSEID_F16 (1)");
  refused([](auto& d) { d.out_dtype = 5; }, "out_dtype is f8e4m3, which matmul alone takes");
  refused([](auto& d) { d.ndim = 0; }, "ndim is 0, expected 1 to 8");
  refused([](auto& d) { d.ndim = 9; }, "ndim is 9");
  refused([](auto& d) { d.dim = 2; }, "dim is 2, expected -2 to 1");
  refused([](auto& d) { d.dim = -3; }, "dim is -3");
  refused([](auto& d) { d.shape[1] = -1; }, "dimension 1 is -1, expected at least 0");
  refused([](auto& d) { d.shape[0] = INT64_MAX; }, "split the problem");
  refused([](auto& d) { d.shape[0] = d.shape[1] = int64_t{1} << 40; }, "the input has more than");
  refused([](auto& d) { d.scale = kNaN; }, "scale is nan, expected a number that is finite");
  refused([](auto& d) { d.scale = 1e39; }, "scale is 1e+39");
  refused([](auto& d) { d.visible = 2; }, "visible is 2, expected 0 (no) or 1 (yes)");
  refused([](auto& d) { d.empty_rows = 2; }, "empty_rows is 2");
}

TEST(Descriptor, OfAttention) {
  const auto refused = [](const std::function<void(perseid_attention_desc&)>& change,
                          const std::string& part) {
    auto desc = SmallAttention::describe(8);
    change(desc);
    expect_refused(desc, perseid_attention_plan_create, part);
  };
  refused([](auto& d) { d.dtype = 9; }, "dtype is 9");
  refused([](auto& d) { d.layout = 2; }, "layout is 2, expected PERSEID_BSHD (0)");
  refused([](auto& d) { d.causal = 3; }, "causal is 3");
  refused([](auto& d) { d.batch = -1; }, "batch is -1");
  refused([](auto& d) { d.heads = 0; }, "heads is 0, expected at least 1");
  refused([](auto& d) { d.kv_heads = 3; },
          "heads is 4, expected a multiple of kv_heads, which is 3");
  refused([](auto& d) { d.kv_heads = -2; }, "kv_heads is -2");
  refused([](auto& d) { d.kv_len = INT64_MIN; }, "kv_len is -9223372036854775808");
  refused([](auto& d) { d.head_dim = 0; }, "head_dim is 0");
  refused([](auto& d) { d.value_dim = -4; }, "value_dim is -4");
  refused([](auto& d) { d.q_len = int64_t{1} << 41; }, "query or out has more than");
  refused([](auto& d) { d.batch = d.heads = d.q_len = d.kv_heads = int64_t{1} << 42; },
          "query or out has more than");
  refused([](auto& d) { d.scale = kNaN; }, "scale is nan");
  refused([](auto& d) { d.dropout = 1; }, "dropout is 1, expected a probability from 0 to below 1");
  refused([](auto& d) { d.dropout = -0.1; }, "dropout is -0.1");
  refused([](auto& d) { d.dropout = kNaN; }, "dropout is nan");
  refused(
      [](auto& d) {
        d.dropout = 0.5;
        d.kv_len = int64_t{1} << 33;
      },
      "dropout is for at most");
  refused(
      [](auto& d) {
        d.window = 1;
        d.window_left = -2;
      },
      "window_left is -2");
  refused(
      [](auto& d) {
        d.bias = 1;
        d.bias_shape[0] = 2;
        d.bias_shape[1] = 3;
      },
      "bias_shape[1] is 3, expected 1 or 4, the problem's heads");
  refused(
      [](auto& d) {
        d.bias = 1;
        d.bias_dtype = PERSEID_F64;
      },
      "bias_dtype is f64, expected f32");
  refused([](auto& d) { d.gradients = 16; }, "gradients is 16");
  refused([](auto& d) { d.gradients = PERSEID_GRAD_BIAS; }, "but bias is 0");
  refused(
      [](auto& d) {
        d.ragged = 1;
        d.total_q = -1;
      },
      "total_q is -1");
  // Forgotten: the packed tensors have rows where a sequence may have a length.
  refused(
      [](auto& d) {
        d.ragged = 1;
        d.total_kv = 8;
      },
      "total_q is 0, but ragged is 1 and q_len is 8; set it to the rows of the packed query");
  refused(
      [](auto& d) {
        d.ragged = 1;
        d.total_q = 8;
      },
      "total_kv is 0, but ragged is 1 and kv_len is 8; set it to the rows of the packed key");
  refused([](auto& d) { d.deterministic = 7; }, "deterministic is 7");
}

// Where every sequence is empty, or there is none, no row is needed.
TEST(Descriptor, OfARaggedBatchWithoutRows) {
  Context context(1);
  auto desc = SmallAttention::describe(8);
  desc.ragged = 1;
  desc.q_len = desc.kv_len = 0;
  desc.bias = desc.gradients = 0;
  Plan plan;
  EXPECT_EQ(perseid_attention_plan_create(context.get(), &desc, plan.out()), PERSEID_OK)
      << perseid_last_error();
  desc.q_len = desc.kv_len = 4;
  desc.zero_batch = 1;
  desc.batch = 0;
  Plan of_none;
  EXPECT_EQ(perseid_attention_plan_create(context.get(), &desc, of_none.out()), PERSEID_OK)
      << perseid_last_error();
}

TEST(Descriptor, OfMatmul) {
  const auto refused = [](const std::function<void(perseid_matmul_desc&)>& change,
                          const std::string& part) {
    auto desc = sized<perseid_matmul_desc>();
    desc.dtype = PERSEID_F32;
    desc.batch = 1;
    desc.m = desc.n = desc.k = 2;
    desc.alpha = 1;
    change(desc);
    expect_refused(desc, perseid_matmul_plan_create, part);
  };
  refused([](auto& d) { d.struct_size = 4; }, "perseid_matmul_desc.struct_size is 4");
  refused([](auto& d) { d.out_dtype = PERSEID_F64; }, "out_dtype is f64, expected f32");
  refused([](auto& d) { d.out_dtype = PERSEID_BF16; }, "out_dtype is bf16, expected f32");
  refused([](auto& d) { d.k = -5; }, "k is -5");
  refused([](auto& d) { d.m = d.n = int64_t{1} << 30; }, "c has more than");
  refused([](auto& d) { d.alpha = std::numeric_limits<double>::infinity(); }, "alpha is inf");
  refused([](auto& d) { d.beta = -1e300; }, "beta is -1e+300");
}

TEST(Descriptor, PlansAreOfOneOperation) {
  Context context;
  SmallSoftmax softmax(context);
  auto args = sized<perseid_matmul_args>();
  EXPECT_FAILS(perseid_matmul_execute(softmax.plan(), &args, nullptr, 0, nullptr),
               PERSEID_INVALID_ARGUMENT,
               "perseid_matmul_execute: the plan is one of softmax, expected one of matmul");
  const auto desc = SmallSoftmax::describe();
  EXPECT_FAILS(perseid_softmax_plan_create(context.get(), &desc, nullptr), PERSEID_INVALID_ARGUMENT,
               "perseid_softmax_plan_create: plan is NULL");
  perseid_plan_t plan = nullptr;
  EXPECT_FAILS(perseid_softmax_plan_create(nullptr, &desc, &plan), PERSEID_INVALID_ARGUMENT,
               "context is NULL");
  EXPECT_FAILS(perseid_softmax_plan_create(context.get(), nullptr, &plan), PERSEID_INVALID_ARGUMENT,
               "desc is NULL");
}

// ---- Tensors

// Softmax forward with an input that is wrong in one way.
TEST(Argument, EveryFlawHasItsSentence) {
  Context context(1);
  SmallSoftmax softmax(context);
  const auto refused = [&](const std::function<void(DLTensor&)>& change, const std::string& part) {
    const Tensor good(softmax.input.data(), {2, 3}), out(softmax.output.data(), {2, 3});
    DLTensor input = *good.dl();
    change(input);
    auto args = sized<perseid_softmax_forward_args>();
    args.input = &input;
    args.output = out.dl();
    EXPECT_FAILS(perseid_softmax_forward(softmax.plan(), &args, nullptr, 0, nullptr),
                 PERSEID_INVALID_ARGUMENT, "softmax forward: input " + part);
  };
  int64_t sizes[PERSEID_MAX_DIMS + 1] = {2, 4, 1, 1, 1, 1, 1, 1, 1};
  int64_t negative[] = {2, -3}, strides[] = {INT64_MAX, INT64_MAX};
  refused([](DLTensor& t) { t.data = nullptr; }, "has NULL data");
  refused([](DLTensor& t) { t.device.device_type = kDLCUDA; }, "is on DLPack device type 2");
  refused([](DLTensor& t) { t.dtype.bits = 64; }, "has dtype f64, expected f32");
  refused([](DLTensor& t) { t.dtype.lanes = 4; },
          "has dtype of DLPack code 2, 32 bits and 4 lanes");
  refused([](DLTensor& t) { t.dtype = {kDLInt, 32, 1}; }, "has dtype int32, expected f32");
  refused([](DLTensor& t) { t.ndim = 1; }, "has shape [2], expected 2 dimensions: [dimension 0 2");
  refused([](DLTensor& t) { t.ndim = -1; }, "has -1 dimensions");
  refused([](DLTensor& t) { t.ndim = 1 << 30; }, "has 1073741824 dimensions, expected 0 to 8");
  refused([](DLTensor& t) { t.shape = nullptr; }, "has a NULL shape");
  refused([&](DLTensor& t) { t.shape = sizes; },
          "has dimension 1 4, expected 3; its shape is [2, 4], the plan's [dimension 0 2, "
          "dimension 1 3]");
  refused([&](DLTensor& t) { t.shape = negative; }, "has size -3 in dimension 1");
  refused([&](DLTensor& t) { t.strides = strides; }, "reaches outside of the address space");
  refused([](DLTensor& t) { t.byte_offset = UINT64_MAX; }, "reaches outside of the address space");
  refused([](DLTensor& t) { t.byte_offset = 2; }, "begins at an address that is 2 bytes past");
}

TEST(Argument, NullTensorsAndWrongSizes) {
  Context context(1);
  SmallSoftmax softmax(context);
  const Tensor in(softmax.input.data(), {2, 3}), out(softmax.output.data(), {2, 3});
  auto args = sized<perseid_softmax_forward_args>();
  EXPECT_FAILS(perseid_softmax_forward(softmax.plan(), &args, nullptr, 0, nullptr),
               PERSEID_INVALID_ARGUMENT, "input is NULL, expected a tensor [dimension 0 2");
  args.input = in.dl();
  args.output = out.dl();
  args.visible = in.dl();
  EXPECT_FAILS(perseid_softmax_forward(softmax.plan(), &args, nullptr, 0, nullptr),
               PERSEID_INVALID_ARGUMENT, "visible is given, but the plan's descriptor says");
  args.visible = nullptr;
  args.struct_size = 0;
  EXPECT_FAILS(perseid_softmax_forward(softmax.plan(), &args, nullptr, 0, nullptr),
               PERSEID_INVALID_ARGUMENT, "perseid_softmax_forward_args.struct_size is 0");
  EXPECT_FAILS(perseid_softmax_forward(softmax.plan(), nullptr, nullptr, 0, nullptr),
               PERSEID_INVALID_ARGUMENT, "args is NULL");
}

TEST(Argument, StridesAreFree) {
  Context context(1);
  auto desc = SmallSoftmax::describe();
  desc.visible = 1;
  Plan plan;
  ASSERT_EQ(perseid_softmax_plan_create(context.get(), &desc, plan.out()), PERSEID_OK);
  size_t bytes = 0;
  ASSERT_EQ(perseid_plan_workspace_size(plan.get(), PERSEID_FORWARD, &bytes), PERSEID_OK);
  std::vector<std::byte> workspace(bytes);
  const std::vector<float> values = waves(64, 0.4f);
  // A column-major view that runs backwards along its second dimension.
  const Tensor in(values.data() + 20, perseid::f32, {2, 3}, {1, -7});
  std::vector<float> results(64);
  const Tensor out(results.data(), perseid::f32, {2, 3}, {5, 11});
  const bool mask[] = {true, false, true};
  const Tensor row(mask, {3}), full(mask, perseid::boolean, {2, 3}, {0, 1});
  for (const Tensor& visible : {row, full}) {
    auto args = sized<perseid_softmax_forward_args>();
    args.input = in.dl();
    args.output = out.dl();
    args.visible = visible.dl();
    ASSERT_EQ(perseid_softmax_forward(plan.get(), &args, workspace.data(), bytes, nullptr),
              PERSEID_OK)
        << perseid_last_error();
    for (size_t i = 0; i < 2; ++i) {
      const double first = std::exp(static_cast<double>(values[20 + i]));
      const double last = std::exp(static_cast<double>(values[20 + i - 14]));
      EXPECT_NEAR(results[5 * i], first / (first + last), 1e-6);
      EXPECT_EQ(results[5 * i + 11], 0);
      EXPECT_NEAR(results[5 * i + 22], last / (first + last), 1e-6);
    }
  }
  const Tensor wrong(mask, {2});
  auto args = sized<perseid_softmax_forward_args>();
  args.input = in.dl();
  args.output = out.dl();
  args.visible = wrong.dl();
  EXPECT_FAILS(perseid_softmax_forward(plan.get(), &args, workspace.data(), bytes, nullptr),
               PERSEID_INVALID_ARGUMENT,
               "visible has shape [2], expected one that broadcasts against [dimension 0 2, "
               "dimension 1 3]");
}

// ---- Sharing memory

TEST(Sharing, InPlaceExactlyOrNotAtAll) {
  Context context(1);
  SmallSoftmax softmax(context);
  std::vector<float> memory = waves(64, 0.3f);
  const auto run = [&](const Tensor& in, const Tensor& out) {
    auto args = sized<perseid_softmax_forward_args>();
    args.input = in.dl();
    args.output = out.dl();
    return perseid_softmax_forward(softmax.plan(), &args, softmax.workspace.data(),
                                   softmax.workspace.size(), nullptr);
  };
  const auto view = [&](size_t offset, int64_t row, int64_t column) {
    return Tensor(memory.data() + offset, perseid::f32, {2, 3}, {row, column});
  };
  EXPECT_EQ(run(view(0, 3, 1), view(0, 3, 1)), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(run(view(0, 3, 1), view(6, 3, 1)), PERSEID_OK) << perseid_last_error();
  // Interleaved, like slices of one packed buffer: nothing is shared.
  EXPECT_EQ(run(view(0, 6, 1), view(3, 6, 1)), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(run(view(0, 10, 2), view(1, 10, 2)), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(run(view(0, 1, 4), view(2, 1, 4)), PERSEID_OK) << perseid_last_error();
  // An input may repeat its elements, an output may not.
  EXPECT_EQ(run(view(0, 0, 1), view(6, 3, 1)), PERSEID_OK) << perseid_last_error();
  for (const Tensor& out : {view(8, 0, 1), view(8, 1, 1), view(8, 3, 0)})
    EXPECT_FAILS(run(view(0, 3, 1), out), PERSEID_INVALID_ARGUMENT, "let elements share memory");

  const char* shares = "output is written, but shares memory with input; that is allowed only";
  EXPECT_FAILS(run(view(0, 3, 1), view(1, 3, 1)), PERSEID_INVALID_ARGUMENT, shares);
  EXPECT_FAILS(run(view(0, 3, 1), view(0, 1, 2)), PERSEID_INVALID_ARGUMENT, shares);
  EXPECT_FAILS(run(view(0, 6, 1), view(2, 6, 1)), PERSEID_INVALID_ARGUMENT, shares);
  EXPECT_FAILS(run(view(0, 10, 2), view(4, 11, 3)), PERSEID_INVALID_ARGUMENT, shares);
  EXPECT_FAILS(run(view(0, 0, 1), view(2, 3, 1)), PERSEID_INVALID_ARGUMENT, shares);
}

TEST(Sharing, MatmulAddsToC) {
  Context context(1);
  auto desc = sized<perseid_matmul_desc>();
  desc.dtype = PERSEID_F32;
  desc.batch = desc.m = desc.n = desc.k = 1;
  desc.alpha = desc.beta = 1;
  Plan plan;
  ASSERT_EQ(perseid_matmul_plan_create(context.get(), &desc, plan.out()), PERSEID_OK);
  size_t bytes = 0;
  ASSERT_EQ(perseid_plan_workspace_size(plan.get(), PERSEID_FORWARD, &bytes), PERSEID_OK);
  std::vector<std::byte> workspace(bytes);
  float a = 3, b = 5, c = 7;
  const Tensor a_view(&a, {1, 1}), b_view(&b, {1, 1}), c_view(&c, {1, 1});
  auto args = sized<perseid_matmul_args>();
  args.a = a_view.dl();
  args.b = b_view.dl();
  args.c = c_view.dl();
  const auto run = [&] {
    return perseid_matmul_execute(plan.get(), &args, workspace.data(), bytes, nullptr);
  };
  EXPECT_EQ(run(), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(c, 22);
  args.c0 = c_view.dl();
  EXPECT_EQ(run(), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(c, 37);
  args.c0 = a_view.dl();
  EXPECT_EQ(run(), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(c, 18);
  args.b = c_view.dl();
  EXPECT_FAILS(run(), PERSEID_INVALID_ARGUMENT, "c is written, but shares memory with b; pass");
}

// ---- Attention

TEST(AttentionArgument, ShapesFollowTheLayout) {
  Context context(1);
  SmallAttention attention(context, 8);
  const auto refused = [&](const std::function<void(perseid_attention_backward_args&)>& change,
                           const std::string& part) {
    const Tensor q = attention.queries(attention.query), k = attention.keys(attention.key),
                 v = attention.keys(attention.value), o = attention.queries(attention.out),
                 l(attention.lse.data(), {2, 4, 8}), go = attention.queries(attention.grad_out),
                 gq = attention.queries(attention.grad_query);
    auto args = sized<perseid_attention_backward_args>();
    args.query = q.dl();
    args.key = k.dl();
    args.value = v.dl();
    args.out = o.dl();
    args.lse = l.dl();
    args.grad_out = go.dl();
    args.grad_query = gq.dl();
    change(args);
    EXPECT_FAILS(perseid_attention_backward(attention.plan(), &args, attention.workspace.data(),
                                            attention.workspace.size(), nullptr),
                 PERSEID_INVALID_ARGUMENT, "attention backward: " + part);
  };
  const Tensor bhsd(attention.key.data(), {2, 2, 8, 16}),
      wide(attention.query.data(), {2, 8, 2, 32}), lse(attention.lse.data(), {2, 8, 4});
  refused([&](auto& a) { a.key = bhsd.dl(); },
          "key has kv_len 2, expected 8; its shape is [2, 2, 8, 16], the plan's [batch 2, kv_len "
          "8, kv_heads 2, head_dim 16]");
  refused([&](auto& a) { a.value = wide.dl(); }, "value has value_dim 32, expected 16");
  refused([&](auto& a) { a.lse = lse.dl(); }, "lse has heads 8, expected 4");
  refused([&](auto& a) { a.lse = nullptr; }, "lse is NULL");
  refused([&](auto& a) { a.bias = bhsd.dl(); }, "bias is given");
  refused([&](auto& a) { a.kv_lens = bhsd.dl(); }, "kv_lens is given");
  refused([&](auto& a) { a.cu_seqlens_q = bhsd.dl(); }, "cu_seqlens_q is given");
  refused([&](auto& a) { a.grad_bias = bhsd.dl(); }, "grad_bias is given");
  refused([&](auto& a) { a.grad_query = a.query; },
          "grad_query is written, but shares memory with query; pass separate memory");
  refused([&](auto& a) { a.grad_key = a.key; }, "grad_key is written, but shares memory with key");
}

// Query, key and value as slices of one buffer, and their gradients likewise.
TEST(AttentionArgument, TakesPackedBuffers) {
  Context context(1);
  SmallAttention attention(context, 8);
  std::vector<float> packed = waves(2 * 8 * 8 * 16, 0.11f), grad_packed(packed.size());
  const auto slice = [](std::vector<float>& memory, int64_t first, int64_t heads) {
    return Tensor(memory.data() + first * 16, perseid::f32, {2, 8, heads, 16},
                  {8 * 8 * 16, 8 * 16, 16, 1});
  };
  const Tensor q = slice(packed, 0, 4), k = slice(packed, 4, 2), v = slice(packed, 6, 2),
               o = attention.queries(attention.out), l(attention.lse.data(), {2, 4, 8}),
               go = attention.queries(attention.grad_out), gq = slice(grad_packed, 0, 4),
               gk = slice(grad_packed, 4, 2), gv = slice(grad_packed, 6, 2);
  auto forward = sized<perseid_attention_forward_args>();
  forward.query = q.dl();
  forward.key = k.dl();
  forward.value = v.dl();
  forward.out = o.dl();
  forward.lse = l.dl();
  auto& workspace = attention.workspace;
  ASSERT_EQ(perseid_attention_forward(attention.plan(), &forward, workspace.data(),
                                      workspace.size(), nullptr),
            PERSEID_OK)
      << perseid_last_error();
  auto backward = sized<perseid_attention_backward_args>();
  backward.query = q.dl();
  backward.key = k.dl();
  backward.value = v.dl();
  backward.out = o.dl();
  backward.lse = l.dl();
  backward.grad_out = go.dl();
  backward.grad_query = gq.dl();
  backward.grad_key = gk.dl();
  backward.grad_value = gv.dl();
  EXPECT_EQ(perseid_attention_backward(attention.plan(), &backward, workspace.data(),
                                       workspace.size(), nullptr),
            PERSEID_OK)
      << perseid_last_error();
}

TEST(AttentionArgument, ChecksLengths) {
  Context context(1);
  auto desc = SmallAttention::describe(8);
  desc.batch = 2;
  desc.q_len = desc.kv_len = 5;
  desc.ragged = desc.kv_lens = 1;
  desc.total_q = desc.total_kv = 8;
  desc.gradients = 0;
  desc.dropout = 0.5;
  Plan plan;
  ASSERT_EQ(perseid_attention_plan_create(context.get(), &desc, plan.out()), PERSEID_OK);
  size_t bytes = 0;
  ASSERT_EQ(perseid_plan_workspace_size(plan.get(), PERSEID_FORWARD, &bytes), PERSEID_OK);
  std::vector<std::byte> workspace(bytes);
  std::vector<float> query = waves(8 * 4 * 16, 0.2f), key = waves(8 * 2 * 16, 0.3f),
                     out(8 * 4 * 16);
  int32_t cu_q[3] = {0, 3, 8};
  int64_t cu_kv[3] = {0, 5, 7};
  int32_t lens[2] = {5, 1};
  const Tensor q(query.data(), {8, 4, 16}), k(key.data(), {8, 2, 16}), o(out.data(), {8, 4, 16}),
      cq(cu_q, {3}), ck(cu_kv, {3}), n(lens, {2});
  auto args = sized<perseid_attention_forward_args>();
  args.query = q.dl();
  args.key = args.value = k.dl();
  args.out = o.dl();
  args.cu_seqlens_q = cq.dl();
  args.cu_seqlens_kv = ck.dl();
  args.kv_lens = n.dl();
  const auto run = [&] {
    return perseid_attention_forward(plan.get(), &args, workspace.data(), bytes, nullptr);
  };
  EXPECT_EQ(run(), PERSEID_OK) << perseid_last_error();
  const auto refused = [&](auto& place, auto value, const std::string& part) {
    const auto before = place;
    place = value;
    EXPECT_FAILS(run(), PERSEID_INVALID_ARGUMENT, part);
    place = before;
  };
  refused(cu_q[0], 1, "cu_seqlens_q[0] is 1, expected 0");
  refused(cu_q[1], -1, "cu_seqlens_q[1] is -1, expected at least 0");
  refused(cu_q[2], 2, "cu_seqlens_q[2] is 2, expected at least 3");
  refused(cu_q[1], 2, "cu_seqlens_q gives sequence 1 a length of 6, expected at most 5");
  refused(cu_q[2], 9, "gives sequence 1 a length of 6");
  refused(cu_kv[2], int64_t{9}, "cu_seqlens_kv ends at 9, expected at most 8, the plan's total_kv");
  refused(cu_kv[1], INT64_MAX, "cu_seqlens_kv gives sequence 0 a length of 9223372036854775807");
  refused(lens[1], -1, "kv_lens[1] is -1, expected 0 to 5");
  refused(lens[0], 6, "kv_lens[0] is 6");
  refused(args.offset, uint64_t{1} << 32, "offset is 4294967296, expected less than 2^32");
  const uint64_t rng[2] = {1, uint64_t{1} << 40};
  refused(args.rng, static_cast<const uint64_t*>(rng), "offset is 1099511627776");
}

// ---- Dropout mask

TEST(DropoutMask, ChecksAndFills) {
  Context context(2);
  std::vector<uint8_t> mask(2 * 3 * 20 * 40, 7);
  const Tensor view(mask.data(), {2, 3, 20, 40});
  const auto fill = [&](double dropout, uint64_t offset, const Tensor& tensor) {
    return perseid_fill_dropout_mask(context.get(), dropout, 5, offset, tensor.dl(), nullptr);
  };
  ASSERT_EQ(fill(0, 0, view), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(std::count(mask.begin(), mask.end(), 1), static_cast<int64_t>(mask.size()));
  ASSERT_EQ(fill(0.5, 1, view), PERSEID_OK) << perseid_last_error();
  const auto kept = std::count(mask.begin(), mask.end(), 1);
  EXPECT_NEAR(static_cast<double>(kept), 2400, 200);
  EXPECT_EQ(std::count(mask.begin(), mask.end(), 0) + kept, static_cast<int64_t>(mask.size()));
  // The same mask through other strides.
  std::vector<uint8_t> turned(mask.size(), 9);
  const Tensor transposed(turned.data(), perseid::u8, {2, 3, 20, 40}, {1, 2, 6, 120});
  ASSERT_EQ(fill(0.5, 1, transposed), PERSEID_OK) << perseid_last_error();
  for (size_t i = 0; i < mask.size(); ++i) {
    const size_t b = i / 2400, h = i / 800 % 3, row = i / 40 % 20, column = i % 40;
    ASSERT_EQ(turned[b + 2 * h + 6 * row + 120 * column], mask[i]) << i;
  }

  // One head that is long both ways, which several tasks share.
  std::vector<uint8_t> large(150 * 4200);
  ASSERT_EQ(fill(0.5, 1, Tensor(large.data(), {1, 1, 150, 4200})), PERSEID_OK);
  const perseid::internal::Dropout dropout{.threshold = 128, .seed = 5, .offset = 1};
  for (size_t i = 0; i < large.size(); ++i) {
    const auto row = static_cast<int64_t>(i / 4200), column = static_cast<int64_t>(i % 4200);
    ASSERT_EQ(large[i], perseid::internal::dropout_keeps(dropout, 0, row, column) ? 1 : 0) << i;
  }

  EXPECT_FAILS(fill(1, 0, view), PERSEID_INVALID_ARGUMENT, "dropout is 1");
  EXPECT_FAILS(fill(0.5, uint64_t{1} << 32, view), PERSEID_INVALID_ARGUMENT,
               "offset is 4294967296");
  EXPECT_FAILS(fill(0.5, 0, Tensor(mask.data(), {20, 40})), PERSEID_INVALID_ARGUMENT,
               "mask has shape [20, 40], expected 4 dimensions: [batch, heads, q_len, kv_len]");
  EXPECT_FAILS(fill(0.5, 0, Tensor()), PERSEID_INVALID_ARGUMENT, "mask is NULL");
  EXPECT_EQ(fill(0.5, 0, Tensor(static_cast<uint8_t*>(nullptr), {2, 0, 4, 4})), PERSEID_OK);
}

}  // namespace
