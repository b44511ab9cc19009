// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranks on GPUs: sums of their products over ranks, bit for bit those of plain products that are
// added in the order of ranks.
#include <cstdlib>

#include "gpu_collective_tools.hpp"

namespace {

using namespace collective_tools;
using perseid::ChunkDim;
using perseid::Fusion;
using perseid::MatmulReduce;
using perseid::Reduction;

constexpr auto kReduceDeadline = 5s;

class GpuReduce : public RanksOfGpus {};
INSTANTIATE_TEST_SUITE_P(Ranks, GpuReduce, testing::Values(2, 3, 4),
                         testing::PrintToStringParamName());

struct Reducing {
  DType dtype = perseid::bf16, out_dtype = perseid::bf16;
  ChunkDim dim = ChunkDim::kM;
  int64_t batch = 0, m = 0, n = 0;
  std::vector<int64_t> k = {};
  bool all = false, bias = false;
  Reduction reduction = Reduction::kSum;
  Fusion fusion = Fusion::kFused;
  Layout layout = Layout::kSideBySide;  // of c
};

// The sum of the ranks' own products in their order, in float32 or float64, and then the bias;
// rounded once.
template <class Sum>
Matrix reduced(const Reducing& problem, const std::vector<Matrix>& parts, const Matrix& bias) {
  Matrix sum(parts[0].shape, problem.out_dtype);
  const auto element = [](const Matrix& matrix, size_t i) {
    Sum value = 0;
    std::memcpy(&value, matrix.bytes.data() + i * sizeof value, sizeof value);
    return value;
  };
  for (size_t i = 0; i < parts[0].bytes.size() / sizeof(Sum); ++i) {
    Sum total = element(parts[0], i);
    for (size_t rank = 1; rank < parts.size(); ++rank) total += element(parts[rank], i);
    if (problem.reduction == Reduction::kAverage) total /= static_cast<Sum>(parts.size());
    if (problem.bias) {
      const size_t column = i % static_cast<size_t>(problem.n);
      if (bias.dtype == perseid::bf16) {
        uint16_t half = 0;
        std::memcpy(&half, bias.bytes.data() + 2 * column, 2);
        const uint32_t bits = uint32_t{half} << 16;
        float addend = 0;
        std::memcpy(&addend, &bits, 4);
        total += addend;
      } else {
        total += element(bias, column);
      }
    }
    if (problem.out_dtype == perseid::bf16) {
      const uint16_t half = round_to_bf16(static_cast<float>(total));
      std::memcpy(sum.at(i), &half, sizeof half);
    } else {
      std::memcpy(sum.at(i), &total, sizeof total);
    }
  }
  return sum;
}

void expect_reduced(Reducing problem, const Group& group, const Context& context) {
  problem.k = for_ranks(problem.k, group.size());
  SCOPED_TRACE(testing::Message() << "m " << problem.m << ", n " << problem.n << ", k "
                                  << problem.k[0] << ", all " << problem.all << ", dim "
                                  << static_cast<int>(problem.dim));
  const int32_t rank = group.rank(), ranks = group.size();
  const bool along_n = problem.dim == ChunkDim::kN, of_f64 = problem.dtype == perseid::f64;
  const MatmulReduce plan(context, group,
                          {.dtype = problem.dtype,
                           .out_dtype = problem.out_dtype,
                           .scatter_dim = problem.dim,
                           .reduction = problem.reduction,
                           .all_reduce = problem.all,
                           .bias = problem.bias,
                           .batch = std::max<int64_t>(problem.batch, 1),
                           .m = problem.m,
                           .n = problem.n,
                           .k = problem.k[static_cast<size_t>(rank)],
                           .fusion = problem.fusion});
  const GpuWorkspace workspace(context, plan);
  for (uint64_t repeat = 1; repeat <= 4; ++repeat) {
    std::vector<Matrix> parts;
    std::vector<OnGpu> own;
    for (int32_t r = 0; r < ranks; ++r) {
      const int64_t k = problem.k[static_cast<size_t>(r)];
      const uint64_t seed = 10 * repeat + static_cast<uint64_t>(r);
      const auto shape = [&](int64_t rows, int64_t columns) {
        return problem.batch > 0 ? std::vector<int64_t>{problem.batch, rows, columns}
                                 : std::vector<int64_t>{rows, columns};
      };
      const Matrix a = Matrix::random(shape(problem.m, k), problem.dtype, seed);
      const Matrix b = Matrix::random(shape(k, problem.n), problem.dtype, seed + 1000);
      parts.push_back(gpu_product(context, a, b, of_f64 ? perseid::f64 : perseid::f32));
      if (r == rank) {
        own.emplace_back(context, a);
        own.emplace_back(context, b);
      }
    }
    const Matrix bias = Matrix::random({problem.n}, problem.dtype, repeat);
    Matrix wanted =
        of_f64 ? reduced<double>(problem, parts, bias) : reduced<float>(problem, parts, bias);
    const int64_t extent = along_n ? problem.n : problem.m;
    if (!problem.all)
      wanted =
          part_of(wanted, along_n ? -1 : -2, rank * extent / ranks, (rank + 1) * extent / ranks);
    const ResultOnGpu c(context, wanted.shape, problem.out_dtype, problem.layout);
    const OnGpu added(context, bias);
    plan.execute({.a = own[0].tensor(),
                  .b = own[1].tensor(),
                  .bias = problem.bias ? added.tensor() : Tensor(),
                  .c = c.tensor(),
                  .deadline = kReduceDeadline},
                 workspace.bytes());
    context.synchronize();
    EXPECT_EQ(c.get().bytes, wanted.bytes) << "rank " << rank << ", execution " << repeat;
  }
}

TEST_P(GpuReduce, SumsInTheOrderOfRanks) {
  on_gpus([](const Group& group, const Context& context) {
    for (const bool all : {false, true})
      for (const Reducing& problem : std::vector<Reducing>{
               {.m = 1024, .n = 512, .k = {256, 256}},
               {.m = 333, .n = 264, .k = {128, 64}, .bias = true},
               {.out_dtype = perseid::f32, .m = 256, .n = 128, .k = {64, 64}},
               {.m = 300, .n = 256, .k = {64, 64}, .reduction = Reduction::kAverage},
               {.dim = ChunkDim::kN, .m = 200, .n = 272, .k = {64, 128}, .bias = true},
               {.batch = 2, .m = 130, .n = 64, .k = {64, 64}},
               // Sums in the epilogue of the own shard's product.
               {.out_dtype = perseid::f32, .m = 520, .n = 512, .k = {64, 64}},
               {.dim = ChunkDim::kN, .m = 520, .n = 1040, .k = {64, 64}, .bias = true},
               {.batch = 3, .m = 500, .n = 512, .k = {64, 64}},
               {.m = 61, .n = 19, .k = {33, 20}, .bias = true},
               {.dtype = perseid::f32,
               .out_dtype = perseid::f32,
               .m = 130,
               .n = 36,
               .k = {40, 24},
               .bias = true}}) {
        Reducing one = problem;
        one.all = all;
        expect_reduced(one, group, context);
      }
  });
}

// The fused epilogue of the own shard takes none of these; an all-reduce copies its result.
TEST_P(GpuReduce, WritesResultsOfAnyStrides) {
  on_gpus([](const Group& group, const Context& context) {
    for (const Layout layout : {Layout::kByColumns, Layout::kApart})
      for (const bool all : {false, true})
        for (const Reducing& problem : std::vector<Reducing>{
                 {.m = 512, .n = 512, .k = {64, 128}},
                 {.out_dtype = perseid::f32, .m = 333, .n = 264, .k = {64}, .bias = true},
                 {.dim = ChunkDim::kN, .m = 200, .n = 272, .k = {64}, .bias = true},
                 {.dim = ChunkDim::kN, .m = 40, .n = group.size(), .k = {64}},
                 {.batch = 2, .m = 130, .n = 64, .k = {64}, .reduction = Reduction::kAverage},
                 {.dtype = perseid::f64,
                 .out_dtype = perseid::f64,
                 .m = 61,
                 .n = 19,
                 .k = {33, 20},
                 .fusion = Fusion::kUnfused}}) {
          Reducing one = problem;
          one.all = all;
          one.layout = layout;
          expect_reduced(one, group, context);
        }
  });
}

// Chunks of one column, whose elements lie far apart, and ranks whose product is empty.
TEST_P(GpuReduce, SumsColumnsOfOneElement) {
  on_gpus([](const Group& group, const Context& context) {
    for (const bool all : {false, true})
      for (const DType dtype : {perseid::f64, perseid::f32, perseid::bf16})
        for (const ChunkDim dim : {ChunkDim::kN, ChunkDim::kM})
          for (const Fusion fusion : {Fusion::kFused, Fusion::kUnfused}) {
            const int64_t few = 6 * group.size();
            expect_reduced({.dtype = dtype,
                            .out_dtype = dtype,
                            .dim = dim,
                            .m = dim == ChunkDim::kM ? few : 458,
                            .n = dim == ChunkDim::kN ? few : 264,
                            .k = {0, 287, 230, 0},
                            .all = all,
                            .fusion = fusion},
                           group, context);
          }
    // A column for each rank, and none for some.
    expect_reduced({.dim = ChunkDim::kN, .m = 300, .n = group.size(), .k = {64}}, group, context);
    expect_reduced({.dim = ChunkDim::kN, .m = 300, .n = 1, .k = {64}, .all = true}, group, context);
  });
}

// Partial sums that the kernel stores in the memory of the other ranks, and those that copy engines
// send. A rank whose depth TMA does not take sends copies to ranks that store. That there are
// kernels for these problems is in rank_choices_test.
TEST_P(GpuReduce, StoresPartialSumsInTheMemoryOfOthers) {
  for (const char* stores : {"1", "0"}) {
    setenv("PERSEID_PEER_STORES", stores, 1);
    on_gpus([&](const Group& group, const Context& context) {
      const int64_t ranks = group.size();
      const MatmulReduce plan(
          context, group,
          {.dtype = perseid::bf16, .m = 256 * ranks, .n = 520, .k = 512, .fusion = Fusion::kFused});
      if (!are_hosts() && plan.explain().find("cuda:sm90") != std::string::npos) {
        EXPECT_NE(plan.explain().find(*stores == '1' ? "partial sums: TMA stores them"
                                                     : "partial sums: copy engines send them"),
                  std::string::npos)
            << plan.explain();
      }
      for (const bool all : {false, true})
        for (const Reducing& problem : std::vector<Reducing>{
                 {.m = 256 * ranks, .n = 520, .k = {832, 512}, .bias = true},
                 {.m = 512 * ranks, .n = 264, .k = {64, 1024}, .reduction = Reduction::kAverage},
                 {.dim = ChunkDim::kN, .m = 328, .n = 384 * ranks, .k = {704}, .bias = true},
                 {.dim = ChunkDim::kN, .m = 520, .n = 256 * ranks, .k = {640}},
                 {.batch = 2, .m = 128 * ranks, .n = 400, .k = {576}},
                 {.m = 256 * ranks, .n = 520, .k = {512, 67}}}) {
          Reducing one = problem;
          one.all = all;
          expect_reduced(one, group, context);
        }
    });
  }
  unsetenv("PERSEID_PEER_STORES");
}

// The rank that errs goes on with the operation that the others are in.
TEST_P(GpuReduce, RefusesArgumentsBeforeItBegins) {
  on_gpus([](const Group& group, const Context& context) {
    const int64_t ranks = group.size(), m = 256 * ranks, n = 520, k = 512;
    for (const Fusion fusion : {Fusion::kFused, Fusion::kUnfused}) {
      const MatmulReduce plan(context, group,
                              {.dtype = perseid::bf16, .m = m, .n = n, .k = k, .fusion = fusion});
      const GpuWorkspace workspace(context, plan);
      const OnGpu a(context, Matrix::random({m, k}, perseid::bf16, 1)),
          b(context, Matrix::random({k, n}, perseid::bf16, 2)),
          other(context, Matrix::random({k, n + 8}, perseid::bf16, 3)),
          c(context, Matrix({m / ranks, n}, perseid::bf16));
      const auto execute = [&](const Tensor& of_b, std::span<std::byte> memory) {
        return ended([&] {
          plan.execute({.a = a.tensor(), .b = of_b, .c = c.tensor(), .deadline = kReduceDeadline},
                       memory);
          context.synchronize();
        });
      };
      const auto expect_result = [&] {
        const Ended end = execute(b.tensor(), workspace.bytes());
        EXPECT_EQ(end.status, PERSEID_OK) << end.sentence;
        return c.get().bytes;
      };
      const std::vector<std::byte> wanted = expect_result();
      if (group.rank() == 1) {
        const Ended wrong = execute(other.tensor(), workspace.bytes());
        EXPECT_EQ(wrong.status, PERSEID_INVALID_ARGUMENT) << wrong.sentence;
        EXPECT_NE(wrong.sentence.find("b has n 528"), std::string::npos) << wrong.sentence;
        if (plan.workspace_size() > 0) {
          const Ended none = execute(b.tensor(), {});
          EXPECT_EQ(none.status, PERSEID_WORKSPACE_TOO_SMALL) << none.sentence;
          const Ended null =
              execute(b.tensor(), {static_cast<std::byte*>(nullptr), workspace.bytes().size()});
          EXPECT_EQ(null.status, PERSEID_INVALID_ARGUMENT) << null.sentence;
        }
      }
      for (int repeat = 0; repeat < 3; ++repeat) EXPECT_EQ(expect_result(), wanted);
      EXPECT_EQ(group.info().failed_rank, -1);
    }
  });
}

// Tiles of 128 x 256 in pairs of blocks, more than a wave of them, and a row of tiles that
// overhangs; six waves of tiles of 128 x 192 whose sums leave under the next tile's mainloop.
TEST_P(GpuReduce, SumsWholeTiles) {
  if (ranks_share_a_gpu()) GTEST_SKIP() << kOwnGpus;
  on_gpus([](const Group& group, const Context& context) {
    expect_reduced({.m = 6600, .n = 4096, .k = {192, 64}, .bias = true}, group, context);
    expect_reduced({.m = 4608, .n = 4096, .k = {512, 448}, .bias = true}, group, context);
  });
}

}  // namespace
