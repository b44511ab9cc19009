// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward over keys and values that arrive in chunks, of every kernel table: right by the
// float64 reference, and the same bits for any order of arrival, delay, executor and number of
// workers; keys that nobody sees are neither awaited nor read; waits that end.
#include <numeric>

#include "attention_cases.hpp"
#include "matmul_chunks_tools.hpp"

namespace perseid::internal::cpu {
namespace {

using namespace attention_cases;
using matmul_cases::BackwardExecutor;
using matmul_chunks::Cut;
using matmul_chunks::Draw;
using std::chrono::microseconds;

constexpr uint64_t kMinute = 60'000'000'000;

const KernelTable& table() {
  std::string error;
  return *select_kernel_table(error);
}

// A problem whose keys and values are cut into chunks, with the memory that they arrive in.
struct Chunked {
  Fixture& plain;
  AttentionProblem problem;
  Array key, value;  // what has arrived
  Cut cut;
  uint32_t epoch;
  std::vector<bool> needed;  // chunks that hold a key which some query sees

  Chunked(Fixture& fixture, Cut given, uint32_t first_epoch)
      : plain(fixture),
        problem(fixture.problem),
        key(fixture.key),
        value(fixture.value),
        cut(std::move(given)),
        epoch(first_epoch) {
    problem.chunks_kv = cut.chunks();
    needed.resize(static_cast<size_t>(cut.count()));
    for (int64_t b = 0; b < problem.batch; ++b) {
      const Sequence sequence = sequence_of(problem, plain.arguments, b);
      for (int64_t i = 0; i < sequence.q_len; ++i) {
        const KeyRange seen = visible_keys(problem, i, sequence.q_len, sequence.kv_len);
        for (size_t c = 0; c < needed.size(); ++c)
          if (sequence.kv_begin + seen.begin < cut.begin[c + 1] &&
              cut.begin[c] < sequence.kv_begin + seen.end && seen.begin < seen.end)
            needed[c] = true;
      }
    }
  }

  void withhold() {
    key.fill_all(kNaN);
    value.fill_all(kNaN);
    for (uint32_t& signal : cut.signals) signal = epoch - 1;
  }
  // Copies a chunk to where the kernel reads it. `wakes`: with a wake-up, or by a plain store.
  void deliver(int64_t chunk, bool wakes) {
    const auto c = static_cast<size_t>(chunk);
    for (const auto& [from, to] : {std::pair{&plain.key, &key}, {&plain.value, &value}}) {
      const int dimension = from->tensor.rank - 2;
      copy(matmul_chunks::part_of(from->tensor, dimension, cut.begin[c], cut.begin[c + 1]),
           matmul_chunks::part_of(to->tensor, dimension, cut.begin[c], cut.begin[c + 1]));
    }
    if (wakes) {
      set_signal(&cut.signals[c], epoch);
    } else {
      __atomic_store_n(&cut.signals[c], epoch, __ATOMIC_RELEASE);
    }
  }
  // In the order of visits.
  std::vector<int64_t> needed_chunks() const {
    std::vector<int64_t> chunks;
    for (int64_t visit = 0; visit < cut.count(); ++visit)
      if (const int64_t chunk = (cut.first + visit) % cut.count();
          needed[static_cast<size_t>(chunk)])
        chunks.push_back(chunk);
    return chunks;
  }

