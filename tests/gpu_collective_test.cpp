// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranks on GPUs: products over ranks bit for bit, and a rank that takes no part.
#include <random>

#include "gpu_collective_tools.hpp"
#include "overlap_reports.hpp"

namespace {

using namespace collective_tools;
using perseid::AllGatherMatmul;
using perseid::ChunkDim;
using perseid::Fusion;
using perseid::Matmul;
using perseid::MatmulReduce;

// A rank that waits in vain fails its case instead of the whole program's time limit.
constexpr auto kDeadline = 5s;

class GpuRanks : public RanksOfGpus {};
INSTANTIATE_TEST_SUITE_P(Ranks, GpuRanks, testing::Values(2, 3, 4),
                         testing::PrintToStringParamName());

struct Gathering {
  DType dtype = perseid::bf16;
  ChunkDim dim = ChunkDim::kM;
  int64_t batch = 0;
  std::vector<int64_t> shards = {};
  int64_t other = 0;  // k, or m where k is gathered
  int64_t n = 0;
  int64_t chunks = 1;
  bool in_place = false;
  Fusion fusion = Fusion::kFused;
  bool sliced = false;                  // the last shard comes in slices of k
  Layout layout = Layout::kSideBySide;  // of the results
};

// Several executions with other operands, two products each, the second with a bias. The shards of
// more ranks than those that are given are those of the first ones again.
void expect_bitwise(Gathering problem, const Group& group, const Context& context) {
  problem.shards = for_ranks(problem.shards, group.size());
  const bool along_k = problem.dim == ChunkDim::kK;
  const int32_t rank = group.rank();
  int64_t extent = 0, begin = 0;
  for (size_t r = 0; r < problem.shards.size(); ++r) {
    if (r == static_cast<size_t>(rank)) begin = extent;
    extent += problem.shards[r];
  }
  const int64_t size = problem.shards[static_cast<size_t>(rank)];
  const int64_t m = along_k ? problem.other : extent, k = along_k ? extent : problem.other;
  const int64_t n[] = {problem.n + 8 * rank, 24};
  const AllGatherMatmul plan(context, group,
                             {.dtype = problem.dtype,
                              .gather_dim = problem.dim,
                              .batch = std::max<int64_t>(problem.batch, 1),
                              .m = along_k ? m : size,
                              .k = along_k ? size : k,
                              .products = {{.n = n[0]}, {.n = n[1], .bias = true}},
                              .chunks = problem.chunks,
                              .fusion = problem.fusion});
  if (problem.sliced && !are_hosts()) {
    EXPECT_NE(plan.explain().find("slices of k"), std::string::npos) << plan.explain();
  }
  const GpuWorkspace workspace(context, plan);
  for (uint64_t repeat = 1; repeat <= 4; ++repeat) {
    const auto matrix = [&](int64_t rows, int64_t columns, uint64_t seed) {
      return Matrix::random(problem.batch > 0 ? std::vector<int64_t>{problem.batch, rows, columns}
                                              : std::vector<int64_t>{rows, columns},
                            problem.dtype, seed * 100 + repeat);
    };
    const auto own = static_cast<uint64_t>(rank);
    const Matrix a = matrix(m, k, 1);
    const Matrix b[] = {matrix(k, n[0], 3 + own), matrix(k, n[1], 13 + own)};
    const Matrix bias = Matrix::random({n[1]}, problem.dtype, repeat);
    const Matrix wanted[] = {gpu_product(context, a, b[0], problem.dtype, nullptr, problem.layout),
                             gpu_product(context, a, b[1], problem.dtype, &bias, problem.layout)};
    const Matrix part = part_of(a, along_k ? -1 : -2, begin, begin + size);
    const OnGpu shard(context, part), b0(context, b[0]), b1(context, b[1]), added(context, bias),
        gathered(context, Matrix(a.shape, problem.dtype));
    const ResultOnGpu c0(context, wanted[0].shape, problem.dtype, problem.layout),
        c1(context, wanted[1].shape, problem.dtype, problem.layout);
    if (problem.in_place) context.copy(plan.shard().data(), part.bytes.data(), part.bytes.size());
    plan.execute({.a = problem.in_place ? plan.shard() : shard.tensor(),
                  .b = {b0.tensor(), b1.tensor()},
                  .bias = {{}, added.tensor()},
                  .c = {c0.tensor(), c1.tensor()},
                  .gathered = gathered.tensor(),
                  .deadline = kDeadline},
                 workspace.bytes());
    context.synchronize();
    EXPECT_EQ(c0.get().bytes, wanted[0].bytes) << "rank " << rank << ", execution " << repeat;
    EXPECT_EQ(c1.get().bytes, wanted[1].bytes) << "rank " << rank << ", execution " << repeat;
    EXPECT_EQ(gathered.get().bytes, a.bytes) << "rank " << rank << ", execution " << repeat;
  }
}

void expect_all_bitwise(const std::vector<Gathering>& problems, const Group& group,
                        const Context& context) {
  for (const Gathering& problem : problems) {
    SCOPED_TRACE(testing::Message()
                 << "dtype " << static_cast<int>(problem.dtype) << ", shards " << problem.shards[0]
                 << " " << problem.shards[1] << ", other " << problem.other << ", n " << problem.n
                 << ", chunks " << problem.chunks << ", batch " << problem.batch);
    expect_bitwise(problem, group, context);
  }
}

TEST_P(GpuRanks, GatherBitForBitAsTheProductOfTheGatheredOperand) {
  on_gpus([](const Group& group, const Context& context) {
    expect_all_bitwise({{.shards = {512, 512}, .other = 256, .n = 512},
                        {.shards = {1000, 24}, .other = 520, .n = 264, .chunks = 3},
                        {.shards = {77, 300}, .other = 64, .n = 136, .chunks = 2},
                        {.shards = {0, 130}, .other = 64, .n = 136},
                        {.dtype = perseid::f16, .shards = {640, 640}, .other = 128, .n = 256}},
                       group, context);
  });
}

// Rows that are no whole vectors, other types, and products that wait for all shards.
TEST_P(GpuRanks, GatherRowsOfAnyLengthAndUnfused) {
  on_gpus([](const Group& group, const Context& context) {
    expect_all_bitwise(
        {{.shards = {33, 20}, .other = 51, .n = 17, .chunks = 2},
         {.dtype = perseid::f32, .shards = {130, 70}, .other = 48, .n = 40},
         {.dtype = perseid::f64, .shards = {65, 70}, .other = 33, .n = 16},
         {.shards = {256, 128}, .other = 64, .n = 128, .chunks = 2, .fusion = Fusion::kUnfused}},
        group, context);
  });
}

TEST_P(GpuRanks, WriteResultsOfAnyStrides) {
  on_gpus([](const Group& group, const Context& context) {
    for (const Layout layout : {Layout::kByColumns, Layout::kApart})
      expect_all_bitwise(
          {{.shards = {512, 520}, .other = 256, .n = 512, .chunks = 2, .layout = layout},
           {.shards = {77, 300}, .other = 64, .n = 136, .layout = layout},
           {.dim = ChunkDim::kK, .shards = {64, 128}, .other = 200, .n = 136, .layout = layout},
           {.batch = 2, .shards = {130, 70}, .other = 64, .n = 64, .layout = layout},
           {.dtype = perseid::f32, .shards = {130, 70}, .other = 48, .n = 40, .layout = layout},
           {.shards = {256, 128},
            .other = 64,
            .n = 128,
            .fusion = Fusion::kUnfused,
            .layout = layout}},
          group, context);
  });
}

// The transfer takes longer than the product.
TEST_P(GpuRanks, GatherTheLastShardInSlices) {
  if (ranks_share_a_gpu()) GTEST_SKIP() << kOwnGpus;
  if (GetParam() > 2) GTEST_SKIP() << "other shards would not be sliced";
  on_gpus([](const Group& group, const Context& context) {
    expect_all_bitwise({{.shards = {2048, 1024}, .other = 2048, .n = 128, .sliced = true},
                        // More rows than a wave of tiles has.
                        {.shards = {5600, 5504}, .other = 1024, .n = 1024, .sliced = true},
                        {.dtype = perseid::f16,
                         .shards = {1500, 2100},
                         .other = 1160,
                         .n = 96,
                         .chunks = 40,
                         .in_place = true,
                         .sliced = true}},
                       group, context);
  });
}

TEST_P(GpuRanks, GatherInPlaceOfABatchAndAlongColumns) {
  on_gpus([](const Group& group, const Context& context) {
    expect_all_bitwise(
        {{.shards = {512, 256}, .other = 256, .n = 512, .chunks = 2, .in_place = true},
         {.batch = 3, .shards = {100, 156}, .other = 64, .n = 128, .chunks = 2},
         {.dim = ChunkDim::kK, .shards = {192, 320}, .other = 300, .n = 256, .chunks = 2}},
        group, context);
  });
}

// Small whole numbers, whose sums are exact.
Matrix whole_numbers(int64_t rows, int64_t columns, DType dtype, int64_t seed) {
  Matrix matrix({rows, columns}, dtype);
  for (size_t i = 0; i < static_cast<size_t>(rows * columns); ++i) {
    const auto value = static_cast<float>((static_cast<int64_t>(i) * 7 + seed * 13) % 31 - 15);
    if (dtype == perseid::f32) {
      std::memcpy(matrix.at(i), &value, sizeof value);
    } else {
      const uint16_t half = round_to_bf16(value);
      std::memcpy(matrix.at(i), &half, sizeof half);
    }
  }
  return matrix;
}

Matrix sum_of(const Matrix& a, const Matrix& b) {
  Matrix sum(a.shape, a.dtype);
  for (size_t i = 0; i < a.bytes.size() / static_cast<size_t>(bytes_of(a.dtype)); ++i) {
    if (a.dtype == perseid::f32) {
      const float total = a.value(i) + b.value(i);
      std::memcpy(sum.at(i), &total, sizeof total);
      continue;
    }
    const auto widened = [i](const Matrix& matrix) {
      uint16_t half = 0;
      std::memcpy(&half, matrix.bytes.data() + 2 * i, 2);
      const uint32_t bits = uint32_t{half} << 16;
      float value = 0;
      std::memcpy(&value, &bits, 4);
      return value;
    };
    const uint16_t half = round_to_bf16(widened(a) + widened(b));
    std::memcpy(sum.at(i), &half, sizeof half);
  }
  return sum;
}

void append(const Matrix& rows, Matrix* to) {
  to->shape[0] += rows.shape[0];
  to->bytes.insert(to->bytes.end(), rows.bytes.begin(), rows.bytes.end());
}

// One row each, odd sizes, and more than goes in one piece.
TEST_P(GpuRanks, GatherAndReduceTensors) {
  if (ranks_share_a_gpu()) GTEST_SKIP() << kOwnGpus;
  on_gpus([](const Group& group, const Context& context) {
    const int32_t rank = group.rank(), ranks = group.size();
    for (const DType dtype : {perseid::bf16, perseid::f32})
      for (const auto& [rows, columns] :
           {std::pair<int64_t, int64_t>{1, 1}, {7, 33}, {5000, 4100}}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << columns);
        std::vector<Matrix> inputs, uneven;
        for (int32_t r = 0; r < ranks; ++r) {
          inputs.push_back(whole_numbers(rows, columns, dtype, r));
          uneven.push_back(whole_numbers(rows + r * 3, columns, dtype, 10 + r));
        }
        const OnGpu input(context, inputs[static_cast<size_t>(rank)]),
            shard(context, uneven[static_cast<size_t>(rank)]);
        Matrix gathered = uneven[0], sum = inputs[0];
        for (size_t r = 1; r < inputs.size(); ++r) {
          append(uneven[r], &gathered);
          sum = sum_of(sum, inputs[r]);
        }
        const OnGpu all(context, Matrix(gathered.shape, dtype));
        group.all_gather(shard.tensor(), all.tensor());
        EXPECT_EQ(all.get().bytes, gathered.bytes);

        const Matrix own = part_of(sum, 0, rank * rows / ranks, (rank + 1) * rows / ranks);
        const OnGpu part(context, Matrix(own.shape, dtype)),
            total(context, Matrix(sum.shape, dtype));
        group.reduce_scatter(input.tensor(), part.tensor());
        EXPECT_EQ(part.get().bytes, own.bytes);
        group.all_reduce(input.tensor(), total.tensor());
        EXPECT_EQ(total.get().bytes, sum.bytes);
        group.all_reduce(input.tensor(), input.tensor());
        EXPECT_EQ(input.get().bytes, sum.bytes);
      }
    // Calls that differ are refused on all ranks, and the group goes on.
    const OnGpu small(context, whole_numbers(2, 2 + rank, perseid::f32, 1));
    EXPECT_EQ(ended([&] { group.all_reduce(small.tensor(), small.tensor()); }).status,
              PERSEID_INVALID_ARGUMENT);
    group.barrier();
  });
}

