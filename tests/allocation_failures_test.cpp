// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Every allocation of every function of the C ABI fails in turn: the call says OUT_OF_MEMORY with a
// sentence, keeps nothing, and works the next time. Files have a test of their own.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>

#include "api_test_tools.hpp"

extern thread_local int64_t allocations_until_failure;  // of counting_new.cpp
extern std::atomic<int64_t> live_allocations;

namespace {

// The call leaves nothing behind of what it makes. Returns how many of its allocations failed.
template <class Call>
int64_t fail_each(const char* name, const Call& call) {
  SCOPED_TRACE(name);
  // The first call also makes what the process and the thread keep.
  EXPECT_EQ(call(), PERSEID_OK) << perseid_last_error();
  for (int64_t allocation = 0;; ++allocation) {
    const int64_t before = live_allocations;
    allocations_until_failure = allocation;
    const perseid_status status = call();
    const bool failed = allocations_until_failure < 0;
    allocations_until_failure = -1;
    EXPECT_EQ(live_allocations, before) << "after allocation " << allocation;
    if (!failed) {
      EXPECT_EQ(status, PERSEID_OK) << perseid_last_error();
      return allocation;
    }
    EXPECT_EQ(status, PERSEID_OUT_OF_MEMORY)
        << "allocation " << allocation << ": " << perseid_last_error();
    EXPECT_NE(std::string(perseid_last_error()).find("memory"), std::string::npos)
        << "allocation " << allocation << ": " << perseid_last_error();
    if (testing::Test::HasFailure() || allocation == 10000) return allocation;
    EXPECT_EQ(call(), PERSEID_OK) << "after allocation " << allocation << ": "
                                  << perseid_last_error();
  }
}

TEST(AllocationFailures, Contexts) {
  for (const int32_t threads : {1, 4}) {
    const int64_t failed = fail_each("perseid_context_create", [threads] {
      auto options = sized<perseid_context_options>();
      options.threads = threads;
      perseid_context_t context = nullptr;
      const perseid_status status = perseid_context_create(&options, &context);
      EXPECT_EQ(context == nullptr, status != PERSEID_OK);
      perseid_context_destroy(context);
      return status;
    });
    EXPECT_GT(failed, 10);
  }
  fail_each("perseid_context_facts", [] {
    perseid_context_t context = nullptr;
    const char* facts = nullptr;
    perseid_status status = perseid_context_create(nullptr, &context);
    if (status == PERSEID_OK) status = perseid_context_facts(context, &facts);
    if (status == PERSEID_OK) {
      EXPECT_EQ(facts[0], '{');
    }
    perseid_context_destroy(context);
    return status;
  });
}

TEST(AllocationFailures, MemoryAndTimers) {
  const Context context;
  EXPECT_GT(fail_each("perseid_memory_allocate",
                      [&] {
                        void* data = nullptr;
                        const perseid_status status =
                            perseid_memory_allocate(context.get(), 1 << 20, &data);
                        EXPECT_EQ(data == nullptr, status != PERSEID_OK);
                        perseid_memory_free(context.get(), data);
                        return status;
                      }),
            0);
  EXPECT_GT(fail_each("perseid_timer_create",
                      [&] {
                        perseid_timer_t timer = nullptr;
                        perseid_status status = perseid_timer_create(context.get(), &timer);
                        EXPECT_EQ(timer == nullptr, status != PERSEID_OK);
                        double seconds = 0;
                        if (status == PERSEID_OK) status = perseid_timer_start(timer, nullptr);
                        if (status == PERSEID_OK) status = perseid_timer_stop(timer, nullptr);
                        if (status == PERSEID_OK) status = perseid_timer_seconds(timer, &seconds);
                        perseid_timer_destroy(timer);
                        return status;
                      }),
            0);
  fail_each("perseid_context_ceiling", [&] {
    double per_second = 0;
    return perseid_context_ceiling(context.get(), PERSEID_CEILING_READ, 4096, &per_second);
  });
}

// Making, looking at and destroying a plan.
template <class Create>
void fail_each_of_plan(const char* name, const Create& create) {
  const int64_t failed = fail_each(name, [&] {
    perseid_plan_t plan = nullptr;
    perseid_status status = create(&plan);
    EXPECT_EQ(plan == nullptr, status != PERSEID_OK);
    auto info = sized<perseid_plan_info>();
    const char *text = nullptr, *json = nullptr;
    size_t bytes = 0;
    if (status == PERSEID_OK) status = perseid_plan_query(plan, &info);
    if (status == PERSEID_OK) status = perseid_plan_workspace_size(plan, PERSEID_FORWARD, &bytes);
    if (status == PERSEID_OK) status = perseid_plan_explain(plan, &text);
    if (status == PERSEID_OK) status = perseid_plan_explain_json(plan, &json);
    if (status == PERSEID_OK) {
      EXPECT_NE(std::strstr(text, info.implementation), nullptr);
      EXPECT_NE(std::strstr(json, info.implementation), nullptr);
    }
    perseid_plan_destroy(plan);
    return status;
  });
  EXPECT_GT(failed, 0);
}

TEST(AllocationFailures, Plans) {
  const Context context;
  const auto softmax = SmallSoftmax::describe();
  fail_each_of_plan("perseid_softmax_plan_create", [&](perseid_plan_t* plan) {
    return perseid_softmax_plan_create(context.get(), &softmax, plan);
  });
  for (const int64_t length : {2, 100}) {
    const auto attention = SmallAttention::describe(length);
    fail_each_of_plan("perseid_attention_plan_create", [&](perseid_plan_t* plan) {
      return perseid_attention_plan_create(context.get(), &attention, plan);
    });
  }
  auto matmul = sized<perseid_matmul_desc>();
  matmul.dtype = PERSEID_F32;
  matmul.m = matmul.n = matmul.k = 5;
  fail_each_of_plan("perseid_matmul_plan_create", [&](perseid_plan_t* plan) {
    return perseid_matmul_plan_create(context.get(), &matmul, plan);
  });
}

// With a program that listens, too.
TEST(AllocationFailures, PlansWithALogCallback) {
  const Context context;
  int64_t lines = 0;
  perseid_set_log_callback(
      [](void* user, perseid_log_level, const char*) { ++*static_cast<int64_t*>(user); }, &lines,
      PERSEID_LOG_DEBUG);
  const auto softmax = SmallSoftmax::describe();
  fail_each_of_plan("perseid_softmax_plan_create", [&](perseid_plan_t* plan) {
    return perseid_softmax_plan_create(context.get(), &softmax, plan);
  });
  perseid_set_log_callback(nullptr, nullptr, PERSEID_LOG_DEBUG);
}

// Executing allocates nothing, so nothing can fail.
TEST(AllocationFailures, Executions) {
  const Context context;
  SmallSoftmax softmax(context);
  SmallAttention attention(context, 40), decode(context, 2);
  const auto runs_without_memory = [](const char* name, const auto& call) {
    ASSERT_EQ(call(), PERSEID_OK) << name << ": " << perseid_last_error();
    allocations_until_failure = 0;
    const perseid_status status = call();
    const bool failed = allocations_until_failure < 0;
    allocations_until_failure = -1;
    EXPECT_EQ(status, PERSEID_OK) << name << ": " << perseid_last_error();
    // Making the tensors' views is the test's own.
    EXPECT_FALSE(failed) << name;
  };
  runs_without_memory("softmax", [&] { return softmax.forward(); });
  runs_without_memory("attention", [&] { return attention.forward(); });
  runs_without_memory("attention backward", [&] { return attention.backward(); });
  runs_without_memory("decode", [&] { return decode.forward(); });
  std::vector<uint8_t> bits(30);
  const Tensor mask(bits.data(), perseid::u8, {1, 2, 3, 5});
  fail_each("perseid_fill_dropout_mask", [&] {
    return perseid_fill_dropout_mask(context.get(), 0.5, 1, 2, mask.dl(), nullptr);
  });
}

// If there is no memory for the sentence of a refusal, the status is OUT_OF_MEMORY instead.
TEST(AllocationFailures, Refusals) {
  const Context context;
  auto desc = SmallSoftmax::describe();
  desc.ndim = 99;
  perseid_plan_t plan = nullptr;
  for (int64_t allocation = 0;; ++allocation) {
    ASSERT_LT(allocation, 1000);
    allocations_until_failure = allocation;
    const perseid_status status = perseid_softmax_plan_create(context.get(), &desc, &plan);
    const bool failed = allocations_until_failure < 0;
    allocations_until_failure = -1;
    EXPECT_EQ(plan, nullptr);
    EXPECT_TRUE(status == PERSEID_INVALID_ARGUMENT || (failed && status == PERSEID_OUT_OF_MEMORY))
        << allocation << ": " << perseid_last_error();
    EXPECT_NE(perseid_last_error()[0], 0);
    if (!failed) break;
  }
}

}  // namespace
