// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Callers that were compiled with an older or a newer header: each struct of the C ABI is passed
// smaller and larger than this library has it, in memory of exactly its size.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>

#include "api_test_tools.hpp"

namespace {

// A struct in memory of exactly `size` bytes, so that a sanitizer sees one byte read too far.
template <class Struct>
class Sized {
 public:
  Sized(const Struct& value, size_t size, unsigned char tail = 0)
      : memory_(static_cast<unsigned char*>(std::calloc(1, size))) {
    std::memcpy(memory_.get(), &value, std::min(size, sizeof value));
    if (tail != 0) memory_.get()[size - 1] = tail;
    const auto written = static_cast<uint32_t>(size);
    std::memcpy(memory_.get(), &written, sizeof written);
  }
  Struct* get() const { return reinterpret_cast<Struct*>(memory_.get()); }

 private:
  struct Free {
    void operator()(unsigned char* memory) const { std::free(memory); }
  };
  std::unique_ptr<unsigned char, Free> memory_;
};

template <class Struct>
using Call = std::function<perseid_status(Struct*)>;

// `least`: the bytes up to the first field that has a default; `value` leaves those from there on
// 0.
template <class Struct>
void check_sizes(const std::string& name, const Struct& value, size_t least,
                 const Call<Struct>& call) {
  SCOPED_TRACE(name);
  for (size_t size = least; size <= sizeof(Struct) + 64; size += 8)
    EXPECT_EQ(call(Sized(value, size).get()), PERSEID_OK) << size << ": " << perseid_last_error();
  const auto refused = [&](size_t size, const std::string& part) {
    EXPECT_FAILS(call(Sized(value, size).get()), PERSEID_INVALID_ARGUMENT, name + part);
  };
  refused(least - 4, ".struct_size is " + std::to_string(least - 4) +
                         ", expected a multiple of 8 from " + std::to_string(least));
  refused(4, ".struct_size is 4, expected a multiple of 8");
  refused(sizeof(Struct) + 4, ".struct_size is " + std::to_string(sizeof(Struct) + 4) +
                                  ", expected a multiple of 8 from " + std::to_string(least) +
                                  " to 4096; set it to sizeof(" + name + "), which is " +
                                  std::to_string(sizeof(Struct)));
  refused(8192, ".struct_size is 8192, expected a multiple of 8 from " + std::to_string(least) +
                    " to 4096");
  EXPECT_FAILS(call(Sized(value, sizeof(Struct) + 8, 1).get()), PERSEID_INVALID_ARGUMENT,
               "byte " + std::to_string(sizeof(Struct) + 7) + " is not zero");
  if constexpr (requires { value.reserved; }) {
    Struct wrong = value;
    wrong.reserved = 3;
    EXPECT_FAILS(call(Sized(wrong, sizeof(Struct)).get()), PERSEID_INVALID_ARGUMENT,
                 name + ".reserved is 3, expected 0");
  }
}

template <class Struct, class Create>
Call<Struct> creates(const Context& context, Create create) {
  return [&context, create](Struct* desc) {
    Plan plan;
    return create(context.get(), desc, plan.out());
  };
}

TEST(StructSize, OfOptionsAndInfo) {
  check_sizes<perseid_context_options>(
      "perseid_context_options", {}, offsetof(perseid_context_options, device_index),
      [](auto* options) {
        perseid_context_t context = nullptr;
        const auto status = perseid_context_create(options, &context);
        perseid_context_destroy(context);
        return status;
      });
  Context context(1);
  SmallSoftmax softmax(context);
  check_sizes<perseid_plan_info>("perseid_plan_info", {},
                                 offsetof(perseid_plan_info, forward_flops), [&](auto* info) {
                                   const uint32_t size = info->struct_size;
                                   const auto status = perseid_plan_query(softmax.plan(), info);
                                   if (status != PERSEID_OK) return status;
                                   EXPECT_EQ(info->struct_size, size);
                                   EXPECT_STREQ(info->implementation, "cpu:simd");
                                   if (size >= sizeof *info) {
                                     EXPECT_GT(info->backward_bytes, 0);
                                   }
                                   return status;
                                 });
}

TEST(StructSize, OfSoftmax) {
  Context context(1);
  check_sizes("perseid_softmax_desc", SmallSoftmax::describe(),
              offsetof(perseid_softmax_desc, scale),
              creates<perseid_softmax_desc>(context, perseid_softmax_plan_create));
  SmallSoftmax softmax(context);
  const Tensor in(softmax.input.data(), {2, 3}), out(softmax.output.data(), {2, 3});
  perseid_softmax_forward_args forward{};
  forward.input = in.dl();
  forward.output = out.dl();
  check_sizes<perseid_softmax_forward_args>(
      "perseid_softmax_forward_args", forward, offsetof(perseid_softmax_forward_args, visible),
      [&](auto* args) {
        return perseid_softmax_forward(softmax.plan(), args, softmax.workspace.data(),
                                       softmax.workspace.size(), nullptr);
      });
  size_t bytes = 0;
  ASSERT_EQ(perseid_plan_workspace_size(softmax.plan(), PERSEID_BACKWARD, &bytes), PERSEID_OK);
  std::vector<std::byte> workspace(bytes);
  std::vector<float> grad(6);
  const Tensor grad_input(grad.data(), {2, 3});
  perseid_softmax_backward_args backward{};
  backward.grad_output = in.dl();
  backward.output = out.dl();
  backward.grad_input = grad_input.dl();
  check_sizes<perseid_softmax_backward_args>(
      "perseid_softmax_backward_args", backward, sizeof backward, [&](auto* args) {
        return perseid_softmax_backward(softmax.plan(), args, workspace.data(), bytes, nullptr);
      });
}

TEST(StructSize, OfAttention) {
  Context context(1);
  auto desc = SmallAttention::describe(8);
  desc.gradients = 0;
  check_sizes("perseid_attention_desc", desc, offsetof(perseid_attention_desc, value_dim),
              creates<perseid_attention_desc>(context, perseid_attention_plan_create));
  SmallAttention attention(context, 8);
  const Tensor q = attention.queries(attention.query), k = attention.keys(attention.key),
               v = attention.keys(attention.value), o = attention.queries(attention.out),
               l(attention.lse.data(), {2, 4, 8}), go = attention.queries(attention.grad_out);
  perseid_attention_forward_args forward{};
  forward.query = q.dl();
  forward.key = k.dl();
  forward.value = v.dl();
  forward.out = o.dl();
  check_sizes<perseid_attention_forward_args>(
      "perseid_attention_forward_args", forward, offsetof(perseid_attention_forward_args, lse),
      [&](auto* args) {
        return perseid_attention_forward(attention.plan(), args, attention.workspace.data(),
                                         attention.workspace.size(), nullptr);
      });
  perseid_attention_backward_args backward{};
  backward.query = q.dl();
  backward.key = k.dl();
  backward.value = v.dl();
  backward.out = o.dl();
  backward.lse = l.dl();
  backward.grad_out = go.dl();
  check_sizes<perseid_attention_backward_args>(
      "perseid_attention_backward_args", backward,
      offsetof(perseid_attention_backward_args, grad_lse), [&](auto* args) {
        return perseid_attention_backward(attention.plan(), args, attention.workspace.data(),
                                          attention.workspace.size(), nullptr);
      });
}

TEST(StructSize, OfMatmul) {
  Context context(1);
  perseid_matmul_desc desc{};
  desc.dtype = PERSEID_F32;
  desc.m = desc.n = desc.k = 1;
  check_sizes("perseid_matmul_desc", desc, offsetof(perseid_matmul_desc, alpha),
              creates<perseid_matmul_desc>(context, perseid_matmul_plan_create));
  desc.struct_size = sizeof desc;
  Plan plan;
  ASSERT_EQ(perseid_matmul_plan_create(context.get(), &desc, plan.out()), PERSEID_OK);
  size_t bytes = 0;
  ASSERT_EQ(perseid_plan_workspace_size(plan.get(), PERSEID_FORWARD, &bytes), PERSEID_OK);
  std::vector<std::byte> workspace(bytes);
  float a = 3, b = 5, c = 0;
  const Tensor a_view(&a, {1, 1}), b_view(&b, {1, 1}), c_view(&c, {1, 1});
  perseid_matmul_args args{};
  args.a = a_view.dl();
  args.b = b_view.dl();
  args.c = c_view.dl();
  check_sizes<perseid_matmul_args>(
      "perseid_matmul_args", args, offsetof(perseid_matmul_args, arrival_a), [&](auto* given) {
        return perseid_matmul_execute(plan.get(), given, workspace.data(), bytes, nullptr);
      });
  EXPECT_EQ(c, 15);
}

// Structs that a struct points to.
TEST(StructSize, OfChunks) {
  Context context(1);
  const int64_t begin[] = {0, 1};
  auto desc = sized<perseid_matmul_desc>();
  desc.dtype = PERSEID_F32;
  desc.m = desc.n = desc.k = 1;
  perseid_async_operand chunks{};
  chunks.count = 1;
  chunks.begin = begin;
  for (const auto field :
       {&perseid_matmul_desc::async_a, &perseid_matmul_desc::async_b, &perseid_matmul_desc::sink_c})
    check_sizes<perseid_async_operand>(
        "perseid_async_operand", chunks, sizeof chunks, [&](auto* given) {
          perseid_matmul_desc with = desc;
          with.*field = given;
          Plan plan;
          return perseid_matmul_plan_create(context.get(), &with, plan.out());
        });

  chunks.struct_size = sizeof chunks;
  desc.async_a = desc.async_b = desc.sink_c = &chunks;
  Plan plan;
  ASSERT_EQ(perseid_matmul_plan_create(context.get(), &desc, plan.out()), PERSEID_OK);
  std::vector<std::byte> workspace(1 << 16);
  float a = 3, b = 5, c = 0;
  uint32_t here = 0, written = 0;
  const Tensor a_view(&a, {1, 1}), b_view(&b, {1, 1}), c_view(&c, {1, 1});
  auto args = sized<perseid_matmul_args>();
  args.a = a_view.dl();
  args.b = b_view.dl();
  args.c = c_view.dl();
  auto arrival = sized<perseid_arrival>();
  arrival.signals = &here;
  auto departure = sized<perseid_chunk_sink>();
  departure.signals = &written;
  args.arrival_a = args.arrival_b = &arrival;
  args.departure_c = &departure;
  const auto execute = [&](const auto field) {
    return [&args, &plan, &workspace, field](auto* given) {
      perseid_matmul_args with = args;
      with.*field = given;
      return perseid_matmul_execute(plan.get(), &with, workspace.data(), workspace.size(), nullptr);
    };
  };
  for (const auto field : {&perseid_matmul_args::arrival_a, &perseid_matmul_args::arrival_b})
    check_sizes<perseid_arrival>("perseid_arrival", arrival, offsetof(perseid_arrival, epoch_ptr),
                                 execute(field));
  check_sizes<perseid_chunk_sink>("perseid_chunk_sink", departure,
                                  offsetof(perseid_chunk_sink, epoch_ptr),
                                  execute(&perseid_matmul_args::departure_c));
  EXPECT_EQ(c, 15);
}

TEST(StructSize, OfChunksOfKeys) {
  Context context(1);
  const int64_t begin[] = {0, 3};
  auto desc = sized<perseid_attention_desc>();
  desc.dtype = PERSEID_F32;
  desc.heads = desc.q_len = desc.head_dim = 1;
  desc.kv_len = 3;
  perseid_async_operand chunks{};
  chunks.count = 1;
  chunks.begin = begin;
  check_sizes<perseid_async_operand>(
      "perseid_async_operand", chunks, sizeof chunks, [&](auto* given) {
        perseid_attention_desc with = desc;
        with.async_kv = given;
        Plan plan;
        return perseid_attention_plan_create(context.get(), &with, plan.out());
      });
  chunks.struct_size = sizeof chunks;
  desc.async_kv = &chunks;
  Plan plan;
  ASSERT_EQ(perseid_attention_plan_create(context.get(), &desc, plan.out()), PERSEID_OK);
  std::vector<std::byte> workspace(1 << 16);
  float query = 1, keys[3] = {4, 4, 4}, out = 0;
  uint32_t here = 0;
  const Tensor query_view(&query, {1, 1, 1, 1}), keys_view(keys, {1, 3, 1, 1}),
      out_view(&out, {1, 1, 1, 1});
  auto args = sized<perseid_attention_forward_args>();
  args.query = query_view.dl();
  args.key = args.value = keys_view.dl();
  args.out = out_view.dl();
  auto arrival = sized<perseid_arrival>();
  arrival.signals = &here;
  check_sizes<perseid_arrival>(
      "perseid_arrival", arrival, offsetof(perseid_arrival, epoch_ptr), [&](auto* given) {
        perseid_attention_forward_args with = args;
        with.arrival_kv = given;
        return perseid_attention_forward(plan.get(), &with, workspace.data(), workspace.size(),
                                         nullptr);
      });
  EXPECT_EQ(out, 4);
}

// What lies behind a smaller struct is not the struct's.
TEST(StructSize, FieldsBehindTheSizeAreNotRead) {
  Context context(1);
  auto desc = SmallSoftmax::describe();
  desc.struct_size = offsetof(perseid_softmax_desc, scale);
  desc.scale = std::nan("");
  desc.visible = 7;
  Plan plan;
  EXPECT_EQ(perseid_softmax_plan_create(context.get(), &desc, plan.out()), PERSEID_OK)
      << perseid_last_error();
  const char* text = nullptr;
  ASSERT_EQ(perseid_plan_explain(plan.get(), &text), PERSEID_OK);
  EXPECT_NE(std::strstr(text, "scale 1"), nullptr) << text;

  SmallSoftmax softmax(context);
  perseid_plan_info info{};
  info.struct_size = offsetof(perseid_plan_info, forward_flops);
  info.forward_flops = -1;
  ASSERT_EQ(perseid_plan_query(softmax.plan(), &info), PERSEID_OK);
  EXPECT_STREQ(info.implementation, "cpu:simd");
  EXPECT_EQ(info.forward_flops, -1);
}

}  // namespace
