// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The C ABI: contexts, plans, choosing and explaining, executors, threads, workspaces, the log.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "api_test_tools.hpp"

namespace {

// Sets a variable of the environment for as long as it lives.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

const char* implementation_of(perseid_plan_t plan) {
  auto info = sized<perseid_plan_info>();
  EXPECT_EQ(perseid_plan_query(plan, &info), PERSEID_OK);
  return info.implementation;
}

// ---- Library

TEST(Library, NamesVersionsAndStatuses) {
  EXPECT_STREQ(perseid_version(), "0.1.0");
  EXPECT_EQ(perseid_abi_version(), PERSEID_ABI_VERSION);
  std::set<std::string> names;
  for (int status = PERSEID_OK; status <= PERSEID_INTERNAL; ++status)
    names.insert(perseid_status_string(static_cast<perseid_status>(status)));
  EXPECT_EQ(names.size(), size_t{PERSEID_INTERNAL + 1});
}

TEST(Library, KeepsTheLastErrorOfEachThread) {
  EXPECT_FAILS(perseid_context_create(nullptr, nullptr), PERSEID_INVALID_ARGUMENT, "NULL");
  const std::string before = perseid_last_error();
  std::thread([] {
    EXPECT_STREQ(perseid_last_error(), "");
    EXPECT_FAILS(perseid_plan_query(nullptr, nullptr), PERSEID_INVALID_ARGUMENT, "plan");
  }).join();
  EXPECT_EQ(perseid_last_error(), before);
  Context context;  // a success leaves it
  EXPECT_EQ(perseid_last_error(), before);
}

// ---- Context

TEST(ContextTest, TellsFacts) {
  Context context(3);
  const char* json = nullptr;
  ASSERT_EQ(perseid_context_facts(context.get(), &json), PERSEID_OK);
  const std::string facts = json;
  for (const char* part :
       {"\"version\": \"0.1.0\"", "\"workers\": 3", "\"isa\": \"", "\"isas\": [", "\"caches\": [",
        "\"PERSEID_CPU_ISA\": ", "\"PERSEID_FORCE_IMPL\": null", "\"PERSEID_NUM_THREADS\": "})
    EXPECT_NE(facts.find(part), std::string::npos) << part << " is not in " << facts;
  EXPECT_EQ(std::count(facts.begin(), facts.end(), '{'),
            std::count(facts.begin(), facts.end(), '}'));
}

TEST(ContextTest, RefusesBadOptions) {
  const auto create = [](auto change) {
    auto options = sized<perseid_context_options>();
    change(options);
    perseid_context_t context = nullptr;
    const perseid_status status = perseid_context_create(&options, &context);
    EXPECT_EQ(context, nullptr);
    return status;
  };
  EXPECT_FAILS(create([](auto& o) { o.struct_size = 0; }), PERSEID_INVALID_ARGUMENT,
               "perseid_context_options.struct_size is 0, expected a multiple of 8");
  {
    const Environment disabled("PERSEID_DISABLE_CUDA", "1");
    EXPECT_FAILS(create([](auto& o) { o.device_type = kDLCUDA; }), PERSEID_UNSUPPORTED,
                 "PERSEID_DISABLE_CUDA is \"1\"");
  }
  EXPECT_FAILS(create([](auto& o) {
                 o.device_type = kDLCUDA;
                 o.threads = 2;
               }),
               PERSEID_INVALID_ARGUMENT, "leave them 0 with kDLCUDA");
  EXPECT_FAILS(create([](auto& o) { o.device_type = 7; }), PERSEID_INVALID_ARGUMENT,
               "device_type is 7");
  EXPECT_FAILS(create([](auto& o) { o.device_index = 1; }), PERSEID_INVALID_ARGUMENT,
               "device_index is 1");
  EXPECT_FAILS(create([](auto& o) { o.threads = -1; }), PERSEID_INVALID_ARGUMENT, "threads is -1");
  EXPECT_FAILS(create([](auto& o) { o.threads = 1 << 30; }), PERSEID_INVALID_ARGUMENT,
               "expected 1 to 4096");
  EXPECT_FAILS(
      create([](auto& o) { o.executor.run = [](void*, int64_t, perseid_task_fn, void*) {}; }),
      PERSEID_INVALID_ARGUMENT, "executor.workers is 0");
}

TEST(ContextTest, ReadsTheNumberOfThreads) {
  {
    const Environment threads("PERSEID_NUM_THREADS", "5");
    Context context(0), own(2);
    const char* json = nullptr;
    ASSERT_EQ(perseid_context_facts(context.get(), &json), PERSEID_OK);
    EXPECT_NE(std::strstr(json, "\"workers\": 5"), nullptr) << json;
    ASSERT_EQ(perseid_context_facts(own.get(), &json), PERSEID_OK);
    EXPECT_NE(std::strstr(json, "\"workers\": 2"), nullptr) << json;
  }
  for (const char* wrong : {"0", "-3", "many", "4x", "99999999999999999999"}) {
    const Environment threads("PERSEID_NUM_THREADS", wrong);
    perseid_context_t context = nullptr;
    EXPECT_FAILS(perseid_context_create(nullptr, &context), PERSEID_INVALID_ARGUMENT, wrong);
  }
}

TEST(ContextTest, RefusesAnUnknownInstructionSet) {
  const char* before = std::getenv("PERSEID_CPU_ISA");
  const std::string kept = before == nullptr ? "" : before;
  {
    const Environment isa("PERSEID_CPU_ISA", "abacus");
    perseid_context_t context = nullptr;
    EXPECT_FAILS(perseid_context_create(nullptr, &context), PERSEID_INVALID_ARGUMENT, "abacus");
  }
  if (before != nullptr) setenv("PERSEID_CPU_ISA", kept.c_str(), 1);
}

TEST(ContextTest, MeasuresCeilings) {
  Context context;
  for (int ceiling = PERSEID_CEILING_F32; ceiling <= PERSEID_CEILING_READ; ++ceiling) {
    double per_second = 0;
    ASSERT_EQ(perseid_context_ceiling(context.get(), static_cast<perseid_ceiling>(ceiling), 1 << 20,
                                      &per_second),
              PERSEID_OK);
    EXPECT_GT(per_second, 1e6) << ceiling;
    EXPECT_LT(per_second, 1e16) << ceiling;
  }
  double per_second = 0;
  EXPECT_FAILS(perseid_context_ceiling(context.get(), PERSEID_CEILING_COPY, 0, &per_second),
               PERSEID_INVALID_ARGUMENT, "got 0 bytes");
  EXPECT_FAILS(
      perseid_context_ceiling(context.get(), PERSEID_CEILING_READ, ~uint64_t{0}, &per_second),
      PERSEID_OUT_OF_MEMORY, "measure a smaller one");
}

// ---- Choosing and explaining

TEST(Choice, WalksTheList) {
  Context context;
  SmallAttention few(context, 2), many(context, 64);
  EXPECT_STREQ(implementation_of(few.plan()), "cpu:decode");
  EXPECT_STREQ(implementation_of(many.plan()), "cpu:tiled");
  const char* text = nullptr;
  ASSERT_EQ(perseid_plan_explain(many.plan(), &text), PERSEID_OK);
  for (const char* part :
       {"cpu:decode     refused   made for at most 8 query rows per key head",
        "cpu:tiled      chosen    the first", "cpu:reference  not tried an earlier",
        "forward: ", "backward: ", "bound by ", "workspace", "kernels"})
    EXPECT_NE(std::strstr(text, part), nullptr) << part << " is not in\n" << text;
  const char* json = nullptr;
  ASSERT_EQ(perseid_plan_explain_json(many.plan(), &json), PERSEID_OK);
  for (const char* part :
       {"\"operation\": \"attention\"", "\"implementation\": \"cpu:tiled\"",
        "\"verdict\": \"not tried\"", "\"flops\": ", "\"bound\": \"", "\"q_len\": 64"})
    EXPECT_NE(std::strstr(json, part), nullptr) << part << " is not in\n" << json;
}

TEST(Choice, ObeysTheDescriptor) {
  Context context;
  SmallAttention reference(context, 2, "cpu:reference");
  EXPECT_STREQ(implementation_of(reference.plan()), "cpu:reference");
  perseid_plan_t plan = nullptr;
  auto desc = SmallAttention::describe(64);
  desc.implementation = "cpu:decode";
  EXPECT_FAILS(perseid_attention_plan_create(context.get(), &desc, &plan), PERSEID_UNSUPPORTED,
               "cpu:decode: made for at most 8");
  desc.implementation = "cpu:magic";
  EXPECT_FAILS(perseid_attention_plan_create(context.get(), &desc, &plan), PERSEID_INVALID_ARGUMENT,
               "expected one or several, divided by commas, of cuda:sm90, cuda:portable, "
               "cuda:reference, cpu:decode, cpu:tiled, cpu:reference");
  EXPECT_EQ(plan, nullptr);
}

// The first of these that takes the problem, whatever the order of the library.
TEST(Choice, TakesNamesInTheirOrder) {
  Context context;
  const auto chosen = [&](int64_t kv_len, const char* names) -> std::string {
    return implementation_of(SmallAttention(context, kv_len, names).plan());
  };
  EXPECT_EQ(chosen(2, "cpu:tiled,cpu:decode"), "cpu:tiled");
  EXPECT_EQ(chosen(2, "cpu:decode,cpu:tiled,cpu:decode"), "cpu:decode");
  EXPECT_EQ(chosen(64, "cpu:decode,cpu:reference,cpu:tiled"), "cpu:reference");
  EXPECT_EQ(chosen(64, "cuda:sm90,cpu:tiled"), "cpu:tiled");
  perseid_plan_t plan = nullptr;
  auto desc = SmallAttention::describe(64);
  for (const char* wrong : {"cpu:tiled,", ",cpu:tiled", "cpu:tiled cpu:decode", "cpu:tiled,none"}) {
    desc.implementation = wrong;
    EXPECT_FAILS(perseid_attention_plan_create(context.get(), &desc, &plan),
                 PERSEID_INVALID_ARGUMENT, wrong);
  }
}

TEST(Choice, ObeysTheEnvironment) {
  const Environment force("PERSEID_FORCE_IMPL", "cpu:tiled");
  Context context;
  SmallAttention forced(context, 2), own(context, 2, "cpu:decode");
  EXPECT_STREQ(implementation_of(forced.plan()), "cpu:tiled");
  EXPECT_STREQ(implementation_of(own.plan()), "cpu:decode");
  // Softmax has none of that name, and goes its own way.
  SmallSoftmax softmax(context);
  EXPECT_STREQ(implementation_of(softmax.plan()), "cpu:simd");

  {
    const Environment several("PERSEID_FORCE_IMPL", "cpu:packed,cpu:decode,cpu:reference");
    Context other;
    EXPECT_STREQ(implementation_of(SmallAttention(other, 64).plan()), "cpu:reference");
    EXPECT_STREQ(implementation_of(SmallSoftmax(other).plan()), "cpu:reference");
  }
  const Environment misspelt("PERSEID_FORCE_IMPL", "cpu:tiled,cpu:tield");
  perseid_context_t none = nullptr;
  EXPECT_FAILS(perseid_context_create(nullptr, &none), PERSEID_INVALID_ARGUMENT,
               "PERSEID_FORCE_IMPL is \"cpu:tiled,cpu:tield\", expected one or several, divided by "
               "commas, of cuda:rows, cuda:split, cuda:columns, cpu:simd, cpu:reference");
}

// Plans for GPUs that are not there.
TEST(Choice, PlansForAnAssumedGpu) {
  auto options = sized<perseid_context_options>();
  options.device_type = kDLCUDA;
  auto desc = SmallAttention::describe(64);
  desc.dtype = PERSEID_BF16;
  desc.head_dim = desc.value_dim = 64;
  desc.gradients = 0;
  for (const char* capability : {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"}) {
    options.assume = capability;
    const Context context(options);
    Plan plan;
    ASSERT_EQ(perseid_attention_plan_create(context.get(), &desc, plan.out()), PERSEID_OK)
        << perseid_last_error();
    EXPECT_STREQ(implementation_of(plan.get()),
                 std::string(capability) == "sm_90" ? "cuda:sm90" : "cuda:portable");
    // What no other kernels of a GPU take, and what asks for them.
    auto large = desc, asking = desc;
    large.head_dim = large.value_dim = 2049;
    large.gradients = PERSEID_GRAD_QUERY | PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE;
    asking.implementation = "cuda:reference";
    for (const auto* given : {&large, &asking}) {
      Plan taken;
      ASSERT_EQ(perseid_attention_plan_create(context.get(), given, taken.out()), PERSEID_OK)
          << perseid_last_error();
      EXPECT_STREQ(implementation_of(taken.get()), "cuda:reference");
      const char* text = nullptr;
      ASSERT_EQ(perseid_plan_explain(taken.get(), &text), PERSEID_OK);
      EXPECT_NE(std::strstr(text, "(forward: a query a block, in float64"), nullptr) << text;
    }
  }

  // What would run ends with a sentence.
  options.assume = "sm_90";
  const Context context(options);
  const char* facts = nullptr;
  ASSERT_EQ(perseid_context_facts(context.get(), &facts), PERSEID_OK);
  EXPECT_NE(std::string(facts).find("\"assumed\": true"), std::string::npos) << facts;
  const std::string sentence = "the context assumes a GPU (H100, assumed)";
  void* data = nullptr;
  EXPECT_FAILS(perseid_memory_allocate(context.get(), 64, &data), PERSEID_UNSUPPORTED, sentence);
  EXPECT_FAILS(perseid_stream_synchronize(context.get(), nullptr), PERSEID_UNSUPPORTED, sentence);
  perseid_timer_t timer = nullptr;
  EXPECT_FAILS(perseid_timer_create(context.get(), &timer), PERSEID_UNSUPPORTED, sentence);
  double rate = 0;
  EXPECT_FAILS(perseid_context_ceiling(context.get(), PERSEID_CEILING_COPY, 1 << 20, &rate),
               PERSEID_UNSUPPORTED, sentence);
  auto desc_of_softmax = SmallSoftmax::describe();
  Plan softmax;
  ASSERT_EQ(perseid_softmax_plan_create(context.get(), &desc_of_softmax, softmax.out()),
            PERSEID_OK);
  float values[6] = {};
  DLTensor tensor{values, {kDLCUDA, 0}, 2, {kDLFloat, 32, 1}, desc_of_softmax.shape, nullptr, 0};
  auto args = sized<perseid_softmax_forward_args>();
  args.input = args.output = &tensor;
  EXPECT_FAILS(perseid_softmax_forward(softmax.get(), &args, nullptr, 0, nullptr),
               PERSEID_UNSUPPORTED, sentence);

  const auto refused = [&](const char* capability, const std::string& expected) {
    options.assume = capability;
    perseid_context_t none = nullptr;
    EXPECT_FAILS(perseid_context_create(&options, &none), PERSEID_INVALID_ARGUMENT, expected);
  };
  for (const char* wrong : {"", "sm_70", "sm_90x", "90"})
    refused(wrong, "expected sm_ and a compute capability from 8.0 on");
  options.device_index = 1;
  refused("sm_90", "device_index is 1");
  options.device_type = kDLCPU;
  options.device_index = 0;
  refused("sm_90", "assume is \"sm_90\", expected NULL with a CPU");
}

TEST(Choice, CountsUsefulWork) {
  Context context;
  auto desc = SmallAttention::describe(8);
  desc.kv_len = 12;
  const auto flops = [&](uint32_t causal, int64_t left, int64_t right) {
    desc.causal = causal;
    desc.window = 1;
    desc.window_left = left;
    desc.window_right = right;
    Plan plan;
    EXPECT_EQ(perseid_attention_plan_create(context.get(), &desc, plan.out()), PERSEID_OK);
    auto info = sized<perseid_plan_info>();
    EXPECT_EQ(perseid_plan_query(plan.get(), &info), PERSEID_OK);
    const double per_pair = static_cast<double>(desc.batch * desc.heads * 4 * desc.head_dim);
    EXPECT_NEAR(info.backward_flops, info.forward_flops * 2.5, 1e-6 * info.forward_flops);
    return info.forward_flops / per_pair;
  };
  EXPECT_EQ(flops(PERSEID_CAUSAL_NONE, -1, -1), 8 * 12);
  EXPECT_EQ(flops(PERSEID_CAUSAL_TOP_LEFT, -1, -1), 8 * 9 / 2);
  EXPECT_EQ(flops(PERSEID_CAUSAL_BOTTOM_RIGHT, -1, -1), 8 * 4 + 8 * 9 / 2);
  // Against the definition, one query at a time.
  for (const uint32_t causal : {0u, 1u, 2u}) {
    for (const int64_t left : {-1, 0, 3, 100}) {
      for (const int64_t right : {-1, 0, 2, 100}) {
        int64_t pairs = 0;
        for (int64_t i = 0; i < 8; ++i) {
          const int64_t p = i + (causal == PERSEID_CAUSAL_BOTTOM_RIGHT ? 4 : 0);
          for (int64_t j = 0; j < 12; ++j)
            pairs += (causal == 0 || j <= p) && (left < 0 || j >= p - left) &&
                     (right < 0 || j <= p + right);
        }
        EXPECT_EQ(flops(causal, left, right), static_cast<double>(pairs))
            << causal << " " << left << " " << right;
      }
    }
  }
  flops(PERSEID_CAUSAL_BOTTOM_RIGHT, INT64_MAX, INT64_MAX);
}

// ---- Executing

TEST(Execution, UsesTheCallersThreads) {
  struct Threads {
    std::atomic<int> runs{0};
    static void run(void* user, int64_t tasks, perseid_task_fn fn, void* state) {
      ++static_cast<Threads*>(user)->runs;
      std::vector<std::thread> threads;
      for (int32_t worker = 0; worker < 3; ++worker)
        threads.emplace_back([=] {
          for (int64_t task = worker; task < tasks; task += 3) fn(state, task, worker);
        });
      for (std::thread& thread : threads) thread.join();
    }
  } callers;
  auto options = sized<perseid_context_options>();
  options.executor = {&Threads::run, &callers, 3};
  Context with_callers(options), with_own(1);
  SmallAttention a(with_callers, 64), b(with_own, 64);
  EXPECT_EQ(a.forward(), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(b.forward(), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(a.backward(), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(b.backward(), PERSEID_OK) << perseid_last_error();
  EXPECT_GE(callers.runs, 2);
  EXPECT_EQ(a.out, b.out);
  EXPECT_EQ(a.grad_query, b.grad_query);
  EXPECT_EQ(a.grad_key, b.grad_key);
}

TEST(Execution, OutlivesTheContext) {
  auto context = std::make_unique<Context>();
  SmallAttention attention(*context, 64);
  SmallSoftmax softmax(*context);
  context.reset();
  EXPECT_EQ(attention.forward(), PERSEID_OK) << perseid_last_error();
  EXPECT_EQ(softmax.forward(), PERSEID_OK) << perseid_last_error();
  EXPECT_NEAR(softmax.output[0] + softmax.output[1] + softmax.output[2], 1, 1e-6);
}

TEST(Execution, SharesAPlanBetweenThreads) {
  Context context;
  SmallAttention first(context, 64);
  ASSERT_EQ(first.forward(), PERSEID_OK);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      SmallAttention own(first);  // its own tensors and workspace
      for (int turn = 0; turn < 20; ++turn) {
        std::fill(own.out.begin(), own.out.end(), 0.0f);
        ASSERT_EQ(own.forward(), PERSEID_OK) << perseid_last_error();
        ASSERT_EQ(own.out, first.out);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Execution, AllocatesNothing) {
  Context context;
  SmallAttention attention(context, 64);
  SmallSoftmax softmax(context);
  const auto execute = [&] {
    calls_allocated = 0;
    EXPECT_EQ(attention.forward(), PERSEID_OK);
    EXPECT_EQ(attention.backward(), PERSEID_OK);
    EXPECT_EQ(softmax.forward(), PERSEID_OK);
    return calls_allocated;
  };
  execute();  // the first may start threads
  EXPECT_EQ(execute(), 0);
}

TEST(Execution, ChecksTheWorkspace) {
  Context context;
  SmallAttention attention(context, 64, "cpu:reference");
  size_t needed = 0;
  ASSERT_EQ(perseid_plan_workspace_size(attention.plan(), PERSEID_FORWARD, &needed), PERSEID_OK);
  ASSERT_GT(needed, size_t{0});
  attention.workspace.resize(needed - 1);
  EXPECT_FAILS(
      attention.forward(), PERSEID_WORKSPACE_TOO_SMALL,
      "has " + std::to_string(needed - 1) + " bytes, expected at least " + std::to_string(needed));
  // Any alignment will do, and nothing behind the end is touched.
  for (size_t shift = 0; shift < 8; ++shift) {
    std::vector<unsigned char> memory(needed + 16, 0xa5);
    EXPECT_EQ(attention.forward(memory.data() + shift, needed), PERSEID_OK);
    EXPECT_TRUE(std::all_of(memory.begin() + static_cast<std::ptrdiff_t>(shift + needed),
                            memory.end(), [](unsigned char byte) { return byte == 0xa5; }));
  }
  EXPECT_FAILS(attention.forward(nullptr, needed), PERSEID_INVALID_ARGUMENT,
               "the workspace is NULL");
  // What lies in the part that is used would be overwritten; what lies behind it is safe.
  std::vector<float> shared(needed / sizeof(float) + 1 + attention.key.size());
  std::copy(attention.key.begin(), attention.key.end(), shared.begin());
  std::swap(attention.key, shared);
  EXPECT_FAILS(attention.forward(attention.key.data(), needed), PERSEID_INVALID_ARGUMENT,
               "attention forward: the workspace shares memory with key; pass separate memory");
}

// ---- Log

TEST(Log, TellsPlansAndCalls) {
  std::vector<std::string> messages;
  const auto keep = [](void* user, perseid_log_level, const char* message) {
    static_cast<std::vector<std::string>*>(user)->push_back(message);
  };
  perseid_set_log_callback(keep, &messages, PERSEID_LOG_DEBUG);
  Context context;
  SmallSoftmax softmax(context);
  EXPECT_EQ(softmax.forward(), PERSEID_OK);
  perseid_set_log_callback(keep, &messages, PERSEID_LOG_WARNING);
  EXPECT_EQ(softmax.forward(), PERSEID_OK);
  perseid_set_log_callback(nullptr, nullptr, PERSEID_LOG_DEBUG);
  EXPECT_EQ(softmax.forward(), PERSEID_OK);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].find("plan made: softmax"), 0u) << messages[0];
  EXPECT_EQ(messages[1],
            "softmax forward: input f32 [2, 3] strides [3, 1], "
            "output f32 [2, 3] strides [3, 1]");
}

}  // namespace