  Missing run(bool decode, Executor& executor, uint64_t deadline_ns = kMinute,
              const uint32_t* abort = nullptr) {
    plain.out.blank();
    plain.lse.blank();
    AttentionForward arguments = plain.forward_arguments();
    arguments.key = key.tensor;
    arguments.value = value.tensor;
    arguments.arrival_kv = {.signals = cut.signals.data(),
                            .epoch = epoch,
                            .first = cut.first,
                            .deadline_ns = deadline_ns,
                            .abort = abort};
    Waits waits(problem.chunks_kv, arguments.arrival_kv, {}, {}, {}, {});
    const std::vector<int64_t> chunks = needed_chunks();
    if (!chunks.empty()) {
      const auto [low, high] = std::minmax_element(chunks.begin(), chunks.end());
      waits.limit(0, {*low, *high});
    }
    const auto workspace =
        decode ? table().attention_decode_workspace : table().attention_forward_workspace;
    const auto kernel = decode ? table().attention_decode : table().attention_forward;
    Fixture::run_in(workspace(problem, executor.workers()), executor, [&](Execution execution) {
      execution.waits = &waits;
      kernel(problem, arguments, execution);
    });
    return waits.missing();
  }
};

struct Bits {
  Bytes out, lse;
  explicit Bits(const Fixture& fixture) : out(fixture.out.memory), lse(fixture.lse.memory) {}
  void expect_same(const Fixture& fixture, const char* what) const {
    EXPECT_TRUE(out == fixture.out.memory && lse == fixture.lse.memory) << what;
  }
};

Case random_case(Draw& draw, bool decode) {
  constexpr Layout kLayouts[] = {Layout::kBhsd, Layout::kBshd, Layout::kReversed, Layout::kSpread};
  const int64_t kv_heads = draw(1, 2), group = draw(1, 2);
  const int64_t q_len = decode ? draw(1, 4) : draw(1, 3) == 1 ? draw(1, 40) : draw(90, 300);
  const int64_t dims[] = {8, 16, 24, 40};
  const int64_t kv_len = draw.once_in(4) ? draw(1, 200) : draw(250, decode ? 2500 : 1300);
  Case test = make_case(kTypes[draw(0, 3)], draw(1, 2), kv_heads * group, kv_heads, q_len, kv_len,
                        dims[draw(0, 3)], dims[draw(0, 3)]);
  AttentionProblem& p = test.problem;
  p.grad_query = p.grad_key = p.grad_value = false;
  test.layout = kLayouts[draw(0, 3)];
  test.seed = static_cast<uint64_t>(draw(1, 1 << 30));
  p.causal = static_cast<Causal>(draw(0, 2));
  if (draw.once_in(3)) {
    p.window_left = draw(-1, 300);
    p.window_right = draw(-1, 300);
  }
  if (draw.once_in(4)) {
    p.ragged = true;
    p.q_len = p.kv_len = 0;
    set_ragged(test, {draw(0, q_len), draw(1, q_len)}, {draw(0, kv_len), draw(1, kv_len)});
  } else if (draw.once_in(4)) {
    p.kv_lens = true;
    for (int64_t b = 0; b < p.batch; ++b) test.kv_lens.push_back(draw(0, kv_len));
  }
  if (draw.once_in(5)) add_bias(test, p.dtype, {1, p.heads, p.q_len, p.kv_len}, false);
  if (draw.once_in(5)) p.dropout = 0.2;
  if (draw.once_in(5)) set_visible(test, {1, 1, p.q_len, p.kv_len});
  return test;
}

void pause(int64_t most, Draw& draw) {
  const auto time = microseconds(draw(0, most));
  if (time > microseconds(0)) std::this_thread::sleep_for(time);
}

// One problem with random chunks, delays and order of arrival.
void check_arrivals(uint64_t seed) {
  Draw draw(seed);
  const bool decode = draw.once_in(3);
  const Case given = random_case(draw, decode);
  Fixture fixture(given);
  const AttentionProblem& p = fixture.problem;
  // Epochs around 0 wrap.
  const auto epoch = static_cast<uint32_t>(draw(-2, 2));
  Chunked chunked(fixture,
                  matmul_chunks::random_cut(draw, ChunkDim::kKv, p.ragged ? p.total_kv : p.kv_len,
                                            draw.once_in(4) ? 40 : 6, epoch),
                  epoch);
  if (draw.once_in(3)) chunked.cut.first = 0;
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + text_of(given) +
               (decode ? " decode, " : ", ") + chunked.cut.text());

