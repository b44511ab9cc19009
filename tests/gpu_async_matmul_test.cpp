// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul on a GPU over operands that arrive in chunks, in random orders and with random delays, and
// with outputs that leave in chunks: bit for bit the plain product. Chunks that never arrive end
// the wait. By wgmma, in each type, and by warp products; skipped where there is no GPU, the
// former where it is not of compute capability 9.0.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <tuple>

#include "cuda/matmul/tensor_core.hpp"
#include "cuda/runtime/signals.hpp"
#include "cuda/sm90/matmul.hpp"
#include "cuda/sm90/matmul_f32.hpp"
#include "cuda/sm90/matmul_f8.hpp"
#include "gpu_matmul_cases.hpp"

namespace perseid::internal {
namespace {

using matmul_cases::Case;
using matmul_cases::Layout;
using matmul_cases::Problem;
using testing_gpu::expect_ok;
using testing_gpu::Mirror;
using testing_gpu::PinnedWords;
using testing_gpu::Stream;
using tests::Array;
using namespace std::chrono_literals;

// Boundaries of `count` chunks of random sizes.
std::vector<int64_t> random_table(int64_t size, int64_t count, std::mt19937& random) {
  std::vector<int64_t> inner(static_cast<size_t>(size - 1));
  for (size_t i = 0; i < inner.size(); ++i) inner[i] = static_cast<int64_t>(i) + 1;
  std::shuffle(inner.begin(), inner.end(), random);
  std::vector<int64_t> table(inner.begin(), inner.begin() + count - 1);
  table.push_back(0);
  table.push_back(size);
  std::sort(table.begin(), table.end());
  return table;
}

// An operand or the output in chunks of one dimension, and the words of their signals.
struct Chunks {
  ChunkDim dim;
  std::vector<int64_t> begin;
  PinnedWords signals;
  int64_t first = 0;
  std::vector<std::byte> arrived = {};  // of an operand whose chunks are parts of lines

  Chunks(const cuda::Gpu& gpu, ChunkDim dimension, std::vector<int64_t> table, uint32_t initial)
      : dim(dimension), begin(std::move(table)), signals(gpu, begin.size() - 1, initial) {}
  int64_t count() const { return static_cast<int64_t>(begin.size()) - 1; }
  ChunkCut cut() const { return {dim, begin.data(), count()}; }
};

enum class Kernels { kSm90, kSm90F8, kSm90F32, kTensorCore };

class GpuAsyncMatmul : public testing_gpu::GpuTest, public testing::WithParamInterface<Kernels> {
 protected:
  GpuAsyncMatmul() : GpuTest(GetParam() == Kernels::kTensorCore ? 0 : 9) {}

  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    work_.emplace(*gpu_);
    delivery_.emplace(*gpu_);
  }

  // The case in the kernels' types: 8-bit operands lie along k, in whole vectors of 16.
  static Case typed(Case given) {
    given.dtype = given.out_dtype = GetParam() == Kernels::kSm90F32 ? DType::kF32 : DType::kBF16;
    if (GetParam() != Kernels::kSm90F8) return given;
    given.dtype = DType::kF8E4M3;
    given.k = round_up(given.k, 16);
    given.a = Layout::kRows;
    given.b = Layout::kColumns;
    return given;
  }

  struct Result {
    Array c;
    Status launched, finished;
    std::chrono::steady_clock::duration time{};  // from the launch to the end
  };

  // Copies `chunk` of the operand, then sets its signal, in stream order.
  void deliver(const Array& from, const Tensor& to, Chunks& chunks, int64_t chunk, int dim,
               uint32_t epoch) {
    const Tensor& source = from.tensor;
    const int64_t size = size_of(source.dtype), stride = source.stride[dim];
    const int64_t next = source.stride[3 - dim], lines = source.shape[3 - dim];
    const auto at = static_cast<size_t>(chunks.begin[chunk] * stride * size);
    const auto bytes =
        static_cast<size_t>((chunks.begin[chunk + 1] - chunks.begin[chunk]) * stride * size);
    const auto copy = [&](const std::byte* data, size_t first, size_t count) {
      expect_ok(cuda::copy(*gpu_, static_cast<std::byte*>(to.data) + first, data + first, count,
                           delivery_->handle()));
    };
    if (stride >= next) {
      copy(source.as<std::byte>(), at, bytes);
    } else {
      // A part of each line: all of them again, as far as they have arrived.
      chunks.arrived.resize(static_cast<size_t>(lines * next * size), std::byte{0xff});
      for (int64_t line = 0; line < lines; ++line) {
        const size_t first = at + static_cast<size_t>(line * next * size);
        std::copy_n(source.as<std::byte>() + first, bytes, chunks.arrived.begin() + first);
      }
      copy(chunks.arrived.data(), 0, chunks.arrived.size());
    }
    chunks.signals.set(static_cast<size_t>(chunk), epoch);
  }