// Many executions in flight, of two plans in turns, without a synchronisation between them.
TEST_P(GpuRanks, RunBackToBack) {
  on_gpus([](const Group& group, const Context& context) {
    const int32_t rank = group.rank(), ranks = group.size();
    const int64_t m = 512, n = 256, k = 128;
    const AllGatherMatmul gather(
        context, group,
        {.dtype = perseid::bf16, .m = m, .k = k, .products = {{.n = n}}, .fusion = Fusion::kFused});
    const MatmulReduce reduce(
        context, group,
        {.dtype = perseid::bf16, .m = m * ranks, .n = k, .k = n, .fusion = Fusion::kFused});
    const GpuWorkspace first(context, gather), second(context, reduce);
    const Matrix a = Matrix::random({m * ranks, k}, perseid::bf16, 1);
    const Matrix b = Matrix::random({k, n}, perseid::bf16, 2);
    const Matrix d = Matrix::random({n, k}, perseid::bf16, 3);
    const OnGpu shard(context, part_of(a, 0, rank * m, (rank + 1) * m)), right(context, b),
        down(context, d), c(context, Matrix({m * ranks, n}, perseid::bf16)),
        out(context, Matrix({m, k}, perseid::bf16));
    Matrix wanted({1}, perseid::bf16);
    for (int round = 0; round < (ranks == 2 ? 400 : 101); ++round) {
      gather.execute(
          {.a = shard.tensor(), .b = {right.tensor()}, .c = {c.tensor()}, .deadline = kDeadline},
          first.bytes());
      reduce.execute(
          {.a = c.tensor(), .b = down.tensor(), .c = out.tensor(), .deadline = kDeadline},
          second.bytes());
      if (round % 100 != 0) continue;
      context.synchronize();
      if (round == 0) {
        wanted = out.get();
        EXPECT_EQ(c.get().bytes, gpu_product(context, a, b, perseid::bf16).bytes);
      }
      EXPECT_EQ(out.get().bytes, wanted.bytes);
    }
    context.synchronize();
    EXPECT_EQ(out.get().bytes, wanted.bytes);
  });
}

