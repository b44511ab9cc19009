// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Chunks through the C ABI and C++: what is refused and with which sentence, statuses and records
// of waits that end, epochs that wrap, many products at once, and products in a row that stream
// into one another.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <type_traits>

#include "api_test_tools.hpp"
#include "perseid/perseid.hpp"

namespace {

using namespace std::chrono_literals;
using perseid::Chunks;

constexpr int64_t kM = 12, kN = 10, kK = 9;

// ---- Descriptors

perseid_matmul_desc describe() {
  auto desc = sized<perseid_matmul_desc>();
  desc.dtype = PERSEID_F32;
  desc.m = kM;
  desc.n = kN;
  desc.k = kK;
  return desc;
}

perseid_async_operand chunks_of(const std::vector<int64_t>& begin, uint32_t dim = 0) {
  auto chunks = sized<perseid_async_operand>();
  chunks.dim = dim;
  chunks.count = static_cast<int64_t>(begin.size()) - 1;
  chunks.begin = begin.data();
  return chunks;
}

void expect_refused(const perseid_async_operand& chunks,
                    const perseid_async_operand* perseid_matmul_desc::*field,
                    const std::string& part) {
  Context context(1);
  auto desc = describe();
  desc.*field = &chunks;
  Plan plan;
  EXPECT_FAILS(perseid_matmul_plan_create(context.get(), &desc, plan.out()),
               PERSEID_INVALID_ARGUMENT, part);
}

TEST(ChunkTables, AreRefusedWithTheirFault) {
  const auto a = &perseid_matmul_desc::async_a;
  const auto b = &perseid_matmul_desc::async_b;
  const auto c = &perseid_matmul_desc::sink_c;
  const auto refused = [](const std::vector<int64_t>& begin, auto field, const std::string& part,
                          uint32_t dim = 0) { expect_refused(chunks_of(begin, dim), field, part); };
  refused({1, 12}, a, "matmul: async_a.begin[0] is 1, expected 0");
  refused({0, 4, 11}, a, "async_a.begin[2] is 11, expected 12: the last chunk ends with m");
  refused({0, 4, 13}, a, "async_a.begin[2] is 13, expected 12");
  refused({0, 6, 4, 12}, a, "async_a.begin[2] is 4, expected more than begin[1], which is 6");
  refused({0, 4, 4, 12}, a, "async_a.begin[2] is 4, expected more than begin[1], which is 4");
  refused({0, -3, 12}, a, "async_a.begin[1] is -3");
  refused({0, std::numeric_limits<int64_t>::max(), 12}, a, "async_a.begin[2] is 12");
  refused({0, 9}, b, "async_b.begin[1] is 9, expected 10: the last chunk ends with n");
  refused({0, 10}, b, "async_b.begin[1] is 10, expected 9: the last chunk ends with k", 3);
  refused({0, 9}, c, "sink_c.begin[1] is 9, expected 12");
  refused({0, 12}, a, "async_a.dim is 2, expected m (1, also 0) or k (3)", PERSEID_CHUNK_N);
  refused({0, 10}, b, "async_b.dim is 1, expected n (2, also 0) or k (3)", PERSEID_CHUNK_M);
  refused({0, 12}, c, "sink_c.dim is 3, expected m (1, also 0) or n (2)", PERSEID_CHUNK_K);
  refused({0, 12}, a, "async_a.dim is 4", 4);

  perseid_async_operand chunks = chunks_of({});
  const int64_t begin[] = {0, 12};
  chunks.begin = begin;
  for (const int64_t count :
       {int64_t{0}, int64_t{-1}, int64_t{13}, int64_t{1} << 31, int64_t{1} << 62,
        std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
    chunks.count = count;
    expect_refused(chunks, a,
                   "async_a.count is " + std::to_string(count) + ", expected 1 to 12 chunks of m");
  }
  chunks.count = 1;
  chunks.begin = nullptr;
  expect_refused(chunks, a, "async_a.begin is NULL, expected 2 boundaries");
}

TEST(ChunkTables, OfEnormousAndEmptyDimensions) {
  Context context(1);
  Plan plan;
  auto desc = describe();
  desc.m = int64_t{1} << 32;
  desc.n = desc.k = 1;
  const int64_t begin[] = {0, desc.m};
  auto chunks = sized<perseid_async_operand>();
  chunks.begin = begin;
  chunks.count = int64_t{1} << 31;
  desc.async_a = &chunks;
  EXPECT_FAILS(perseid_matmul_plan_create(context.get(), &desc, plan.out()),
               PERSEID_INVALID_ARGUMENT, "async_a.count is 2147483648, expected 1 to 1048576");
  desc = describe();
  desc.m = 0;
  desc.async_a = &chunks;
  EXPECT_FAILS(perseid_matmul_plan_create(context.get(), &desc, plan.out()),
               PERSEID_INVALID_ARGUMENT, "async_a cuts m, which is 0; pass NULL");
  desc = describe();
  desc.n = 0;
  chunks = chunks_of({0, 12});
  const int64_t twelve[] = {0, 12};
  chunks.begin = twelve;
  desc.sink_c = &chunks;
  EXPECT_FAILS(perseid_matmul_plan_create(context.get(), &desc, plan.out()),
               PERSEID_INVALID_ARGUMENT, "sink_c is given, but c has no elements");
}

// ---- Executions

// c = a b with a cut along m, b along k, and c along n, in memory of its own.
struct Product {
  std::vector<float> a = waves(kM * kK, 0.3f), b = waves(kK * kN, 0.7f), c, expected;
  std::vector<uint32_t> a_signals = std::vector<uint32_t>(3), b_signals = std::vector<uint32_t>(2),
                        c_signals = std::vector<uint32_t>(5);
  perseid::Arrival arrival_a, arrival_b;
  perseid::Departure departure_c;
  Chunks rows{{0, 1, 7, 12}}, depths = Chunks::even(kK, 2, perseid::ChunkDim::kK),
                              columns = Chunks::even(kN, 5, perseid::ChunkDim::kN);
  perseid::Matmul plan;
  perseid::Workspace workspace;

  explicit Product(const perseid::Context& context, const char* implementation = nullptr)
      : c(kM * kN),
        expected(kM * kN),
        plan(context, {.m = kM,
                       .n = kN,
                       .k = kK,
                       .async_a = rows,
                       .async_b = depths,
                       .sink_c = columns,
                       .implementation = implementation}) {
    plan.reserve(workspace);
    arrival_a.signals = a_signals.data();
    arrival_b.signals = b_signals.data();
    departure_c.signals = c_signals.data();
    const perseid::Matmul plain(context,
                                {.m = kM, .n = kN, .k = kK, .implementation = implementation});
    perseid::Workspace scratch;
    plain.reserve(scratch);
    plain.execute(
        nullptr,
        {.a = {a.data(), {kM, kK}}, .b = {b.data(), {kK, kN}}, .c = {expected.data(), {kM, kN}}},
        scratch);
  }
  void set_epoch(uint32_t epoch) { arrival_a.epoch = arrival_b.epoch = departure_c.epoch = epoch; }
  void deliver_all(uint32_t epoch) {
    for (auto* signals : {&a_signals, &b_signals})
      for (uint32_t& signal : *signals) perseid::set_signal(&signal, epoch);
  }
  void execute() {
    plan.execute(nullptr,
                 {.a = {a.data(), {kM, kK}},
                  .b = {b.data(), {kK, kN}},
                  .c = {c.data(), {kM, kN}},
                  .arrival_a = arrival_a,
                  .arrival_b = arrival_b,
                  .departure_c = departure_c},
                 workspace);
  }
  void expect_right() {
    EXPECT_EQ(c, expected);
    for (uint32_t signal : c_signals) EXPECT_EQ(signal, departure_c.epoch);
  }
  // The status and the sentence of an execution that fails.
  void expect_fails(perseid_status status, const std::string& part) {
    try {
      execute();
      ADD_FAILURE() << "expected: " << part;
    } catch (const perseid::Error& error) {
      EXPECT_EQ(error.status(), status);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
};

TEST(Arrival, WrongOnesAreRefused) {
  const perseid::Context context = perseid::Context::cpu(1);
  Product product(context);
  const auto refused = [&](const std::string& part, const auto& change) {
    product.arrival_a = {.signals = product.a_signals.data()};
    product.arrival_b = {.signals = product.b_signals.data()};
    product.departure_c = {.signals = product.c_signals.data()};
    change();
    product.expect_fails(PERSEID_INVALID_ARGUMENT, part);
  };
  const auto odd = [](auto* word) {
    return reinterpret_cast<decltype(word)>(reinterpret_cast<uintptr_t>(word) + 2);
  };
  refused("matmul: arrival_a is NULL, expected the arrival of the plan's 3 chunks",
          [&] { product.arrival_a.signals = nullptr; });
  refused("departure_c is NULL, expected the signals of the plan's 5 chunks",
          [&] { product.departure_c.signals = nullptr; });
  refused("arrival_b.signals is at an address that is 2 bytes past a multiple of 4",
          [&] { product.arrival_b.signals = odd(product.arrival_b.signals); });
  refused("arrival_a.first_chunk is 3, expected 0 to 2",
          [&] { product.arrival_a.first_chunk = 3; });
  refused("arrival_a.first_chunk is -1", [&] { product.arrival_a.first_chunk = -1; });
  refused("arrival_b.first_chunk is 1, expected 0: k is summed in ascending order",
          [&] { product.arrival_b.first_chunk = 1; });
  refused("departure_c.first_chunk is 5", [&] { product.departure_c.first_chunk = 5; });
  refused("arrival_a.abort is at an address",
          [&] { product.arrival_a.abort = odd(product.a_signals.data()); });
  refused("arrival_a.epoch_ptr is at an address",
          [&] { product.arrival_a.epoch_ptr = odd(product.a_signals.data()); });
  refused("departure_c.epoch_ptr is at an address",
          [&] { product.departure_c.epoch_ptr = odd(product.a_signals.data()); });

  const perseid::Matmul plain(context, {.m = kM, .n = kN, .k = kK});
  perseid::Workspace workspace;
  plain.reserve(workspace);
  try {
    plain.execute(nullptr,
                  {.a = {product.a.data(), {kM, kK}},
                   .b = {product.b.data(), {kK, kN}},
                   .c = {product.c.data(), {kM, kN}},
                   .arrival_a = product.arrival_a},
                  workspace);
    ADD_FAILURE();
  } catch (const perseid::Error& error) {
    EXPECT_STREQ(
        error.what(),
        "matmul: arrival_a is given, but the plan was made without chunks of this operand; "
        "pass NULL");
  }
}

TEST(Arrival, EveryImplementationOfTheCpu) {
  const perseid::Context context = perseid::Context::cpu(2);
  for (const char* implementation : {"cpu:packed", "cpu:reference"}) {
    Product product(context, implementation);
    EXPECT_NE(product.plan.explain().find("3 chunks of m"), std::string::npos);
    product.set_epoch(1);
    product.arrival_a.deadline = product.arrival_b.deadline = 3ms;
    product.deliver_all(1);
    product.a_signals[2] = 0;
    product.expect_fails(PERSEID_TIMEOUT,
                         "matmul: chunk 2 of a: not arrived within 3 ms (its signal "
                         "is 0, the epoch 1)");
    EXPECT_EQ(product.c_signals, std::vector<uint32_t>(5));
    product.deliver_all(1);
    product.execute();
    product.expect_right();
  }
}

TEST(Arrival, ExecutingAllocatesNothing) {
  Context context(1);
  const std::vector<int64_t> begin = {0, 5, 12};
  const auto chunks = chunks_of(begin);
  auto desc = describe();
  desc.async_a = desc.sink_c = &chunks;
  Plan plan;
  ASSERT_EQ(perseid_matmul_plan_create(context.get(), &desc, plan.out()), PERSEID_OK);
  std::vector<std::byte> workspace(1 << 20);
  const std::vector<float> a = waves(kM * kK, 0.3f), b = waves(kK * kN, 0.7f);
  std::vector<float> c(kM * kN);
  const Tensor a_view(a.data(), {kM, kK}), b_view(b.data(), {kK, kN}), c_view(c.data(), {kM, kN});
  uint32_t here[2] = {4, 4}, gone[2] = {};
  auto args = sized<perseid_matmul_args>();
  args.a = a_view.dl();
  args.b = b_view.dl();
  args.c = c_view.dl();
  auto arrival = sized<perseid_arrival>();
  arrival.signals = here;
  arrival.epoch = 4;
  auto departure = sized<perseid_chunk_sink>();
  departure.signals = gone;
  departure.epoch = 4;
  args.arrival_a = &arrival;
  args.departure_c = &departure;
  const int64_t before = calls_allocated;
  ASSERT_EQ(counted([&] {
              return perseid_matmul_execute(plan.get(), &args, workspace.data(), workspace.size(),
                                            nullptr);
            }),
            PERSEID_OK)
      << perseid_last_error();
  EXPECT_EQ(calls_allocated, before);
  EXPECT_EQ(gone[1], 4u);
}

TEST(Arrival, RecordsAndAborts) {
  const perseid::Context context = perseid::Context::cpu(2);
  Product product(context);
  perseid_wait_record record{};
  uint32_t abort = 1;
  product.set_epoch(9);
  product.deliver_all(8);
  product.arrival_a.record = &record;
  product.arrival_b.abort = &abort;
  perseid::set_signal(&product.b_signals[0], 9);
  for (uint32_t& signal : product.a_signals) perseid::set_signal(&signal, 9);
  product.expect_fails(PERSEID_PEER_LOST,
                       "matmul: chunk 1 of b: not arrived when the abort word "
                       "was set (its signal is 8, the epoch 9)");
  EXPECT_EQ(record.status, PERSEID_PEER_LOST);
  EXPECT_EQ(record.rank, -1);
  EXPECT_EQ(record.operand, 1);
  EXPECT_EQ(record.chunk, 1);
  EXPECT_EQ(record.expected, 9u);
  EXPECT_EQ(record.seen, 8u);
  // What has arrived needs no wait, and an abort ends waits alone.
  product.deliver_all(9);
  product.execute();
  product.expect_right();
  EXPECT_EQ(record.status, PERSEID_OK);
  EXPECT_EQ(record.chunk, -1);
}

// A view of a temporary would dangle.
static_assert(std::is_constructible_v<perseid::ChunksView, const Chunks&>);
static_assert(!std::is_constructible_v<perseid::ChunksView, Chunks>);

TEST(Arrival, NothingIsAwaitedThatIsNotRead) {
  const perseid::Context context = perseid::Context::cpu(1);
  uint32_t never = 0;
  std::vector<float> c(kM * kN, 1), a(kM * kK), b(kK * kN);
  const Chunks depth = Chunks::even(kK, 1, perseid::ChunkDim::kK);
  const perseid::Matmul plan(context,
                             {.m = kM, .n = kN, .k = kK, .alpha = 0, .beta = 2, .async_a = depth});
  perseid::Workspace workspace;
  plan.reserve(workspace);
  plan.execute(nullptr,
               {.a = {a.data(), {kM, kK}},
                .b = {b.data(), {kK, kN}},
                .c = {c.data(), {kM, kN}},
                .arrival_a = {.signals = &never, .epoch = 1, .deadline = 1ms}},
               workspace);
  EXPECT_EQ(c, std::vector<float>(kM * kN, 2));
}

// ---- Epochs

// A producer that delivers epoch after epoch through 0, with the epoch by value or by address.
void run_epochs(uint32_t first, uint32_t count) {
  const perseid::Context context = perseid::Context::cpu(2);
  Product product(context);
  product.deliver_all(first - 1);
  std::vector<float> wanted_a = product.a;
  std::atomic<uint32_t> consumed{first - 1};
  std::thread producer([&] {
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t epoch = first + i;
      // The buffers are written again when the product before has read them.
      while (consumed.load(std::memory_order_acquire) != epoch - 1) std::this_thread::yield();
      const float scale = i % 2 == 0 ? 1.0f : -1.0f;
      for (size_t x = 0; x < wanted_a.size(); ++x) product.a[x] = scale * wanted_a[x];
      product.deliver_all(epoch);
    }
  });
  uint32_t wrong = 0;
  uint32_t epoch_in_memory = 0;
  product.arrival_b.epoch_ptr = &epoch_in_memory;
  for (uint32_t i = 0; i < count; ++i) {
    product.set_epoch(first + i);
    product.arrival_b.epoch = 77;  // not read
    epoch_in_memory = first + i;
    product.execute();
    const float scale = i % 2 == 0 ? 1.0f : -1.0f;
    for (size_t x = 0; x < product.c.size(); ++x)
      wrong += product.c[x] != scale * product.expected[x] ? 1 : 0;
    for (uint32_t signal : product.c_signals) wrong += signal != first + i ? 1 : 0;
    consumed.store(first + i, std::memory_order_release);
  }
  producer.join();
  EXPECT_EQ(wrong, 0u);
}

TEST(Epochs, Wrap) { run_epochs(0xffffffffu - 500, 1000); }
TEST(EpochsSweep, AHundredThousand) { run_epochs(0xffffffffu - 50'000, 100'000); }

// ---- Many products

// Several threads execute one plan on one context at once; producers deliver in any order.
TEST(Arrival, SeveralProductsAtOnce) {
  const perseid::Context context = perseid::Context::cpu(2);
  constexpr int kThreads = 4, kRounds = 25;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&context, t] {
      Product product(context);
      std::mt19937 random(static_cast<uint32_t>(t));
      for (uint32_t epoch = 1; epoch <= kRounds; ++epoch) {
        product.set_epoch(epoch);
        std::vector<uint32_t*> order;
        for (auto* signals : {&product.a_signals, &product.b_signals})
          for (uint32_t& signal : *signals) order.push_back(&signal);
        std::shuffle(order.begin(), order.end(), random);
        std::thread producer([&order, epoch, &random] {
          for (uint32_t* signal : order) {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
            perseid::set_signal(signal, epoch);
          }
        });
        product.execute();
        producer.join();
        product.expect_right();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

// d = (a b) e, where the second product consumes the rows of the first as they leave. Both run at
// once on one context, whose pool serves one of them: the other works alone, and nobody starves.
TEST(Arrival, ProductsStreamIntoOneAnother) {
  const perseid::Context context = perseid::Context::cpu(2);
  constexpr int64_t kRows = 96, kInner = 40, kMiddle = 300, kOut = 64, kChunks = 6;
  const std::vector<float> a = waves(kRows * kInner, 0.3f), b = waves(kInner * kMiddle, 0.7f),
                           e = waves(kMiddle * kOut, 0.11f);
  std::vector<float> c(kRows * kMiddle), d(kRows * kOut), expected(kRows * kOut);
  perseid::Workspace first_scratch, second_scratch;
  const Chunks rows = Chunks::even(kRows, kChunks);
  const perseid::Matmul first(context, {.m = kRows, .n = kMiddle, .k = kInner, .sink_c = rows});
  const perseid::Matmul second(context, {.m = kRows, .n = kOut, .k = kMiddle, .async_a = rows});
  const perseid::Matmul plain(context, {.m = kRows, .n = kOut, .k = kMiddle});
  first.reserve(first_scratch);
  second.reserve(second_scratch);
  std::vector<uint32_t> signals(kChunks);
  const auto multiply = [&](uint32_t epoch) {
    first.execute(nullptr,
                  {.a = {a.data(), {kRows, kInner}},
                   .b = {b.data(), {kInner, kMiddle}},
                   .c = {c.data(), {kRows, kMiddle}},
                   .departure_c = {.signals = signals.data(), .epoch = epoch, .first_chunk = 4}},
                  first_scratch);
  };
  multiply(1);
  plain.execute(nullptr,
                {.a = {c.data(), {kRows, kMiddle}},
                 .b = {e.data(), {kMiddle, kOut}},
                 .c = {expected.data(), {kRows, kOut}}},
                second_scratch);
  for (uint32_t epoch = 2; epoch < 40; ++epoch) {
    std::fill(c.begin(), c.end(), std::nanf(""));
    std::thread producer([&] { multiply(epoch); });
    second.execute(nullptr,
                   {.a = {c.data(), {kRows, kMiddle}},
                    .b = {e.data(), {kMiddle, kOut}},
                    .c = {d.data(), {kRows, kOut}},
                    .arrival_a = {.signals = signals.data(), .epoch = epoch, .first_chunk = 4}},
                   second_scratch);
    producer.join();
    ASSERT_EQ(d, expected) << epoch;
  }
}

// ---- Signals of the host

TEST(Signals, SetAndWait) {
  uint32_t signal = 0xfffffffeu, abort = 0;
  EXPECT_EQ(perseid_signal_wait(&signal, 0xfffffffeu, 1, nullptr), PERSEID_OK);
  EXPECT_FAILS(perseid_signal_wait(&signal, 0xffffffffu, 2'000'000, nullptr), PERSEID_TIMEOUT,
               "perseid_signal_wait: the signal is 4294967294, expected 4294967295, after 2 ms");
  std::thread producer([&] {
    std::this_thread::sleep_for(2ms);
    EXPECT_EQ(perseid_signal_set(&signal, 3), PERSEID_OK);
  });
  EXPECT_EQ(perseid_signal_wait(&signal, 1, 0, &abort), PERSEID_OK);
  producer.join();
  abort = 5;
  EXPECT_FAILS(perseid_signal_wait(&signal, 4, 0, &abort), PERSEID_PEER_LOST,
               "the signal is 3, expected 4, when the abort word was set");
  EXPECT_FAILS(perseid_signal_set(nullptr, 1), PERSEID_INVALID_ARGUMENT, "signal is NULL");
  EXPECT_FAILS(perseid_signal_wait(nullptr, 1, 0, nullptr), PERSEID_INVALID_ARGUMENT,
               "signal is NULL");
  auto* odd = reinterpret_cast<uint32_t*>(reinterpret_cast<uintptr_t>(&signal) + 1);
  EXPECT_FAILS(perseid_signal_wait(&signal, 1, 0, odd), PERSEID_INVALID_ARGUMENT,
               "abort is at an address that is 1 bytes past a multiple of 4");
}

// In the order of a stream, which the CPU has not: at once.
TEST(Signals, OfAStreamOnTheCpu) {
  perseid_context_t context = nullptr;
  ASSERT_EQ(perseid_context_create(nullptr, &context), PERSEID_OK);
  uint32_t signal = 6, epoch = 7;
  perseid_wait_record record{};
  perseid_arrival arrival{};
  arrival.struct_size = sizeof arrival;
  arrival.signals = &signal;
  arrival.epoch_ptr = &epoch;
  arrival.deadline_ns = 2'000'000;
  arrival.record = &record;
  EXPECT_FAILS(perseid_stream_signal_wait(context, &arrival, nullptr), PERSEID_TIMEOUT,
               "perseid_stream_signal_wait: chunk 0 of the signal: not arrived within 2 ms (its "
               "signal is 6, the epoch 7)");
  EXPECT_EQ(record.status, PERSEID_TIMEOUT);
  EXPECT_EQ(record.chunk, 0);
  EXPECT_EQ(record.expected, 7u);
  EXPECT_EQ(record.seen, 6u);
  EXPECT_EQ(perseid_stream_signal_set(context, &signal, 7, nullptr), PERSEID_OK);
  EXPECT_EQ(signal, 7u);
  EXPECT_EQ(perseid_stream_signal_wait(context, &arrival, nullptr), PERSEID_OK);
  EXPECT_EQ(record.status, PERSEID_OK);
  EXPECT_FAILS(perseid_stream_signal_set(context, nullptr, 1, nullptr), PERSEID_INVALID_ARGUMENT,
               "signal is NULL");
  EXPECT_FAILS(perseid_stream_signal_set(nullptr, &signal, 1, nullptr), PERSEID_INVALID_ARGUMENT,
               "context");
  EXPECT_FAILS(perseid_stream_signal_wait(context, nullptr, nullptr), PERSEID_INVALID_ARGUMENT,
               "arrival");
  arrival.signals = nullptr;
  EXPECT_FAILS(perseid_stream_signal_wait(context, &arrival, nullptr), PERSEID_INVALID_ARGUMENT,
               "arrival.signals is NULL");
  perseid_context_destroy(context);
}

// A sleeping wait is woken at once, and one that sleeps hardly uses its core.
TEST(Signals, AWaitSleeps) {
  uint32_t signal = 0;
  const auto cpu_time = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double before = cpu_time();
  EXPECT_EQ(perseid_signal_wait(&signal, 1, 300'000'000, nullptr), PERSEID_TIMEOUT);
  EXPECT_LT(cpu_time() - before, 0.1);
}

}  // namespace