  // Instead of a cluster: small tiles, of which some are split along k.
  static constexpr int kSplits = -1;
  // The kernels of one of the two.
  struct Plan {
    std::unique_ptr<cuda::Sm90Matmul> sm90;
    std::unique_ptr<cuda::Sm90F8Matmul> sm90_f8;
    std::unique_ptr<cuda::Sm90F32Matmul> sm90_f32;
    std::unique_ptr<cuda::TensorCoreMatmul> tensor_core;
  };
  // The product in `work_`, while `deliver_all` delivers. `plan` is used again where it is there.
  template <class Deliver>
  Result run(const Problem& problem, Chunks* a, Chunks* b, Chunks* c, uint32_t epoch,
             uint64_t deadline_ns, const uint32_t* abort, const Deliver& deliver_all,
             int cluster = 0, Plan* plan = nullptr) {
    Plan own;
    Plan& made = plan != nullptr ? *plan : own;
    MatmulProblem cut = problem.problem;
    if (a != nullptr) cut.chunks_a = a->cut();
    if (b != nullptr) cut.chunks_b = b->cut();
    if (c != nullptr) cut.chunks_c = c->cut();
    if (GetParam() == Kernels::kTensorCore) {
      // Its largest tiles, its smallest, or those that it chooses.
      const int32_t multiprocessors[] = {gpu_->facts().multiprocessors, INT32_MAX, 1};
      const auto config = cuda::choose_tensor_core_matmul(cut, multiprocessors[max(cluster, 0)],
                                                          gpu_->facts().shared_bytes);
      if (made.tensor_core == nullptr)
        expect_ok(cuda::TensorCoreMatmul::make(cut, config, *gpu_, &made.tensor_core));
      return run(*made.tensor_core, problem, a, b, c, epoch, deadline_ns, abort, deliver_all);
    }
    const int32_t multiprocessors = gpu_->facts().multiprocessors;
    const auto run_with = [&](cuda::Sm90MatmulConfig config, auto* matmul) {
      if (cluster > 0) {
        config.columns = 128;
        config.cluster = cluster;
        config.split_k = false;
      }
      using Matmul = typename std::remove_reference_t<decltype(*matmul)>::element_type;
      if (*matmul == nullptr) expect_ok(Matmul::make(cut, config, *gpu_, matmul));
      return run(**matmul, problem, a, b, c, epoch, deadline_ns, abort, deliver_all);
    };
    if (GetParam() == Kernels::kSm90F8)
      return run_with(cuda::choose_sm90_f8_matmul(cut, multiprocessors), &made.sm90_f8);
    if (GetParam() == Kernels::kSm90F32)
      return run_with(cuda::choose_sm90_f32_matmul(cut, multiprocessors), &made.sm90_f32);
    cuda::Sm90MatmulConfig config = cuda::choose_sm90_matmul(cut, multiprocessors);
    if (cluster != 0) {
      config.split_k = cluster == kSplits;
      config.consumers = config.split_k ? 1 : 2;
      config.columns = config.split_k ? 64 : 128;
      config.cluster = config.split_k ? 1 : cluster;
    }
    if (made.sm90 == nullptr) expect_ok(cuda::Sm90Matmul::make(cut, config, *gpu_, &made.sm90));
    return run(*made.sm90, problem, a, b, c, epoch, deadline_ns, abort, deliver_all);
  }
  template <class Matmul, class Deliver>
  Result run(const Matmul& matmul, const Problem& problem, Chunks* a, Chunks* b, Chunks* c,
             uint32_t epoch, uint64_t deadline_ns, const uint32_t* abort,
             const Deliver& deliver_all) {
    Array host_a = problem.a, host_b = problem.b, host_c = problem.c;
    if (a != nullptr) host_a.fill_all(tests::kNaN);
    if (b != nullptr) host_b.fill_all(tests::kNaN);
    Mirror gpu_a(*gpu_, host_a), gpu_b(*gpu_, host_b), gpu_c(*gpu_, host_c);
    MatmulArguments arguments = problem.arguments(gpu_c.tensor());
    arguments.a = gpu_a.tensor();
    arguments.b = gpu_b.tensor();
    const auto arrival = [&](const Chunks* chunks) {
      if (chunks == nullptr) return Arrival{};
      return Arrival{.signals = chunks->signals.data(),
                     .epoch = epoch,
                     .first = chunks->first,
                     .deadline_ns = deadline_ns,
                     .abort = abort};
    };
    arguments.arrival_a = arrival(a);
    arguments.arrival_b = arrival(b);
    if (c != nullptr)
      arguments.departure_c = {
          .signals = c->signals.mutable_data(), .epoch = epoch, .first = c->first};
    void* workspace = nullptr;
    expect_ok(cuda::allocate(*gpu_, matmul.workspace(), &workspace));
    const std::vector<uint32_t> poison(matmul.workspace() / 4, 0xdeadbeef);
    expect_ok(cuda::copy(*gpu_, workspace, poison.data(), matmul.workspace(), nullptr));
    Result result;
    const auto begin = std::chrono::steady_clock::now();
    result.launched = matmul.run(arguments, workspace, work_->handle());
    deliver_all(gpu_a.tensor(), gpu_b.tensor(), gpu_c.tensor());
    result.finished = cuda::synchronize(*gpu_, work_->handle());
    result.time = std::chrono::steady_clock::now() - begin;
    gpu_c.fetch();
    result.c = host_c;
    cuda::release(*gpu_, workspace);
    return result;
  }
  // The plain product, held to the reference, which takes minutes where it is `large`.
  Array plain(const Problem& problem, bool large = false, int cluster = 0) {
    const auto none = [](const Tensor&, const Tensor&, const Tensor&) {};
    Result result = run(problem, nullptr, nullptr, nullptr, 1, 0, nullptr, none, cluster);
    expect_ok(result.launched);
    expect_ok(result.finished);
    // 8-bit sums have larger errors (gpu_f8_matmul_test).
    if (!large && !is_float8(problem.given.dtype)) matmul_cases::expect_product(problem, result.c);
    return result.c;
  }