TEST_P(GpuRanks, ReportsAddUp) {
  on_gpus([](const Group& group, const Context& context) {
    const int32_t ranks = group.size();
    const int64_t m = 128 * ranks, n = 512, k = 256;
    const OnGpu a(context, Matrix::random({m, k}, perseid::bf16, 1)),
        b(context, Matrix::random({k, n}, perseid::bf16, 2)),
        whole(context, Matrix({ranks * m, n}, perseid::bf16)),
        gathered(context, Matrix({ranks * m, k}, perseid::bf16)),
        part(context, Matrix({m / ranks, n}, perseid::bf16)),
        all(context, Matrix({m, n}, perseid::bf16));
    for (const Fusion fusion : {Fusion::kFused, Fusion::kUnfused}) {
      const AllGatherMatmul gather(context, group,
                                   {.dtype = perseid::bf16,
                                    .m = m,
                                    .k = k,
                                    .products = {{.n = n}},
                                    .chunks = 2,
                                    .fusion = fusion,
                                    .report = true});
      const GpuWorkspace first(context, gather);
      for (int i = 0; i < 3; ++i) {
        gather.execute({.a = a.tensor(),
                        .b = {b.tensor()},
                        .c = {whole.tensor()},
                        .gathered = gathered.tensor()},
                       first.bytes());
        context.synchronize();
        expect_consistent(gather, group, 2 * ranks, true);
      }
      for (const bool all_reduce : {false, true}) {
        const MatmulReduce reduce(context, group,
                                  {.dtype = perseid::bf16,
                                   .all_reduce = all_reduce,
                                   .m = m,
                                   .n = n,
                                   .k = k,
                                   .fusion = fusion,
                                   .report = true});
        const GpuWorkspace second(context, reduce);
        for (int i = 0; i < 3; ++i) {
          reduce.execute(
              {.a = a.tensor(), .b = b.tensor(), .c = all_reduce ? all.tensor() : part.tensor()},
              second.bytes());
          context.synchronize();
          const auto report = nlohmann::json::parse(reduce.overlap_report());
          expect_consistent(reduce, group, std::ssize(report["chunks"]) - 1, false);
          EXPECT_GT(report["communication_seconds"], 0);
        }
      }
    }
  });
}

