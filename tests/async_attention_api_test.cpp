// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Keys and values in chunks through the C ABI and C++: what is refused and with which sentence,
// statuses and records of waits that end, keys that nobody waits for, backward.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "api_test_tools.hpp"
#include "perseid/perseid.hpp"

namespace {

using namespace std::chrono_literals;
using perseid::Chunks;

constexpr int64_t kHeads = 4, kKvHeads = 2, kQ = 20, kKv = 30, kDim = 8;

perseid_attention_desc describe_attention() {
  auto desc = sized<perseid_attention_desc>();
  desc.dtype = PERSEID_F32;
  desc.heads = kHeads;
  desc.kv_heads = kKvHeads;
  desc.q_len = kQ;
  desc.kv_len = kKv;
  desc.head_dim = kDim;
  return desc;
}

TEST(KeyChunks, TablesAreRefusedWithTheirFault) {
  Context context(1);
  const auto refused = [&](const std::vector<int64_t>& begin, const std::string& part,
                           uint32_t dim = 0, int64_t total_kv = 0) {
    auto chunks = sized<perseid_async_operand>();
    chunks.dim = dim;
    chunks.count = static_cast<int64_t>(begin.size()) - 1;
    chunks.begin = begin.data();
    auto desc = describe_attention();
    desc.async_kv = &chunks;
    if (total_kv > 0) {
      desc.ragged = 1;
      desc.batch = 3;
      desc.total_q = 40;
      desc.total_kv = total_kv;
    }
    Plan plan;
    EXPECT_FAILS(perseid_attention_plan_create(context.get(), &desc, plan.out()),
                 PERSEID_INVALID_ARGUMENT, part);
  };
  refused({1, 30}, "attention: async_kv.begin[0] is 1, expected 0");
  refused({0, 4, 29}, "async_kv.begin[2] is 29, expected 30: the last chunk ends with kv_len");
  refused({0, 20, 10, 30}, "async_kv.begin[2] is 10, expected more than begin[1], which is 20");
  refused({0, 10, 10, 30}, "async_kv.begin[2] is 10, expected more than begin[1]");
  refused({0, 30}, "async_kv.dim is 1, expected kv_len (4, also 0)", PERSEID_CHUNK_M);
  refused({0, 30}, "async_kv.dim is 3, expected kv_len (4, also 0)", PERSEID_CHUNK_K);
  refused({0, 30}, "async_kv.begin[1] is 30, expected 50: the last chunk ends with total_kv", 4,
          50);
  refused({0}, "async_kv.count is 0, expected 1 to 30 chunks of kv_len = 30");

  auto chunks = sized<perseid_async_operand>();
  chunks.count = 1;
  auto desc = describe_attention();
  desc.async_kv = &chunks;
  Plan plan;
  EXPECT_FAILS(perseid_attention_plan_create(context.get(), &desc, plan.out()),
               PERSEID_INVALID_ARGUMENT, "async_kv.begin is NULL, expected 2 boundaries");
  desc.kv_len = 0;
  EXPECT_FAILS(perseid_attention_plan_create(context.get(), &desc, plan.out()),
               PERSEID_INVALID_ARGUMENT, "async_kv cuts kv_len, which is 0; pass NULL");
}

// Forward over three chunks of keys, and what the plan without chunks gives.
struct Keys {
  std::vector<float> query = waves(kHeads * kQ * kDim, 0.3f),
                     key = waves(kKvHeads * kKv * kDim, 0.7f),
                     value = waves(kKvHeads * kKv * kDim, 0.5f), out, expected;
  std::vector<uint32_t> signals = std::vector<uint32_t>(3);
  perseid::Arrival arrival;
  perseid::AttentionOptions options;
  std::optional<perseid::Attention> plan;
  perseid::Workspace workspace;