  std::optional<Stream> work_, delivery_;
};

std::string name_of_kernels(const testing::TestParamInfo<Kernels>& kernels) {
  constexpr const char* kNames[] = {"Sm90", "Sm90F8", "Sm90F32", "TensorCore"};
  return kNames[static_cast<int>(kernels.param)];
}
INSTANTIATE_TEST_SUITE_P(Kernels, GpuAsyncMatmul,
                         testing::Values(Kernels::kSm90, Kernels::kSm90F8, Kernels::kSm90F32,
                                         Kernels::kTensorCore),
                         name_of_kernels);

constexpr uint64_t kSecond = 1'000'000'000;

// Chunks of rows of a, columns of b, and depths of both; any pivot; arrival in any order.
TEST_P(GpuAsyncMatmul, RandomArrivals) {
  std::mt19937 random(1);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int seed = 0; seed < 60; ++seed) {
    const Case given =
        typed({.batch = 1,
               .m = 8 * draw(20, 120),
               .n = 8 * draw(20, 120),
               .k = 8 * draw(1, 60),
               .a = seed % 3 == 2 ? Layout::kColumns : Layout::kRows,
               .b = seed % 3 == 2 ? Layout::kRows : Layout::kColumns,
               .accumulation = seed % 2 == 0 ? Accumulation::kFast : Accumulation::kPromoted});
    const Problem problem(given);
    const Array expected = plain(problem);
    const bool depth = seed % 3 == 2;  // a M-major and b N-major: chunks of k are whole lines
    const auto epoch = static_cast<uint32_t>(random());
    const int64_t size_a = depth ? given.k : given.m, size_b = depth ? given.k : given.n;
    const auto most = [](int64_t size) { return std::min<int64_t>(size, 16); };
    Chunks a(*gpu_, depth ? ChunkDim::kK : ChunkDim::kM,
             random_table(size_a, draw(1, most(size_a)), random), epoch - 1);
    Chunks b(*gpu_, depth ? ChunkDim::kK : ChunkDim::kN,
             random_table(size_b, draw(1, most(size_b)), random), epoch - 1);
    if (!depth) {
      a.first = draw(0, a.count() - 1);
      b.first = draw(0, b.count() - 1);
    }
    const bool with_a = seed % 4 != 1, with_b = seed % 4 != 2;
    std::vector<std::pair<bool, int64_t>> deliveries;  // of a or of b, and which chunk
    for (int64_t i = 0; with_a && i < a.count(); ++i) deliveries.emplace_back(true, i);
    for (int64_t i = 0; with_b && i < b.count(); ++i) deliveries.emplace_back(false, i);
    std::shuffle(deliveries.begin(), deliveries.end(), random);
    const auto deliver_all = [&](const Tensor& to_a, const Tensor& to_b, const Tensor&) {
      for (const auto& [of_a, chunk] : deliveries) {
        if (draw(0, 3) == 0) std::this_thread::sleep_for(std::chrono::microseconds(draw(0, 300)));
        if (of_a) {
          deliver(problem.a, to_a, a, chunk, depth ? 2 : 1, epoch);
        } else {
          deliver(problem.b, to_b, b, chunk, depth ? 1 : 2, epoch);
        }
      }
    };
    // Results that leave, in other chunks.
    const bool departs = seed % 2 == 0, columns = seed % 4 < 2;
    Chunks c(*gpu_, columns ? ChunkDim::kN : ChunkDim::kM,
             random_table(columns ? given.n : given.m, draw(1, 16), random), epoch - 1);
    const Result result =
        run(problem, with_a ? &a : nullptr, with_b ? &b : nullptr, departs ? &c : nullptr, epoch,
            20 * kSecond, nullptr, deliver_all, seed % 5 == 0 ? 2 : 0);
    expect_ok(result.launched);
    expect_ok(result.finished);
    for (int64_t i = 0; departs && i < c.count(); ++i)
      EXPECT_EQ(c.signals.get(static_cast<size_t>(i)), epoch) << "chunk " << i << " of c";
    EXPECT_EQ(result.c.memory, expected.memory)
        << "seed " << seed << ": " << matmul_cases::describe(given);
  }
}

