// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Small problems and owners of handles for the tests of the C ABI.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "perseid/perseid.h"
#include "perseid/tensor.hpp"

using perseid::Tensor;

template <class Struct>
Struct sized() {
  Struct value{};
  value.struct_size = sizeof(Struct);
  return value;
}

// The status, and a sentence that contains `part`.
inline void expect_fails(const char* file, int line, perseid_status got, perseid_status expected,
                         const std::string& part) {
  const std::string sentence = perseid_last_error();
  if (got == expected && sentence.find(part) != std::string::npos) return;
  ADD_FAILURE_AT(file, line) << "got \"" << perseid_status_string(got) << "\": " << sentence
                             << "\nexpected \"" << perseid_status_string(expected)
                             << "\" and a sentence with: " << part;
}
#define EXPECT_FAILS(call, status, part) expect_fails(__FILE__, __LINE__, (call), (status), (part))

// Runs a call of the library and counts what this thread allocates meanwhile.
extern thread_local int64_t allocations_of_this_thread;  // of counting_new.cpp
inline thread_local int64_t calls_allocated = 0;
template <class Call>
perseid_status counted(const Call& call) {
  const int64_t before = allocations_of_this_thread;
  const perseid_status status = call();
  calls_allocated += allocations_of_this_thread - before;
  return status;
}

class Context {
 public:
  explicit Context(int32_t threads = 2) {
    auto options = sized<perseid_context_options>();
    options.threads = threads;
    create(options);
  }
  explicit Context(const perseid_context_options& options) { create(options); }
  ~Context() { perseid_context_destroy(handle_); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  perseid_context_t get() const { return handle_; }

 private:
  void create(const perseid_context_options& options) {
    EXPECT_EQ(perseid_context_create(&options, &handle_), PERSEID_OK) << perseid_last_error();
  }
  perseid_context_t handle_ = nullptr;
};

class Plan {
 public:
  Plan() = default;
  ~Plan() { perseid_plan_destroy(handle_); }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  perseid_plan_t get() const { return handle_; }
  perseid_plan_t* out() { return &handle_; }

 private:
  perseid_plan_t handle_ = nullptr;
};

inline std::vector<float> waves(size_t size, float step) {
  std::vector<float> values(size);
  for (size_t i = 0; i < size; ++i) values[i] = std::sin(static_cast<float>(i) * step);
  return values;
}

// Softmax of [2, 3].
struct SmallSoftmax {
  std::vector<float> input = waves(6, 0.7f), output = std::vector<float>(6);
  std::vector<std::byte> workspace;

  static perseid_softmax_desc describe() {
    auto desc = sized<perseid_softmax_desc>();
    desc.dtype = PERSEID_F32;
    desc.ndim = 2;
    desc.dim = 1;
    desc.shape[0] = 2;
    desc.shape[1] = 3;
    return desc;
  }
  explicit SmallSoftmax(const Context& context) {
    const auto desc = describe();
    EXPECT_EQ(perseid_softmax_plan_create(context.get(), &desc, plan_.out()), PERSEID_OK)
        << perseid_last_error();
    size_t bytes = 0;
    EXPECT_EQ(perseid_plan_workspace_size(plan_.get(), PERSEID_FORWARD, &bytes), PERSEID_OK);
    workspace.resize(bytes);
  }
  perseid_status forward() {
    const Tensor in(input.data(), {2, 3}), out(output.data(), {2, 3});
    auto args = sized<perseid_softmax_forward_args>();
    args.input = in.dl();
    args.output = out.dl();
    return counted([&] {
      return perseid_softmax_forward(plan_.get(), &args, workspace.data(), workspace.size(),
                                     nullptr);
    });
  }
  perseid_plan_t plan() const { return plan_.get(); }