  explicit Keys(const perseid::Context& context, perseid::Mask mask = {},
                const char* implementation = nullptr)
      : out(query.size()), expected(query.size()) {
    options = {.heads = kHeads,
               .kv_heads = kKvHeads,
               .q_len = kQ,
               .kv_len = kKv,
               .head_dim = kDim,
               .mask = mask,
               .implementation = implementation};
    plan.emplace(context, options);
    plan->reserve(workspace);
    execute(expected);
    const Chunks chunks{{0, 7, 21, kKv}};
    options.async_kv = chunks;
    plan.emplace(context, options);
    plan->reserve(workspace);
    arrival.signals = signals.data();
  }
  void execute(std::vector<float>& to) {
    plan->forward(nullptr,
                  {.query = {query.data(), {1, kQ, kHeads, kDim}},
                   .key = {key.data(), {1, kKv, kKvHeads, kDim}},
                   .value = {value.data(), {1, kKv, kKvHeads, kDim}},
                   .out = {to.data(), {1, kQ, kHeads, kDim}},
                   .arrival_kv = arrival},
                  workspace);
  }
  void deliver_all(uint32_t epoch) {
    for (uint32_t& signal : signals) perseid::set_signal(&signal, epoch);
  }
  void expect_fails(perseid_status status, const std::string& part) {
    try {
      execute(out);
      ADD_FAILURE() << "expected: " << part;
    } catch (const perseid::Error& error) {
      EXPECT_EQ(error.status(), status);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
};

TEST(KeyArrival, WrongOnesAreRefused) {
  const perseid::Context context = perseid::Context::cpu(1);
  Keys keys(context);
  const auto refused = [&](const std::string& part, const auto& change) {
    keys.arrival = {.signals = keys.signals.data()};
    change();
    keys.expect_fails(PERSEID_INVALID_ARGUMENT, part);
  };
  refused("attention forward: arrival_kv is NULL, expected the arrival of the plan's 3 chunks",
          [&] { keys.arrival.signals = nullptr; });
  refused("arrival_kv.first_chunk is 3, expected 0 to 2", [&] { keys.arrival.first_chunk = 3; });
  refused("arrival_kv.abort is at an address", [&] {
    keys.arrival.abort =
        reinterpret_cast<const uint32_t*>(reinterpret_cast<uintptr_t>(keys.signals.data()) + 2);
  });
  keys.options.async_kv = {};
  keys.plan.emplace(context, keys.options);
  refused("arrival_kv is given, but the plan was made without chunks", [] {});
}

TEST(KeyArrival, EveryImplementationOfTheCpu) {
  const perseid::Context context = perseid::Context::cpu(2);
  for (const char* implementation : {"cpu:tiled", "cpu:reference"}) {
    Keys keys(context, {}, implementation);
    EXPECT_NE(keys.plan->explain().find("3 chunks of kv_len"), std::string::npos);
    perseid_wait_record record{};
    keys.arrival.epoch = 1;
    keys.arrival.deadline = 3ms;
    keys.arrival.record = &record;
    keys.deliver_all(1);
    keys.signals[1] = 0;
    keys.expect_fails(PERSEID_TIMEOUT,
                      "attention forward: chunk 1 of key: not arrived within 3 ms (its signal is "
                      "0, the epoch 1)");
    EXPECT_EQ(record.status, PERSEID_TIMEOUT);
    EXPECT_EQ(record.operand, 0);
    EXPECT_EQ(record.chunk, 1);
    uint32_t abort = 1;
    keys.arrival.abort = &abort;
    keys.expect_fails(PERSEID_PEER_LOST, "chunk 1 of key: not arrived when the abort word was set");
    EXPECT_EQ(record.status, PERSEID_PEER_LOST);
    keys.deliver_all(1);
    keys.execute(keys.out);
    EXPECT_EQ(keys.out, keys.expected);
    EXPECT_EQ(record.status, PERSEID_OK);
    EXPECT_EQ(record.chunk, -1);
    // Another order of visits: other roundings, no more.
    keys.arrival.first_chunk = 2;
    keys.execute(keys.out);
    for (size_t i = 0; i < keys.out.size(); ++i)
      EXPECT_NEAR(keys.out[i], keys.expected[i], 1e-5) << i;
  }
}

// The queries see keys 0 to 19 of 30 under a top-left mask, and 12 to 19 with a window too: chunks
// that hold none of them may hold anything and never arrive.
TEST(KeyArrival, HiddenChunksAreNeitherAwaitedNorRead) {
  const perseid::Context context = perseid::Context::cpu(2);
  for (const char* implementation : {"cpu:tiled", "cpu:reference"}) {
    Keys keys(context, perseid::causal_top_left(), implementation);
    for (size_t i = 21 * kKvHeads * kDim; i < keys.key.size(); ++i)
      keys.key[i] = keys.value[i] = std::numeric_limits<float>::quiet_NaN();
    keys.arrival.epoch = 1;
    keys.arrival.deadline = 10s;
    for (const int64_t first : {0, 2}) {
      keys.arrival.first_chunk = first;
      keys.deliver_all(1);
      keys.signals[2] = 0;
      keys.execute(keys.out);
      EXPECT_EQ(keys.out, keys.expected) << first;
    }
    // What is missing is what some query sees.
    keys.signals = {1, 0, 0};
    keys.arrival.deadline = 1ms;
    keys.arrival.first_chunk = 2;
    keys.expect_fails(PERSEID_TIMEOUT, "chunk 1 of key: not arrived within 1 ms");
  }
}

// One query for each head: split over keys, in the bits of the plan without chunks for any pivot.
TEST(KeyArrival, Decoding) {
  const perseid::Context context = perseid::Context::cpu(2);
  constexpr int64_t kLong = 3000;
  const std::vector<float> query = waves(kHeads * kDim, 0.3f),
                           key = waves(kKvHeads * kLong * kDim, 0.7f),
                           value = waves(kKvHeads * kLong * kDim, 0.5f);
  std::vector<float> out(query.size()), expected(query.size());
  perseid::AttentionOptions options{
      .heads = kHeads, .kv_heads = kKvHeads, .q_len = 1, .kv_len = kLong, .head_dim = kDim};
  const auto run = [&](const perseid::Arrival& arrival, std::vector<float>& to) {
    const perseid::Attention plan(context, options);
    EXPECT_STREQ(plan.info().implementation, "cpu:decode");
    perseid::Workspace workspace;
    plan.reserve(workspace);
    plan.forward(nullptr,
                 {.query = {query.data(), {1, 1, kHeads, kDim}},
                  .key = {key.data(), {1, kLong, kKvHeads, kDim}},
                  .value = {value.data(), {1, kLong, kKvHeads, kDim}},
                  .out = {to.data(), {1, 1, kHeads, kDim}},
                  .arrival_kv = arrival},
                 workspace);
  };
  run({}, expected);
  const Chunks chunks = Chunks::even(kLong, 7);
  options.async_kv = chunks;
  for (int64_t first = 0; first < 7; ++first) {
    std::vector<uint32_t> signals(7, 0);
    std::thread producer([&] {
      for (size_t c = 7; c-- > 0;) perseid::set_signal(&signals[c], 4);
    });
    run({.signals = signals.data(), .epoch = 4, .first_chunk = first}, out);
    producer.join();
    EXPECT_EQ(out, expected) << first;
  }
}

// Backward takes no arrival and waits for nothing.
TEST(KeyArrival, BackwardFindsAllKeys) {
  const perseid::Context context = perseid::Context::cpu(2);
  Keys keys(context);
  const auto gradient = [&](const Chunks* chunks) {
    perseid::AttentionOptions options = keys.options;
    options.async_kv = chunks == nullptr ? perseid::ChunksView() : perseid::ChunksView(*chunks);
    options.gradients = PERSEID_GRAD_QUERY;
    const perseid::Attention plan(context, options);
    perseid::Workspace workspace;
    plan.reserve(workspace);
    std::vector<float> lse(kHeads * kQ), grad(keys.query.size());
    const perseid::Tensor query(keys.query.data(), {1, kQ, kHeads, kDim}),
        key(keys.key.data(), {1, kKv, kKvHeads, kDim}),
        value(keys.value.data(), {1, kKv, kKvHeads, kDim}),
        out(keys.out.data(), {1, kQ, kHeads, kDim}), log_sum(lse.data(), {1, kHeads, kQ});
    perseid::AttentionForward with{
        .query = query, .key = key, .value = value, .out = out, .lse = log_sum};
    keys.deliver_all(5);
    if (chunks != nullptr) with.arrival_kv = {.signals = keys.signals.data(), .epoch = 5};
    plan.forward(nullptr, with, workspace);
    keys.deliver_all(0);
    plan.backward(nullptr,
                  {.query = query,
                   .key = key,
                   .value = value,
                   .out = out,
                   .lse = log_sum,
                   .grad_out = query,
                   .grad_query = {grad.data(), {1, kQ, kHeads, kDim}}},
                  workspace);
    return grad;
  };
  const Chunks chunks{{0, 7, 21, kKv}};
  EXPECT_EQ(gradient(&chunks), gradient(nullptr));
}

TEST(KeyArrival, NothingIsAwaitedWithoutQueries) {
  const perseid::Context context = perseid::Context::cpu(1);
  const Chunks chunks = Chunks::even(kKv, 2);
  const perseid::Attention plan(
      context, {.heads = kHeads, .q_len = 0, .kv_len = kKv, .head_dim = kDim, .async_kv = chunks});
  perseid::Workspace workspace;
  plan.reserve(workspace);
  std::vector<float> keys(kHeads * kKv * kDim);
  const uint32_t never[2] = {};
  plan.forward(nullptr,
               {.query = {keys.data(), {1, 0, kHeads, kDim}},
                .key = {keys.data(), {1, kKv, kHeads, kDim}},
                .value = {keys.data(), {1, kKv, kHeads, kDim}},
                .out = {keys.data(), {1, 0, kHeads, kDim}},
                .arrival_kv = {.signals = never, .epoch = 1, .deadline = 1ms}},
               workspace);
}

}  // namespace