// Tiles that are split along k, alone and behind whole ones: chunks of every dimension, in any
// order, and chunks of c change no bit.
TEST_P(GpuAsyncMatmul, SplitTiles) {
  if (GetParam() == Kernels::kTensorCore) return;
  std::mt19937 random(9);
  constexpr ChunkDim kDims[] = {ChunkDim::kM, ChunkDim::kN, ChunkDim::kK};
  const auto none = [](const Tensor&, const Tensor&, const Tensor&) {};
  uint32_t epoch = 0xfffffff0;
  for (const auto& [m, n, k, cluster] : {std::tuple{200, 264, 4096, 0}, {520, 1160, 3072, kSplits}})
    for (const ChunkDim dim : kDims) {
      const bool depth = dim == ChunkDim::kK, of_a = dim != ChunkDim::kN;
      const Case given = typed({.m = m,
                                .n = n,
                                .k = k,
                                .a = depth ? Layout::kColumns : Layout::kRows,
                                .b = depth ? Layout::kRows : Layout::kColumns});
      const Problem problem(given);
      const Array expected = plain(problem, false, cluster);
      const int64_t size = depth ? k : of_a ? m : n;
      for (const int64_t count : {2, 9}) {
        Chunks operand(*gpu_, dim, random_table(size, count, random), epoch++);
        const bool departs = dim == ChunkDim::kN;
        Chunks c(*gpu_, ChunkDim::kM, random_table(m, count, random), epoch - 1);
        if (!depth) operand.first = count / 2;
        std::vector<int64_t> order(static_cast<size_t>(count));
        for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
        std::shuffle(order.begin(), order.end(), random);
        const auto deliver_all = [&](const Tensor& to_a, const Tensor& to_b, const Tensor&) {
          for (const int64_t chunk : order)
            if (of_a) {
              deliver(problem.a, to_a, operand, chunk, depth ? 2 : 1, epoch);
            } else {
              deliver(problem.b, to_b, operand, chunk, 2, epoch);
            }
        };
        const Result result =
            run(problem, of_a ? &operand : nullptr, of_a ? nullptr : &operand,
                departs ? &c : nullptr, epoch, 20 * kSecond, nullptr, deliver_all, cluster);
        expect_ok(result.launched);
        expect_ok(result.finished);
        EXPECT_TRUE(result.c.memory == expected.memory)
            << count << " chunks: " << matmul_cases::describe(given);
        // Chunks of c alone: split tiles come first.
        const Result leaving =
            run(problem, nullptr, nullptr, &c, ++epoch, kSecond, nullptr, none, cluster);
        expect_ok(leaving.finished);
        EXPECT_TRUE(leaving.c.memory == expected.memory);
        for (int64_t i = 0; i < count; ++i)
          EXPECT_EQ(c.signals.get(static_cast<size_t>(i)), epoch) << "chunk " << i;
      }
    }
}