 private:
  Plan plan_;
};

// Attention in f32: 2 batch entries, 4 heads, 2 kv_heads, head_dim 16, kv_len = q_len, causal.
struct SmallAttention {
  static constexpr int64_t kBatch = 2, kHeads = 4, kKvHeads = 2, kDim = 16;
  int64_t q_len;
  std::vector<float> query, key, value, out, lse, grad_out, grad_query, grad_key, grad_value;
  std::vector<std::byte> workspace;

  static perseid_attention_desc describe(int64_t q_len) {
    auto desc = sized<perseid_attention_desc>();
    desc.dtype = PERSEID_F32;
    desc.batch = kBatch;
    desc.heads = kHeads;
    desc.kv_heads = kKvHeads;
    desc.q_len = desc.kv_len = q_len;
    desc.head_dim = kDim;
    desc.causal = PERSEID_CAUSAL_TOP_LEFT;
    desc.gradients = PERSEID_GRAD_QUERY | PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE;
    return desc;
  }
  SmallAttention(const Context& context, int64_t length, const char* implementation = nullptr)
      : q_len(length), plan_(std::make_shared<Plan>()) {
    auto desc = describe(q_len);
    desc.implementation = implementation;
    EXPECT_EQ(perseid_attention_plan_create(context.get(), &desc, plan_->out()), PERSEID_OK)
        << perseid_last_error();
    const auto rows = static_cast<size_t>(kBatch * q_len);
    query = waves(rows * kHeads * kDim, 0.13f);
    key = waves(rows * kKvHeads * kDim, 0.17f);
    value = waves(rows * kKvHeads * kDim, 0.19f);
    grad_out = waves(rows * kHeads * kDim, 0.23f);
    out.resize(query.size());
    lse.resize(rows * kHeads);
    grad_query.resize(query.size());
    grad_key.resize(key.size());
    grad_value.resize(value.size());
    size_t forward = 0, backward = 0;
    EXPECT_EQ(perseid_plan_workspace_size(plan(), PERSEID_FORWARD, &forward), PERSEID_OK);
    EXPECT_EQ(perseid_plan_workspace_size(plan(), PERSEID_BACKWARD, &backward), PERSEID_OK);
    workspace.resize(std::max(forward, backward));
  }

  Tensor queries(const std::vector<float>& data) const {
    return Tensor(data.data(), {kBatch, q_len, kHeads, kDim});
  }
  Tensor keys(const std::vector<float>& data) const {
    return Tensor(data.data(), {kBatch, q_len, kKvHeads, kDim});
  }
  perseid_status forward(void* memory, size_t bytes) {
    const Tensor q = queries(query), k = keys(key), v = keys(value), o = queries(out),
                 l(lse.data(), {kBatch, kHeads, q_len});
    auto args = sized<perseid_attention_forward_args>();
    args.query = q.dl();
    args.key = k.dl();
    args.value = v.dl();
    args.out = o.dl();
    args.lse = l.dl();
    return counted(
        [&] { return perseid_attention_forward(plan(), &args, memory, bytes, nullptr); });
  }
  perseid_status forward() { return forward(workspace.data(), workspace.size()); }
  perseid_status backward() {
    const Tensor q = queries(query), k = keys(key), v = keys(value), o = queries(out),
                 l(lse.data(), {kBatch, kHeads, q_len}), go = queries(grad_out),
                 gq = queries(grad_query), gk = keys(grad_key), gv = keys(grad_value);
    auto args = sized<perseid_attention_backward_args>();
    args.query = q.dl();
    args.key = k.dl();
    args.value = v.dl();
    args.out = o.dl();
    args.lse = l.dl();
    args.grad_out = go.dl();
    args.grad_query = gq.dl();
    args.grad_key = gk.dl();
    args.grad_value = gv.dl();
    return counted([&] {
      return perseid_attention_backward(plan(), &args, workspace.data(), workspace.size(), nullptr);
    });
  }
  perseid_plan_t plan() const { return plan_->get(); }

 private:
  std::shared_ptr<Plan> plan_;  // copies share it
};