// Ranks that are late by random times, a thousand times: the host of one enqueues while the other's
// kernels wait.
TEST_P(GpuRanks, RandomDelays) {
  on_gpus([](const Group& group, const Context& context) {
    constexpr int kOperands = 4;
    const int32_t rank = group.rank(), ranks = group.size();
    const int seeds = ranks == 2 ? 1000 : 100;
    const int64_t m = 256, n = 128, k = 64;
    const AllGatherMatmul gather(context, group,
                                 {.dtype = perseid::bf16,
                                  .m = m,
                                  .k = k,
                                  .products = {{.n = n}},
                                  .chunks = 2,
                                  .fusion = Fusion::kFused});
    const MatmulReduce reduce(
        context, group,
        {.dtype = perseid::bf16, .m = m * ranks, .n = k, .k = n, .fusion = Fusion::kFused});
    const GpuWorkspace first(context, gather), second(context, reduce);
    const OnGpu right(context, Matrix::random({k, n}, perseid::bf16, 2)),
        down(context, Matrix::random({n, k}, perseid::bf16, 3)),
        c(context, Matrix({m * ranks, n}, perseid::bf16)),
        out(context, Matrix({m, k}, perseid::bf16));
    std::vector<OnGpu> shards;
    for (uint64_t i = 0; i < kOperands; ++i)
      shards.emplace_back(context, part_of(Matrix::random({m * ranks, k}, perseid::bf16, 10 + i), 0,
                                           rank * m, (rank + 1) * m));
    std::vector<Matrix> wanted;  // of the first round, in which nobody is late
    for (int seed = 0; seed < kOperands + seeds; ++seed) {
      std::mt19937 random(static_cast<uint32_t>(ranks * seed + rank));
      if (seed >= kOperands)
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));
      gather.execute({.a = shards[static_cast<size_t>(seed % kOperands)].tensor(),
                      .b = {right.tensor()},
                      .c = {c.tensor()},
                      .deadline = kDeadline},
                     first.bytes());
      if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
      reduce.execute(
          {.a = c.tensor(), .b = down.tensor(), .c = out.tensor(), .deadline = kDeadline},
          second.bytes());
      context.synchronize();
      if (seed < kOperands) wanted.push_back(out.get());
      ASSERT_EQ(out.get().bytes, wanted[static_cast<size_t>(seed % kOperands)].bytes) << seed;
    }
    for (int i = 1; i < kOperands; ++i)
      EXPECT_NE(wanted[0].bytes, wanted[static_cast<size_t>(i)].bytes);
  });
}