// Each chunk of c is signalled once all of it is there, also while others are still missing.
TEST_P(GpuAsyncMatmul, Departures) {
  std::mt19937 random(2);
  for (const ChunkDim dim : {ChunkDim::kM, ChunkDim::kN})
    for (const Layout layout : {Layout::kRows, Layout::kColumns})
      for (const int64_t count : {1, 5, 40}) {
        const Case given = typed({.m = 1160, .n = 1032, .k = 264, .c = layout});
        const Problem problem(given);
        const Array expected = plain(problem);
        const uint32_t epoch = 0;  // the one after 2^32 - 1
        const int64_t size = dim == ChunkDim::kM ? given.m : given.n;
        Chunks c(*gpu_, dim, random_table(size, count, random), epoch - 1);
        c.first = count / 2;
        const auto none = [](const Tensor&, const Tensor&, const Tensor&) {};
        const Result result = run(problem, nullptr, nullptr, &c, epoch, kSecond, nullptr, none);
        expect_ok(result.launched);
        expect_ok(result.finished);
        EXPECT_EQ(result.c.memory, expected.memory);
        for (int64_t i = 0; i < count; ++i)
          EXPECT_EQ(c.signals.get(static_cast<size_t>(i)), epoch) << "chunk " << i;
      }
}

// Whoever sees the signal of a chunk finds all of its results.
TEST_P(GpuAsyncMatmul, ResultsAreThereWhenTheSignalIs) {
  // The first product has whole tiles, the second one split tiles.
  for (const auto& [m, n, k, cluster] :
       {std::tuple{8192, 2048, 4096, 0}, {520, 1160, 3072, kSplits}}) {
    const Problem problem(typed({.m = m, .n = n, .k = k}));
    const Array expected = plain(problem, true, cluster);
    for (const uint32_t epoch : {7, 8, 9}) {
      Chunks c(*gpu_, ChunkDim::kM, {0, m / 3, m / 2, m}, epoch - 1);
      Array taken = problem.c;
      Mirror copies(*gpu_, taken);
      const auto take_chunks = [&](const Tensor&, const Tensor&, const Tensor& from) {
        for (int64_t chunk = 0; chunk < c.count(); ++chunk) {
          const Arrival arrival{
              .signals = c.signals.data() + chunk, .epoch = epoch, .deadline_ns = 5 * kSecond};
          expect_ok(cuda::wait_for_signal(*gpu_, arrival, delivery_->handle()));
          const int64_t row = from.stride[1] * size_of(from.dtype);
          const auto at = static_cast<size_t>(c.begin[chunk] * row);
          const auto bytes = static_cast<size_t>((c.begin[chunk + 1] - c.begin[chunk]) * row);
          expect_ok(cuda::copy(*gpu_, copies.tensor().as<std::byte>() + at,
                               from.as<std::byte>() + at, bytes, delivery_->handle()));
        }
      };
      const Result result =
          run(problem, nullptr, nullptr, &c, epoch, kSecond, nullptr, take_chunks, cluster);
      expect_ok(result.launched);
      expect_ok(result.finished);
      expect_ok(cuda::synchronize(*gpu_, delivery_->handle()));
      copies.fetch();
      EXPECT_TRUE(taken.memory == expected.memory) << "epoch " << epoch;
    }
  }
}

