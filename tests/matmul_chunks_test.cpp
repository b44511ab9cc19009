// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul over operands that arrive in chunks, of every kernel table: the bits of the plain product
// for any chunks, order of arrival, delay, executor and number of workers; chunks of the result
// that are right when their signal is set; waits that end.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>

#include "cpu/kernel_table.hpp"
#include "matmul_chunks_tools.hpp"

namespace perseid::internal::cpu {
namespace {

using matmul_cases::BackwardExecutor;
using matmul_cases::kTypes;
using matmul_chunks::Arrivals;
using matmul_chunks::Case;
using matmul_chunks::Chunked;
using matmul_chunks::Draw;
using matmul_chunks::Layout;
using matmul_chunks::Problem;
using matmul_chunks::wait_until_idle;
using std::chrono::microseconds;
using tests::Array;

constexpr ChunkDim kNone = ChunkDim::kNone, kM = ChunkDim::kM, kN = ChunkDim::kN, kK = ChunkDim::kK;

const KernelTable& table() {
  std::string error;
  return *select_kernel_table(error);
}

Missing run(const MatmulProblem& problem, const MatmulArguments& arguments, Executor& executor) {
  Array workspace({static_cast<int64_t>(table().matmul_workspace(problem, executor.workers()))},
                  DType::kBool);
  Waits waits(problem.chunks_a, arguments.arrival_a, problem.chunks_b, arguments.arrival_b,
              problem.chunks_c, arguments.departure_c);
  table().matmul(problem, arguments,
                 {executor, workspace.tensor.as<std::byte>(), problem.async() ? &waits : nullptr});
  workspace.expect_guards();
  return waits.missing();
}

Array plain_result(const Problem& problem) {
  BackwardExecutor executor(1);
  Array c = problem.c;
  run(problem.problem, problem.arguments(c.tensor), executor);
  return c;
}

Case random_case(Draw& draw) {
  constexpr Layout kLayouts[] = {Layout::kRows,       Layout::kRows,   Layout::kColumns,
                                 Layout::kPaddedRows, Layout::kSpread, Layout::kOneForAll};
  const auto layout = [&](int64_t last) { return kLayouts[draw(0, last)]; };
  const int64_t type = draw(0, 5);
  Case given{.dtype = kTypes[type][0],
             .out_dtype = kTypes[type][1],
             .beta = draw.once_in(3) ? 0.5 : 0,
             .bias = draw.once_in(3),
             .a = layout(5),
             .b = layout(5),
             .c = layout(4),
             .own_c0 = draw.once_in(2)};
  switch (draw(0, 3)) {
    case 0:  // few rows, or few columns
      given.m = draw(1, 8), given.n = draw(1, 1200), given.k = draw(1, 700);
      if (draw.once_in(2)) std::swap(given.m, given.n);
      break;
    case 1:  // few blocks
      given.m = draw(9, 60), given.n = draw(9, 90), given.k = draw(1, 400);
      given.batch = draw(1, 3);
      break;
    default:  // many
      given.m = draw(100, 260), given.n = draw(300, 600), given.k = draw(1, 400);
      given.batch = draw.once_in(4) ? 2 : 1;
      if (draw.once_in(4)) std::swap(given.m, given.n);
  }
  return given;
}

void cut_at_random(Draw& draw, Chunked& chunked) {
  const Case& given = chunked.plain.given;
  const auto cut = [&](ChunkDim dim, int64_t size) {
    if (dim == kNone) return matmul_chunks::Cut{};
    return matmul_chunks::random_cut(draw, dim, size, draw.once_in(4) ? 40 : 6, chunked.epoch);
  };
  const auto one_of = [&](ChunkDim outer, int64_t size) {
    const int64_t drawn = draw(0, 4);
    return drawn == 0 ? cut(kNone, 0) : drawn < 3 ? cut(outer, size) : cut(kK, given.k);
  };
  chunked.cuts[0] = one_of(kM, given.m);
  chunked.cuts[1] = one_of(kN, given.n);
  if (draw.once_in(2)) chunked.cuts[2] = draw.once_in(2) ? cut(kM, given.m) : cut(kN, given.n);
}

// The chunk of c, once its signal is set, holds what it should.
void expect_departure(const Chunked& chunked, const Tensor& c, const Tensor& expected) {
  const matmul_chunks::Cut& cut = chunked.cuts[2];
  for (int64_t visit = 0; visit < cut.count(); ++visit) {
    const auto chunk = static_cast<size_t>((cut.first + visit) % cut.count());
    ASSERT_EQ(wait_for_signal(&cut.signals[chunk], chunked.epoch, deadline_after(60'000'000'000),
                              nullptr),
              WaitEnd::kArrived);
    const int dimension = matmul_chunks::dimension_of(2, cut.dim);
    const int64_t begin = cut.begin[chunk], end = cut.begin[chunk + 1];
    tests::expect_same_bits(matmul_chunks::part_of(c, dimension, begin, end),
                            matmul_chunks::part_of(expected, dimension, begin, end));
  }
}

void pause(int64_t most, Draw& draw) {
  if (most == 0) return;
  const auto time = microseconds(draw(0, most));
  if (time > microseconds(0)) std::this_thread::sleep_for(time);
}

// One problem with random chunks, delays and order of arrival.
void check_arrivals(uint64_t seed) {
  Draw draw(seed);
  const Problem plain(random_case(draw));
  const Array expected = plain_result(plain);
  // Epochs around 0 wrap.
  Chunked chunked(plain, static_cast<uint32_t>(draw(-2, 2)));
  cut_at_random(draw, chunked);
  chunked.withhold();
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + chunked.text());

  const auto order = arrival_order(chunked, static_cast<Arrivals>(draw(0, 3)), draw);
  const int64_t present = draw.once_in(3) ? draw(0, static_cast<int64_t>(order.size())) : 0;
  const int64_t delay = draw(0, 2) * 60;
  const auto deliver = [&](size_t i) {
    chunked.deliver(order[i].first, order[i].second, draw.once_in(2));
  };
  for (size_t i = 0; i < static_cast<size_t>(present); ++i) deliver(i);
  Array c = plain.c;
  std::thread producer([&] {
    for (auto i = static_cast<size_t>(present); i < order.size(); ++i) {
      pause(delay, draw);
      deliver(i);
    }
  });
  std::thread consumer([&] { expect_departure(chunked, c.tensor, expected.tensor); });
  std::unique_ptr<Executor> executor;
  if (seed % 4 == 0) {
    executor = std::make_unique<BackwardExecutor>(2);
  } else {
    executor = make_thread_pool(static_cast<int32_t>(seed % 4));
  }
  EXPECT_EQ(run(chunked.problem(), chunked.arguments(c.tensor), *executor).end, WaitEnd::kArrived);
  producer.join();
  consumer.join();
  EXPECT_TRUE(c.memory == expected.memory) << "other bits than the plain product";
}

void check_seeds(uint64_t first, uint64_t count) {
  for (uint64_t seed = first; seed < first + count && !testing::Test::HasFailure(); ++seed)
    check_arrivals(seed);
}

TEST(MatmulChunks, RandomArrivals) { check_seeds(1, 60); }
TEST(MatmulChunksSweep, RandomArrivals) { check_seeds(1000, 1000); }

Case two_blocks_of_everything() { return {.m = 130, .n = 530, .k = 300}; }

matmul_chunks::Cut even(ChunkDim dim, int64_t size, int64_t count, int64_t first = 0) {
  matmul_chunks::Cut cut{.dim = dim};
  for (int64_t c = 0; c <= count; ++c) cut.begin.push_back(c * size / count);
  cut.first = first;
  cut.signals.resize(static_cast<size_t>(count));
  return cut;
}

// A block whose chunks are here does not wait for others: with one worker, the chunks of c that
// need nothing else leave while the last chunk of a is still missing.
TEST(MatmulChunks, WorkBeginsWithWhatIsHere) {
  const Problem plain(two_blocks_of_everything());
  const Array expected = plain_result(plain);
  for (const int64_t first : {0, 2}) {
    Chunked chunked(plain, 7);
    chunked.cuts[0] = even(kM, plain.given.m, 4, first);
    chunked.cuts[2] = even(kM, plain.given.m, 4);
    chunked.withhold();
    for (int64_t visit = 0; visit < 3; ++visit) chunked.deliver(0, (first + visit) % 4, true);
    Array c = plain.c;
    std::thread product([&] {
      const std::unique_ptr<Executor> pool = make_thread_pool(1);
      EXPECT_EQ(run(chunked.problem(), chunked.arguments(c.tensor), *pool).end, WaitEnd::kArrived);
    });
    // The blocks that lie wholly in the first two visited chunks are complete before the last
    // comes.
    const auto chunk = static_cast<size_t>(first == 0 ? 0 : 3);
    EXPECT_EQ(wait_for_signal(&chunked.cuts[2].signals[chunk], 7, deadline_after(60'000'000'000),
                              nullptr),
              WaitEnd::kArrived);
    chunked.deliver(0, (first + 3) % 4, true);
    product.join();
    EXPECT_TRUE(c.memory == expected.memory);
  }
}

// With chunks along the depth, one worker works on all of c as far as it can: when the last chunk
// comes, every block has summed the chunks before it. A kernel that kept one block to its end would
// have the most of c still before it.
TEST(MatmulChunks, DepthsOfAllBlocksAdvanceTogether) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "it writes to what an idle worker has read, without synchronisation";
#endif
  Case given = two_blocks_of_everything();
  given.k = 1024;
  const Problem plain(given);
  const Array expected = plain_result(plain);
  Chunked chunked(plain, 1);
  chunked.cuts[0] = even(kK, given.k, 4);
  chunked.cuts[1] = even(kK, given.k, 4);
  chunked.withhold();
  const MatmulProblem problem = chunked.problem();
  Array c = plain.c;
  const MatmulArguments arguments = chunked.arguments(c.tensor);
  const std::unique_ptr<Executor> pool = make_thread_pool(1);
  Array workspace({static_cast<int64_t>(table().matmul_workspace(problem, 1))}, DType::kBool);
  Waits waits(problem.chunks_a, arguments.arrival_a, problem.chunks_b, arguments.arrival_b, {}, {});
  for (int64_t chunk = 0; chunk < 3; ++chunk)
    for (int operand : {0, 1}) chunked.deliver(operand, chunk, true);
  std::thread product([&] {
    table().matmul(problem, arguments, {*pool, workspace.tensor.as<std::byte>(), &waits});
  });
  // When the worker has nothing left to do but wait, what came first is taken away again: it has
  // been summed, and is not read any more.
  wait_until_idle(product);
  for (const Array* operand : {&chunked.a, &chunked.b}) {
    const int dimension = operand == &chunked.a ? 2 : 1;
    const Tensor used = matmul_chunks::part_of(operand->tensor, dimension, 0, given.k / 4);
    tests::for_each(used, [&](int64_t offset, int64_t) { tests::put(used, offset, tests::kNaN); });
  }
  for (int operand : {0, 1}) chunked.deliver(operand, 3, true);
  product.join();
  EXPECT_TRUE(c.memory == expected.memory);
}

// One chunk never comes: the execution ends at its deadline and names it, and nobody has waited
// much longer. Then the same product with the next epoch is right.
void check_end(uint64_t seed, bool aborts) {
  Draw draw(seed);
  Case given = two_blocks_of_everything();
  if (seed % 3 == 0) given.m = 5;
  static const Problem* problems[2] = {};
  const Problem*& plain = problems[given.m == 5];
  static const Array* results[2] = {};
  const Array*& expected = results[given.m == 5];
  if (plain == nullptr) {  // kept: a thousand seeds use them
    plain = new Problem(given);
    expected = new Array(plain_result(*plain));
  }
  Chunked chunked(*plain, static_cast<uint32_t>(draw(-1, 1)));
  const int operand = static_cast<int>(draw(0, 1));
  const bool along_depth = draw.once_in(2);
  const ChunkDim dim = along_depth ? kK : operand == 0 ? kM : kN;
  const int64_t size = along_depth ? given.k : operand == 0 ? given.m : given.n;
  const int64_t count = draw(1, std::min<int64_t>(size, 8));
  chunked.cuts[operand] = even(dim, size, count, along_depth ? 0 : draw(0, count - 1));
  chunked.withhold();
  const int64_t lost_visit = draw(0, count - 1);
  const auto chunk_of = [&](int64_t visit) {
    return (chunked.cuts[operand].first + visit) % count;
  };
  // Those after the lost one may come or not.
  for (int64_t visit = 0; visit < count; ++visit)
    if (visit < lost_visit || (visit > lost_visit && draw.once_in(2)))
      chunked.deliver(operand, chunk_of(visit), true);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + chunked.text());