// A rank that does not call: the others' synchronisation names it, and what of it is missing.
TEST_P(GpuRanks, NameARankThatTakesNoPart) {
  on_gpus([](const Group& group, const Context& context) {
    const int32_t rank = group.rank(), ranks = group.size();
    const int64_t m = 256, n = 128, k = 64;
    const auto run = [&](const Group& among, std::chrono::nanoseconds deadline, Ended* waited,
                         perseid_wait_record* record) {
      const AllGatherMatmul plan(context, among,
                                 {.dtype = perseid::bf16,
                                  .m = m,
                                  .k = k,
                                  .products = {{.n = n}},
                                  .chunks = 1,
                                  .fusion = Fusion::kFused});
      const GpuWorkspace workspace(context, plan);
      const Matrix a = Matrix::random({m * ranks, k}, perseid::bf16, 1);
      const Matrix b = Matrix::random({k, n}, perseid::bf16, 2);
      const OnGpu shard(context, part_of(a, 0, rank * m, (rank + 1) * m)), right(context, b),
          c(context, Matrix({m * ranks, n}, perseid::bf16));
      const auto once = [&] {
        plan.execute({.a = shard.tensor(),
                      .b = {right.tensor()},
                      .c = {c.tensor()},
                      .deadline = deadline,
                      .record = record},
                     workspace.bytes());
        context.synchronize();
      };
      once();
      EXPECT_EQ(c.get().bytes, gpu_product(context, a, b, perseid::bf16).bytes);
      if (waited == nullptr) return;
      if (rank == 1) std::this_thread::sleep_for(700ms);
      *waited = ended(once);
    };
    Ended waited;
    perseid_wait_record record{};
    run(group, 300ms, &waited, &record);
    EXPECT_EQ(waited.status, PERSEID_TIMEOUT) << waited.sentence;
    EXPECT_NE(waited.sentence.find("rank 1"), std::string::npos) << waited.sentence;
    EXPECT_EQ(group.info().failed_rank, 1);
    if (rank == 0) {
      EXPECT_GT(waited.seconds, ranks > 2 ? 0.1 : 0.29);  // another rank may have begun before
      // Who is silent is asked for; processes take turns on a GPU.
      EXPECT_LT(waited.seconds, are_hosts() || ranks > 2 ? 1 : 0.6);
      EXPECT_NE(waited.sentence.find("chunk 1"), std::string::npos) << waited.sentence;
      EXPECT_EQ(record.status, PERSEID_TIMEOUT);
      EXPECT_EQ(record.rank, 1);
      EXPECT_EQ(record.chunk, 1);
    }
    // The context works on, and so do the ranks in a new group.
    context.synchronize();
    run(group.shrink(kDeadline), kDeadline, nullptr, nullptr);
  });
}

}  // namespace