// A chunk of rows leaves although the rows of the next one have not arrived.
TEST_P(GpuAsyncMatmul, LeavesBeforeTheNextArrives) {
  const Case given = typed({.m = 16384, .n = 1024, .k = 72});
  const Problem problem(given);
  const Array expected = plain(problem);
  std::vector<int64_t> table;
  for (int64_t row = 0; row <= given.m; row += 2048) table.push_back(row);
  Chunks a(*gpu_, ChunkDim::kM, table, 0), c(*gpu_, ChunkDim::kM, table, 0);
  bool in_time = true;
  const auto deliver_all = [&](const Tensor& to_a, const Tensor&, const Tensor&) {
    for (int64_t chunk = 0; chunk < a.count(); ++chunk) {
      deliver(problem.a, to_a, a, chunk, 1, 1);
      const auto until = std::chrono::steady_clock::now() + 5s;
      while (c.signals.get(static_cast<size_t>(chunk)) != 1 && in_time)
        in_time = std::chrono::steady_clock::now() < until;
    }
  };
  const Result result = run(problem, &a, nullptr, &c, 1, 20 * kSecond, nullptr, deliver_all);
  EXPECT_TRUE(in_time);
  expect_ok(result.finished);
  EXPECT_EQ(result.c.memory, expected.memory);
}

// PERSEID_TEST_TURNS times for a deadline, and for an abort: a chunk of rows, columns or depth
// never arrives. The wait ends and says which; no chunk of c that needs it leaves; the next product
// is right.
enum class Ending { kDeadline, kAbort, kRight };
TEST_P(GpuAsyncMatmul, DeadlinesAndAborts) {
  constexpr int64_t kChunks = 8;
  constexpr ChunkDim kDims[] = {ChunkDim::kM, ChunkDim::kN, ChunkDim::kK};
  std::vector<Problem> problems;
  std::vector<Array> expected;
  std::vector<std::vector<int64_t>> tables;
  for (const ChunkDim dim : kDims) {
    const bool depth = dim == ChunkDim::kK;
    const Case given = typed({.m = 800,
                              .n = 520,
                              .k = 264,
                              .a = depth ? Layout::kColumns : Layout::kRows,
                              .b = depth ? Layout::kRows : Layout::kColumns});
    const int64_t size = dim == ChunkDim::kM ? given.m : depth ? given.k : given.n;
    tables.emplace_back();
    for (int64_t chunk = 0; chunk <= kChunks; ++chunk)
      tables.back().push_back(chunk * size / kChunks);
    expected.push_back(plain(problems.emplace_back(given)));
  }
  // A plan, and the signals of its operand and its output.
  struct Call {
    Chunks operand, c;
    Plan plan;
    Call(const cuda::Gpu& gpu, ChunkDim dim, const std::vector<int64_t>& table, ChunkDim dim_c,
         const std::vector<int64_t>& table_c, uint32_t epoch)
        : operand(gpu, dim, table, epoch), c(gpu, dim_c, table_c, epoch) {}
  };
  std::map<std::tuple<size_t, bool, int>, Call> calls;
  uint32_t epoch = 0u - 20;
  for (int turn = 0; turn < testing_gpu::asked_count("PERSEID_TEST_TURNS", 18); ++turn) {
    const size_t kind = static_cast<size_t>(turn) % 3;
    const ChunkDim dim = kDims[kind];
    const bool depth = dim == ChunkDim::kK, of_rows = dim != ChunkDim::kN;
    const bool of_a = dim == ChunkDim::kM || (depth && turn / 3 % 2 == 1);
    const int cluster = turn / 6 % 2 + 1;
    Call& call =
        calls
            .try_emplace({kind, of_a, cluster}, *gpu_, dim, tables[kind],
                         of_rows ? ChunkDim::kM : ChunkDim::kN, tables[of_rows ? 0 : 1], epoch)
            .first->second;
    Chunks &operand = call.operand, &c = call.c;
    Chunks* const a = of_a ? &operand : nullptr;
    Chunks* const b = of_a ? nullptr : &operand;
    operand.first = depth ? 0 : turn % kChunks;
    const int64_t missing = (operand.first + 1 + turn % (kChunks - 1)) % kChunks;
    for (const Ending ending : {Ending::kDeadline, Ending::kAbort, Ending::kRight}) {
      ++epoch;
      PinnedWords abort(*gpu_, 1, 0);
      const auto deliver_all = [&](const Tensor& to_a, const Tensor& to_b, const Tensor&) {
        for (int64_t chunk = kChunks; chunk-- > 0;) {
          if (ending != Ending::kRight) {
            // Without the data, which could be late: another chunk would then be missing first.
            if (chunk != missing) operand.signals.set(static_cast<size_t>(chunk), epoch);
          } else if (of_a) {
            deliver(problems[kind].a, to_a, operand, chunk, depth ? 2 : 1, epoch);
          } else {
            deliver(problems[kind].b, to_b, operand, chunk, depth ? 1 : 2, epoch);
          }
        }
        if (ending == Ending::kAbort) abort.set(0, 1);
      };
      const Result result =
          run(problems[kind], a, b, &c, epoch,
              ending == Ending::kDeadline ? kSecond / 40 : 20 * kSecond,
              ending == Ending::kAbort ? abort.data() : nullptr, deliver_all, cluster, &call.plan);
      EXPECT_LT(result.time, 2s);
      expect_ok(result.launched);
      if (ending == Ending::kRight) {
        expect_ok(result.finished);
        EXPECT_TRUE(result.c.memory == expected[kind].memory) << "turn " << turn;
      } else {
        EXPECT_EQ(result.finished.code(),
                  ending == Ending::kAbort ? PERSEID_PEER_LOST : PERSEID_TIMEOUT);
        const std::string named =
            concatenate("matmul: chunk ", missing, " of ", of_a ? "a" : "b", ": not arrived");
        EXPECT_EQ(result.finished.sentence().substr(0, named.size()), named);
      }
      for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
        const bool signalled = c.signals.get(static_cast<size_t>(chunk)) == epoch;
        if (ending != Ending::kRight && !depth && chunk != missing) continue;
        EXPECT_EQ(signalled, ending == Ending::kRight) << "turn " << turn << " chunk " << chunk;
      }
    }
  }
}