  // All present.
  for (uint32_t& signal : chunked.cut.signals) signal = epoch;
  BackwardExecutor one(1);
  ASSERT_EQ(chunked.run(decode, one).end, WaitEnd::kArrived);
  fixture.compare_forward();
  const Bits expected(fixture);
  if (decode || chunked.cut.first == 0) {
    fixture.out.blank();
    fixture.lse.blank();
    decode ? fixture.run_decode(table(), one) : fixture.run_forward(table(), one);
    expected.expect_same(fixture, "other bits than the plan without chunks");
  }

  chunked.withhold();
  std::vector<int64_t> order = chunked.needed_chunks();
  const int64_t kind = draw(0, 3);
  if (kind == 1) std::reverse(order.begin(), order.end());
  if (kind > 1) std::shuffle(order.begin(), order.end(), draw.engine());
  // Those that nobody sees may come at any time, or never.
  if (draw.once_in(2))
    for (size_t c = 0; c < chunked.needed.size(); ++c)
      if (!chunked.needed[c])
        order.insert(order.begin() + draw(0, static_cast<int64_t>(order.size())),
                     static_cast<int64_t>(c));
  const auto present =
      static_cast<size_t>(draw.once_in(3) ? draw(0, static_cast<int64_t>(order.size())) : 0);
  const int64_t delay = draw(0, 2) * 60;
  for (size_t i = 0; i < present; ++i) chunked.deliver(order[i], draw.once_in(2));
  std::thread producer([&] {
    for (size_t i = present; i < order.size(); ++i) {
      pause(delay, draw);
      chunked.deliver(order[i], draw.once_in(2));
    }
  });
  std::unique_ptr<Executor> executor;
  if (seed % 4 == 0) {
    executor = std::make_unique<BackwardExecutor>(2);
  } else {
    executor = make_thread_pool(static_cast<int32_t>(seed % 4));
  }
  EXPECT_EQ(chunked.run(decode, *executor).end, WaitEnd::kArrived);
  producer.join();
  expected.expect_same(fixture, "other bits than with all chunks present");
}

void check_seeds(uint64_t first, uint64_t count) {
  for (uint64_t seed = first; seed < first + count && !testing::Test::HasFailure(); ++seed)
    check_arrivals(seed);
}

TEST(AttentionChunks, RandomArrivals) { check_seeds(1, 80); }
TEST(AttentionChunksSweep, RandomArrivals) { check_seeds(1000, 1000); }

Cut even(int64_t size, int64_t count, int64_t first) {
  Cut cut{.dim = ChunkDim::kKv, .first = first};
  for (int64_t c = 0; c <= count; ++c) cut.begin.push_back(c * size / count);
  cut.signals.resize(static_cast<size_t>(count));
  return cut;
}

Case several_blocks(int64_t kv_len) {
  Case test = make_case(DType::kF32, 1, 2, 1, 200, kv_len, 16, 16);
  test.problem.grad_query = test.problem.grad_key = test.problem.grad_value = false;
  return test;
}

// One worker works on all queries as far as it can: when the last chunk comes, every block of them
// has used the chunks before it. A kernel that kept one block to its end would have the most of the
// work still before it.
TEST(AttentionChunks, AllQueriesAdvanceTogether) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "it writes to what an idle worker has read, without synchronisation";
#endif
  for (const int64_t first : {0, 2}) {
    Fixture fixture(several_blocks(1024));
    Chunked chunked(fixture, even(1024, 4, first), 1);
    chunked.cut.signals.assign(4, 1);
    const std::unique_ptr<Executor> pool = make_thread_pool(1);
    ASSERT_EQ(chunked.run(false, *pool).end, WaitEnd::kArrived);
    const Bits expected(fixture);
    chunked.withhold();
    for (int64_t visit = 0; visit < 3; ++visit) chunked.deliver((first + visit) % 4, true);
    std::thread work([&] { EXPECT_EQ(chunked.run(false, *pool).end, WaitEnd::kArrived); });
    // When the worker has nothing left to do but wait, what came first is taken away again: its
    // values, which are read where they are, have been used.
    matmul_chunks::wait_until_idle(work);
    for (int64_t visit = 0; visit < 3; ++visit) {
      const int64_t chunk = (first + visit) % 4;
      const Tensor used =
          matmul_chunks::part_of(chunked.value.tensor, 2, 256 * chunk, 256 * (chunk + 1));
      for_each(used, [&](int64_t offset, int64_t) { put(used, offset, kNaN); });
    }
    chunked.deliver((first + 3) % 4, true);
    work.join();
    expected.expect_same(fixture, "a block waited with chunks that were present");
  }
}