  static const std::unique_ptr<Executor> pool = make_thread_pool(2);
  Array c = plain->c;
  uint32_t abort = 0;
  std::thread watcher;
  if (aborts)
    watcher = std::thread([&] {
      pause(300, draw);
      __atomic_store_n(&abort, 1, __ATOMIC_RELEASE);
    });
  const uint64_t deadline =
      aborts ? 60'000'000'000 : static_cast<uint64_t>(draw(0, 300)) * 1000 + 1;
  const Missing missing =
      run(chunked.problem(), chunked.arguments(c.tensor, deadline, &abort), *pool);
  if (aborts) watcher.join();
  EXPECT_EQ(missing.end, aborts ? WaitEnd::kAborted : WaitEnd::kTimeout);
  EXPECT_EQ(missing.operand, operand);
  EXPECT_EQ(missing.chunk, chunk_of(lost_visit));
  EXPECT_EQ(missing.expected, chunked.epoch);
  EXPECT_EQ(missing.seen, chunked.epoch - 1);
  c.expect_guards();

  ++chunked.epoch;
  for (int64_t visit = 0; visit < count; ++visit) chunked.deliver(operand, chunk_of(visit), true);
  Array again = plain->c;
  EXPECT_EQ(run(chunked.problem(), chunked.arguments(again.tensor), *pool).end, WaitEnd::kArrived);
  EXPECT_TRUE(again.memory == expected->memory);
}

TEST(MatmulChunks, Deadlines) {
  for (uint64_t seed = 1; seed <= 20; ++seed) check_end(seed, false);
}
TEST(MatmulChunks, Aborts) {
  for (uint64_t seed = 1; seed <= 20; ++seed) check_end(seed, true);
}
TEST(MatmulChunksSweep, DeadlinesAndAborts) {
  for (uint64_t seed = 100; seed < 1100 && !HasFailure(); ++seed) {
    check_end(seed, false);
    check_end(seed, true);
  }
}

}  // namespace
}  // namespace perseid::internal::cpu