// Signals in the order of streams: what one stream has written is there when the other goes on. A
// wait that fails says so once.
TEST_P(GpuAsyncMatmul, SignalsOfStreams) {
  PinnedWords signal(*gpu_, 1, 4);
  Array from({1000}, DType::kF32), to({1000}, DType::kF32);
  from.randomise(1);
  Mirror source(*gpu_, from), middle(*gpu_, to);
  for (uint32_t epoch = 5; epoch < 25; ++epoch) {
    const Arrival arrival{.signals = signal.data(), .epoch = epoch, .deadline_ns = 5 * kSecond};
    expect_ok(cuda::wait_for_signal(*gpu_, arrival, work_->handle()));
    expect_ok(
        cuda::copy(*gpu_, middle.tensor().data, source.tensor().data, 4000, delivery_->handle()));
    expect_ok(cuda::set_signal(*gpu_, signal.mutable_data(), epoch, delivery_->handle()));
    expect_ok(cuda::synchronize(*gpu_, work_->handle()));
    EXPECT_EQ(signal.get(0), epoch);
  }
  middle.fetch();
  EXPECT_EQ(to.values(), from.values());

  const Arrival late{.signals = signal.data(), .epoch = 100, .deadline_ns = 3'000'000};
  expect_ok(cuda::wait_for_signal(*gpu_, late, work_->handle()));
  const Status status = cuda::synchronize(*gpu_, work_->handle());
  EXPECT_EQ(status.code(), PERSEID_TIMEOUT);
  EXPECT_EQ(status.sentence().substr(0, 81),
            "perseid_stream_signal_wait: chunk 0 of the signal: not arrived within 3 ms (its s");
  expect_ok(cuda::synchronize(*gpu_, work_->handle()));
}

// Words that the GPU does not reach are refused.
TEST_P(GpuAsyncMatmul, Refusals) {
  const Case given = typed({.m = 256, .n = 264, .k = 64});
  const Problem problem(given);
  Chunks a(*gpu_, ChunkDim::kM, {0, 100, 256}, 1);
  const uint32_t pageable = 0;
  const auto none = [](const Tensor&, const Tensor&, const Tensor&) {};
  const Result result = run(problem, &a, nullptr, nullptr, 1, kSecond, &pageable, none);
  EXPECT_EQ(result.launched.code(), PERSEID_INVALID_ARGUMENT);
  EXPECT_EQ(result.launched.sentence().substr(0, 30), "abort is in memory that the GP");
}

}  // namespace
}  // namespace perseid::internal