// One chunk never comes: the execution ends at its deadline, or at an abort, and names it. Then the
// same with the next epoch is right.
void check_end(uint64_t seed, bool aborts) {
  Draw draw(seed);
  const bool decode = draw.once_in(2);
  Case given = several_blocks(1100);
  if (decode) given.problem.q_len = 3;
  // Under a mask some chunks are seen by nobody: they are not missing.
  if (draw.once_in(2)) {
    given.problem.causal = Causal::kTopLeft;
    given.problem.kv_len = 700;
    given.problem.window_left = draw(0, 400);
  }
  given.bits_alone = true;
  Fixture fixture(given);
  const int64_t count = draw(1, 8);
  Chunked chunked(fixture, even(given.problem.kv_len, count, draw(0, count - 1)),
                  static_cast<uint32_t>(draw(-1, 1)));
  chunked.cut.signals.assign(chunked.cut.signals.size(), chunked.epoch);
  static const std::unique_ptr<Executor> pool = make_thread_pool(2);
  ASSERT_EQ(chunked.run(decode, *pool).end, WaitEnd::kArrived);
  const Bits expected(fixture);

  chunked.withhold();
  const std::vector<int64_t> needed = chunked.needed_chunks();
  const auto lost = static_cast<size_t>(draw(0, static_cast<int64_t>(needed.size()) - 1));
  for (size_t i = 0; i < needed.size(); ++i)
    if (i < lost || (i > lost && draw.once_in(2))) chunked.deliver(needed[i], true);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + chunked.cut.text());
  uint32_t abort = 0;
  std::thread watcher;
  if (aborts)
    watcher = std::thread([&] {
      pause(300, draw);
      __atomic_store_n(&abort, 1, __ATOMIC_RELEASE);
    });
  const uint64_t deadline = aborts ? kMinute : static_cast<uint64_t>(draw(0, 300)) * 1000 + 1;
  const Missing missing = chunked.run(decode, *pool, deadline, &abort);
  if (aborts) watcher.join();
  EXPECT_EQ(missing.end, aborts ? WaitEnd::kAborted : WaitEnd::kTimeout);
  EXPECT_EQ(missing.operand, 0);
  EXPECT_EQ(missing.chunk, needed[lost]);
  EXPECT_EQ(missing.expected, chunked.epoch);
  EXPECT_EQ(missing.seen, chunked.epoch - 1);
  fixture.out.expect_guards();

  ++chunked.epoch;
  for (const int64_t chunk : needed) chunked.deliver(chunk, true);
  EXPECT_EQ(chunked.run(decode, *pool).end, WaitEnd::kArrived);
  expected.expect_same(fixture, "other bits after a wait that ended");
}

TEST(AttentionChunks, Deadlines) {
  for (uint64_t seed = 1; seed <= 20; ++seed) check_end(seed, false);
}
TEST(AttentionChunks, Aborts) {
  for (uint64_t seed = 1; seed <= 20; ++seed) check_end(seed, true);
}
TEST(AttentionChunksSweep, DeadlinesAndAborts) {
  for (uint64_t seed = 100; seed < 1100 && !HasFailure(); ++seed) {
    check_end(seed, false);
    check_end(seed, true);
  }
}

}  // namespace
}  // namespace perseid::internal::cpu
