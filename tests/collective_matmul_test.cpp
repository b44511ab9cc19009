// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Products over threads as ranks: all-gather + matmul bit for bit as the product of the gathered
// operand, reductions as the fixed-order sum of the ranks' own products, any dtype, uneven shards,
// and what happens where ranks differ or are missing.
#include "collective_tools.hpp"

extern thread_local int64_t allocations_of_this_thread;  // of counting_new.cpp

namespace {

using namespace collective_tools;
using perseid::AllGatherMatmul;
using perseid::ChunkDim;
using perseid::Context;
using perseid::Fusion;
using perseid::Matmul;
using perseid::MatmulReduce;
using perseid::Reduction;
using perseid::Workspace;

struct Gathering {
  int32_t ranks;
  DType dtype;
  ChunkDim dim = ChunkDim::kM;
  int64_t batch = 0;  // 0: two dimensions
  std::vector<int64_t> shards = {};
  int64_t other = 0;  // k, or m where k is gathered
  int64_t chunks = 1;
  bool in_place = false;
  bool transposed = false;
};

// Three executions of a plan of each fusion with different operands, two products each, the second
// with a bias.
void expect_bitwise(const Gathering& problem) {
  SCOPED_TRACE(testing::Message() << problem.ranks << " ranks, batch " << problem.batch
                                  << ", chunks " << problem.chunks << ", dim "
                                  << static_cast<int>(problem.dim));
  const bool along_k = problem.dim == ChunkDim::kK;
  int64_t extent = 0;
  for (const int64_t size : problem.shards) extent += size;
  const int64_t m = along_k ? problem.other : extent, k = along_k ? extent : problem.other;
  const Context context = Context::cpu(2);
  on_threads(problem.ranks, [&](const Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    int64_t begin = 0;
    for (size_t r = 0; r < rank; ++r) begin += problem.shards[r];
    const int64_t size = problem.shards[rank];
    const int64_t n[] = {30 + 17 * static_cast<int64_t>(rank), 8};
    const auto plan_of = [&](Fusion fusion) {
      return AllGatherMatmul(context, group,
                             {.dtype = problem.dtype,
                              .gather_dim = problem.dim,
                              .batch = std::max<int64_t>(problem.batch, 1),
                              .m = along_k ? m : size,
                              .k = along_k ? size : k,
                              .products = {{.n = n[0]}, {.n = n[1], .bias = true}},
                              .chunks = problem.chunks,
                              .fusion = fusion,
                              .report = problem.chunks == 3});
    };
    const AllGatherMatmul plans[] = {plan_of(Fusion::kFused), plan_of(Fusion::kUnfused)};
    Workspace workspace;
    for (const AllGatherMatmul& plan : plans) plan.reserve(workspace);
    for (uint64_t repeat = 1; repeat <= 6; ++repeat) {
      const AllGatherMatmul& plan = plans[repeat % 2];
      const auto matrix = [&](int64_t rows, int64_t columns, uint64_t seed) {
        return Matrix::random(problem.batch > 0 ? std::vector<int64_t>{problem.batch, rows, columns}
                                                : std::vector<int64_t>{rows, columns},
                              problem.dtype, seed * 100 + repeat);
      };
      const Matrix a = matrix(m, k, 1), flipped = matrix(k, m, 2);
      const Tensor whole = problem.transposed ? flipped.tensor().transposed() : a.tensor();
      // The gathered operand lies row-major, whatever the shards do.
      const Matrix row_major = copy_of(whole, problem.dtype);
      const Matrix b[] = {matrix(k, n[0], 3 + rank), matrix(k, n[1], 13 + rank)};
      const Matrix bias = Matrix::random({n[1]}, problem.dtype, repeat);
      const Matrix wanted[] = {
          product(row_major.tensor(), b[0].tensor(), problem.dtype, problem.dtype),
          product(row_major.tensor(), b[1].tensor(), problem.dtype, problem.dtype, bias.tensor())};
      Tensor shard = whole.slice(along_k ? -1 : -2, begin, begin + size);
      if (problem.in_place) {
        const Matrix part = copy_of(shard, problem.dtype);
        std::memcpy(plan.shard().data(), part.bytes.data(), part.bytes.size());
        shard = plan.shard();
      }
      Matrix c[] = {Matrix(wanted[0].shape, problem.dtype), Matrix(wanted[1].shape, problem.dtype)};
      const Matrix gathered(a.shape, problem.dtype);
      plan.execute({.a = shard,
                    .b = {b[0].tensor(), b[1].tensor()},
                    .bias = {{}, bias.tensor()},
                    .c = {c[0].tensor(), c[1].tensor()},
                    .gathered = gathered.tensor()},
                   workspace);
      EXPECT_EQ(c[0].bytes, wanted[0].bytes) << "rank " << rank;
      EXPECT_EQ(c[1].bytes, wanted[1].bytes) << "rank " << rank;
      EXPECT_EQ(gathered.bytes, row_major.bytes) << "rank " << rank;
    }
  });
}

TEST(AllGather, IsBitwiseTheProductOfTheGatheredOperand) {
  for (const DType dtype : {perseid::f16, perseid::bf16, perseid::f32, perseid::f64}) {
    expect_bitwise({.ranks = 2, .dtype = dtype, .shards = {64, 64}, .other = 50});
    expect_bitwise({.ranks = 3, .dtype = dtype, .shards = {70, 0, 131}, .other = 33, .chunks = 3});
  }
  expect_bitwise({.ranks = 1, .dtype = perseid::f32, .shards = {40}, .other = 20});
  expect_bitwise(
      {.ranks = 5, .dtype = perseid::f32, .shards = {1, 2, 0, 3, 1}, .other = 9, .chunks = 2});
  expect_bitwise({.ranks = 2,
                  .dtype = perseid::f32,
                  .shards = {300, 200},
                  .other = 600,
                  .chunks = 4,
                  .transposed = true});
  expect_bitwise({.ranks = 3,
                  .dtype = perseid::f32,
                  .batch = 3,
                  .shards = {20, 31, 7},
                  .other = 40,
                  .chunks = 2});
}

TEST(AllGather, GathersColumns) {
  expect_bitwise(
      {.ranks = 2, .dtype = perseid::f32, .dim = ChunkDim::kK, .shards = {33, 20}, .other = 70});
  expect_bitwise({.ranks = 3,
                  .dtype = perseid::bf16,
                  .dim = ChunkDim::kK,
                  .shards = {300, 0, 500},
                  .other = 200,
                  .chunks = 2});
}

TEST(AllGather, CopiesNothingThatIsProducedInPlace) {
  expect_bitwise(
      {.ranks = 3, .dtype = perseid::f32, .shards = {64, 30, 64}, .other = 50, .in_place = true});
}

struct Reducing {
  int32_t ranks;
  DType dtype, out_dtype;
  ChunkDim dim = ChunkDim::kM;
  int64_t batch = 0, m = 0, n = 0;
  std::vector<int64_t> k = {};
  bool all = false, bias = false;
  Reduction reduction = Reduction::kSum;
};

// The sum of the ranks' own products in their order, in float32, and then the bias; rounded once.
// By a product with a depth of the ranks: sums of 1 * part, added in ascending order.
Matrix reduced(const Reducing& problem, const std::vector<Matrix>& parts, const Tensor& bias) {
  const bool average = problem.reduction == Reduction::kAverage;
  if (problem.dtype == perseid::f64) {
    Matrix sum = parts[0];
    for (size_t i = 0; i < sum.bytes.size() / 8; ++i) {
      double total = 0;
      for (size_t rank = 0; rank < parts.size(); ++rank) {
        double part = 0;
        std::memcpy(&part, parts[rank].bytes.data() + 8 * i, 8);
        total = rank == 0 ? part : total + part;
      }
      if (average) total /= static_cast<double>(parts.size());
      std::memcpy(sum.at(i), &total, 8);
    }
    return sum;
  }
  Matrix sum(parts[0].shape, problem.out_dtype);
  const auto columns = static_cast<size_t>(problem.n);
  for (size_t i = 0; i < parts[0].bytes.size() / 4; ++i) {
    float total = 0;
    for (size_t rank = 0; rank < parts.size(); ++rank)
      total = rank == 0 ? parts[rank].value(i) : total + parts[rank].value(i);
    if (average) total /= static_cast<float>(parts.size());
    if (bias.present()) {
      float addend = 0;
      if (problem.dtype == perseid::f32) {
        addend = bias.data<float>()[i % columns];
      } else {
        const uint32_t bits =
            static_cast<uint32_t>(static_cast<const uint16_t*>(bias.data())[i % columns]) << 16;
        std::memcpy(&addend, &bits, sizeof addend);
      }
      total += addend;
    }
    if (problem.out_dtype == perseid::f32) {
      std::memcpy(sum.at(i), &total, sizeof total);
    } else {
      uint32_t bits = 0;
      std::memcpy(&bits, &total, sizeof bits);
      const auto half = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
      std::memcpy(sum.at(i), &half, sizeof half);
    }
  }
  return sum;
}

void expect_reduced(const Reducing& problem) {
  SCOPED_TRACE(testing::Message() << problem.ranks << " ranks, batch " << problem.batch << ", dim "
                                  << static_cast<int>(problem.dim) << ", all " << problem.all);
  const Context context = Context::cpu(2);
  const DType sums = problem.dtype == perseid::f64 ? perseid::f64 : perseid::f32;
  const bool along_n = problem.dim == ChunkDim::kN;
  on_threads(problem.ranks, [&](const Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    const auto plan_of = [&](Fusion fusion) {
      return MatmulReduce(context, group,
                          {.dtype = problem.dtype,
                           .out_dtype = problem.out_dtype,
                           .scatter_dim = problem.dim,
                           .reduction = problem.reduction,
                           .all_reduce = problem.all,
                           .bias = problem.bias,
                           .batch = std::max<int64_t>(problem.batch, 1),
                           .m = problem.m,
                           .n = problem.n,
                           .k = problem.k[rank],
                           .fusion = fusion});
    };
    const MatmulReduce plans[] = {plan_of(Fusion::kFused), plan_of(Fusion::kUnfused)};
    Workspace workspace;
    for (const MatmulReduce& plan : plans) plan.reserve(workspace);
    for (uint64_t repeat = 1; repeat <= 6; ++repeat) {
      const MatmulReduce& plan = plans[repeat % 2];
      const auto matrix = [&](size_t of, int64_t rows, int64_t columns, uint64_t seed) {
        return Matrix::random(problem.batch > 0 ? std::vector<int64_t>{problem.batch, rows, columns}
                                                : std::vector<int64_t>{rows, columns},
                              problem.dtype, 1000 * seed + 10 * of + repeat);
      };
      std::vector<Matrix> parts;
      for (size_t r = 0; r < problem.k.size(); ++r)
        parts.push_back(product(matrix(r, problem.m, problem.k[r], 1).tensor(),
                                matrix(r, problem.k[r], problem.n, 2).tensor(), problem.dtype,
                                sums));
      const Matrix bias = Matrix::random({problem.n}, problem.dtype, repeat);
      const Matrix whole = reduced(problem, parts, problem.bias ? bias.tensor() : Tensor());
      const int64_t extent = along_n ? problem.n : problem.m;
      const auto r = static_cast<int64_t>(rank);
      const Matrix wanted =
          copy_of(problem.all ? whole.tensor()
                              : whole.tensor().slice(along_n ? -1 : -2, r * extent / problem.ranks,
                                                     (r + 1) * extent / problem.ranks),
                  problem.out_dtype);
      const Matrix c(wanted.shape, problem.out_dtype);
      plan.execute({.a = matrix(rank, problem.m, problem.k[rank], 1).tensor(),
                    .b = matrix(rank, problem.k[rank], problem.n, 2).tensor(),
                    .bias = problem.bias ? bias.tensor() : Tensor(),
                    .c = c.tensor()},
                   workspace);
      EXPECT_EQ(c.bytes, wanted.bytes) << "rank " << rank;
    }
  });
}

TEST(Reduce, SumsInTheOrderOfRanks) {
  for (const bool all : {false, true}) {
    for (const ChunkDim dim : {ChunkDim::kM, ChunkDim::kN}) {
      for (const int32_t ranks : {1, 2, 3, 5}) {
        std::vector<int64_t> k;
        for (int32_t r = 0; r < ranks; ++r) k.push_back(r == 1 ? 7 : 40 + 20 * r);
        expect_reduced({.ranks = ranks,
                        .dtype = perseid::f32,
                        .out_dtype = perseid::f32,
                        .dim = dim,
                        .m = 101,
                        .n = 67,
                        .k = k,
                        .all = all,
                        .bias = true});
      }
      expect_reduced({.ranks = 2,
                      .dtype = perseid::bf16,
                      .out_dtype = perseid::bf16,
                      .dim = dim,
                      .m = 40,
                      .n = 50,
                      .k = {30, 30},
                      .all = all,
                      .bias = true,
                      .reduction = Reduction::kAverage});
      expect_reduced({.ranks = 3,
                      .dtype = perseid::bf16,
                      .out_dtype = perseid::f32,
                      .dim = dim,
                      .batch = 2,
                      .m = 40,
                      .n = 50,
                      .k = {30, 0, 31},
                      .all = all});
      expect_reduced({.ranks = 3,
                      .dtype = perseid::f64,
                      .out_dtype = perseid::f64,
                      .dim = dim,
                      .m = 20,
                      .n = 31,
                      .k = {5, 6, 7},
                      .all = all,
                      .reduction = Reduction::kAverage});
      // Chunks of one row or column, and ranks whose product is empty.
      expect_reduced({.ranks = 4,
                      .dtype = perseid::f64,
                      .out_dtype = perseid::f64,
                      .dim = dim,
                      .m = 22,
                      .n = 24,
                      .k = {0, 28, 23, 0},
                      .all = all});
      // Fewer rows and columns than ranks.
      expect_reduced({.ranks = 5,
                      .dtype = perseid::f32,
                      .out_dtype = perseid::f32,
                      .dim = dim,
                      .m = 3,
                      .n = 2,
                      .k = {4, 4, 4, 4, 4},
                      .all = all});
      expect_reduced({.ranks = 2,
                      .dtype = perseid::f32,
                      .out_dtype = perseid::f32,
                      .dim = dim,
                      .m = 0,
                      .n = 2,
                      .k = {4, 4},
                      .all = all});
    }
  }
}

// Once plans are made and workspaces reserved.
// A rank that is done first, and leaves, does not take its shard along.
TEST(Executions, EndForOthersAfterARankHasLeft) {
  const Context context = Context::cpu(1);
  std::vector<Ended> ends(2);
  std::vector<std::thread> threads;
  for (Group& each : Group::threads(2))
    threads.emplace_back([&, group = std::move(each)] {
      const auto rank = static_cast<size_t>(group.rank());
      const int64_t m = rank == 0 ? 8192 : 1, k = 2048;
      const Matrix a = Matrix::random({m, k}, perseid::f32, 1), c({8193, 1}, perseid::f32);
      const Matrix b = Matrix::random({k, 1}, perseid::f32, 2);
      ends[rank] = ended([&] {
        const AllGatherMatmul plan(context, group, {.m = m, .k = k, .products = {{.n = 1}}});
        Workspace workspace;
        plan.reserve(workspace);
        plan.execute({.a = a.tensor(),
                      .b = {b.tensor()},
                      .c = {c.tensor()},
                      .deadline = std::chrono::seconds(5)},
                     workspace);
      });
    });
  for (std::thread& thread : threads) thread.join();
  for (const Ended& end : ends) EXPECT_EQ(end.status, PERSEID_OK) << end.sentence;
}

TEST(Executions, AllocateNothing) {
  if (are_hosts()) GTEST_SKIP() << "what leaves for another host is queued";
  const Context context = Context::cpu(2);
  on_threads(3, [&](const Group& group) {
    const Matrix square = Matrix::random({6, 6}, perseid::f32, 1);
    const Matrix tall({18, 6}, perseid::f32), part({2, 6}, perseid::f32), all({6, 6}, perseid::f32);
    const AllGatherMatmul gather(
        context, group,
        {.m = 6, .k = 6, .products = {{.n = 6}}, .fusion = perseid::Fusion::kFused});
    const MatmulReduce scatter(context, group,
                               {.m = 6, .n = 6, .k = 6, .fusion = perseid::Fusion::kFused});
    const MatmulReduce reduce(context, group, {.all_reduce = true, .m = 6, .n = 6, .k = 6});
    Workspace workspace;
    gather.reserve(workspace);
    scatter.reserve(workspace);
    reduce.reserve(workspace);
    const perseid::AllGatherMatmulArguments gathering = {
        .a = square.tensor(), .b = {square.tensor()}, .c = {tall.tensor()}};
    for (int i = 0; i < 2; ++i) {
      const int64_t before = allocations_of_this_thread;
      gather.execute(gathering, workspace);
      scatter.execute({.a = square.tensor(), .b = square.tensor(), .c = part.tensor()}, workspace);
      reduce.execute({.a = square.tensor(), .b = square.tensor(), .c = all.tensor()}, workspace);
      group.barrier();
      group.all_gather(square.tensor(), tall.tensor());
      group.reduce_scatter(square.tensor(), part.tensor());
      group.all_reduce(square.tensor(), all.tensor());
      if (i == 1) {
        EXPECT_EQ(allocations_of_this_thread, before);
      }
    }
  });
}

// A product without columns reads nothing, but what follows needs all shards.
TEST(Executions, WaitForShardsThatTheFirstProductDoesNotNeed) {
  const Context context = Context::cpu(1);
  for (const Fusion fusion : {Fusion::kAuto, Fusion::kFused})
    on_threads(2, [&](const Group& group) {
      const AllGatherMatmul plan(
          context, group, {.m = 300, .k = 200, .products = {{.n = 0}, {.n = 7}}, .fusion = fusion});
      const Matrix a = Matrix::random({600, 200}, perseid::f32, 1),
                   b = Matrix::random({200, 7}, perseid::f32, 2);
      const Matrix wanted = product(a.tensor(), b.tensor(), perseid::f32, perseid::f32);
      const Matrix none({200, 0}, perseid::f32), nothing({600, 0}, perseid::f32),
          c({600, 7}, perseid::f32), gathered({600, 200}, perseid::f32);
      const int64_t begin = 300 * group.rank();
      Workspace workspace;
      plan.reserve(workspace);
      if (group.rank() == 1) std::this_thread::sleep_for(20ms);
      plan.execute({.a = a.tensor().slice(0, begin, begin + 300),
                    .b = {none.tensor(), b.tensor()},
                    .c = {nothing.tensor(), c.tensor()},
                    .gathered = gathered.tensor()},
                   workspace);
      EXPECT_EQ(c.bytes, wanted.bytes) << "rank " << group.rank();
      EXPECT_EQ(gathered.bytes, a.bytes) << "rank " << group.rank();
    });
}

// ---- Refusals and missing ranks

TEST(Plans, AreRefusedOnAllRanksWithOneSentence) {
  std::vector<Ended> ends(3);
  const Context context = Context::cpu(1);
  const auto expect_all = [&](const std::string& part) {
    for (const Ended& end : ends) {
      EXPECT_EQ(end.status, PERSEID_INVALID_ARGUMENT);
      EXPECT_EQ(end.sentence, ends[0].sentence);
      EXPECT_NE(end.sentence.find(part), std::string::npos) << end.sentence;
    }
  };
  on_threads(3, [&](const Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    ends[rank] = ended([&] {
      AllGatherMatmul(context, group, {.m = 4, .k = rank == 2 ? 7 : 8, .products = {{.n = 3}}});
    });
  });
  expect_all("all-gather-matmul: k is 7 on rank 2 and 8 on rank 0");
  on_threads(3, [&](const Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    ends[rank] =
        ended([&] { MatmulReduce(context, group, {.m = rank == 1 ? -4 : 4, .n = 3, .k = 2}); });
    // The group goes on.
    const MatmulReduce right(context, group, {.m = 4, .n = 3, .k = 2});
  });
  expect_all("rank 1: matmul-reduce-scatter: m is -4");
  // Values by their names.
  const auto reduces = [&](const Group& group, perseid::MatmulReduceOptions options) {
    options.m = options.n = options.k = 4;
    MatmulReduce(context, group, options);
  };
  const auto expect_reduces = [&](const std::string& part, const auto& options_of) {
    on_threads(3, [&](const Group& group) {
      const auto rank = static_cast<size_t>(group.rank());
      ends[rank] = ended([&] { reduces(group, options_of(group.rank())); });
    });
    expect_all("matmul-reduce-scatter: " + part + "; pass the same on all ranks");
  };
  using Options = perseid::MatmulReduceOptions;
  expect_reduces("dtype is f64 on rank 1 and bf16 on rank 0", [](int32_t rank) {
    return Options{.dtype = rank == 0 ? perseid::bf16 : perseid::f64};
  });
  expect_reduces("out_dtype is f32 on rank 2 and bf16 on rank 0", [](int32_t rank) {
    return Options{.dtype = perseid::bf16, .out_dtype = rank == 2 ? perseid::f32 : perseid::bf16};
  });
  expect_reduces("reduction is average on rank 1 and sum on rank 0", [](int32_t rank) {
    return Options{.reduction =
                       rank == 1 ? perseid::Reduction::kAverage : perseid::Reduction::kSum};
  });
  expect_reduces("scatter_dim is m on rank 1 and n on rank 0", [](int32_t rank) {
    return Options{.scatter_dim = rank == 0 ? perseid::ChunkDim::kN : perseid::ChunkDim::kM};
  });
  // Another operation on one rank, also the first and one with other terms.
  for (const size_t other : {0, 1, 2})
    for (const bool gathers : {false, true}) {
      on_threads(3, [&](const Group& group) {
        const auto rank = static_cast<size_t>(group.rank());
        ends[rank] = ended([&] {
          if (rank != other) return reduces(group, {});
          if (!gathers) return reduces(group, {.all_reduce = true});
          AllGatherMatmul(context, group, {.m = 4, .k = 4, .products = {{.n = 3}}});
        });
      });
      const std::string odd = gathers ? "all-gather-matmul" : "matmul-all-reduce",
                        usual = "matmul-reduce-scatter";
      expect_all("rank " + std::to_string(other == 0 ? 1 : other) + " makes a plan of " +
                 (other == 0 ? usual : odd) + ", rank 0 of " + (other == 0 ? odd : usual) +
                 "; make the same plans in the same order on all ranks");
    }
  on_threads(3, [&](const Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    ends[rank] = ended([&] {
      AllGatherMatmul(context, group, {.m = 4, .k = 8, .products = {{.n = rank == 1 ? -3 : 3}}});
    });
  });
  expect_all("rank 1: matmul: n is -3");
}

TEST(Executions, NameTheRankThatIsSilent) {
  for (const auto& [kind, fusion] : {std::pair{0, Fusion::kFused},
                                     {0, Fusion::kUnfused},
                                     {1, Fusion::kFused},
                                     {2, Fusion::kUnfused}}) {
    std::vector<Ended> ends(3);
    std::vector<perseid_wait_record> records(3);
    const Context context = Context::cpu(1);
    on_threads(3, [&](const Group& group) {
      const auto rank = static_cast<size_t>(group.rank());
      Workspace workspace;
      const Matrix square = Matrix::random({6, 6}, perseid::f32, rank);
      const Matrix out({kind == 0 ? 18 : kind == 1 ? 2 : 6, 6}, perseid::f32);
      std::unique_ptr<AllGatherMatmul> gather;
      std::unique_ptr<MatmulReduce> reduce;
      if (kind == 0) {
        gather = std::make_unique<AllGatherMatmul>(
            context, group,
            perseid::AllGatherMatmulOptions{
                .m = 6, .k = 6, .products = {{.n = 6}}, .fusion = fusion});
      } else {
        reduce = std::make_unique<MatmulReduce>(
            context, group,
            perseid::MatmulReduceOptions{
                .all_reduce = kind == 2, .m = 6, .n = 6, .k = 6, .fusion = fusion});
      }
      const auto execute = [&](std::chrono::nanoseconds deadline) {
        if (kind == 0) {
          gather->execute({.a = square.tensor(),
                           .b = {square.tensor()},
                           .c = {out.tensor()},
                           .deadline = deadline,
                           .record = &records[rank]},
                          workspace);
        } else {
          reduce->execute({.a = square.tensor(),
                           .b = square.tensor(),
                           .c = out.tensor(),
                           .deadline = deadline,
                           .record = &records[rank]},
                          workspace);
        }
      };
      if (gather != nullptr) gather->reserve(workspace);
      if (reduce != nullptr) reduce->reserve(workspace);
      execute(10s);
      EXPECT_EQ(records[rank].status, PERSEID_OK);
      EXPECT_EQ(records[rank].chunk, -1);
      if (rank != 1) ends[rank] = ended([&] { execute(150ms); });
      if (rank == 1) std::this_thread::sleep_for(400ms);
    });
    // The shard of rank 1, or its part of the own one; rows of a shard leave for hosts one by one.
    const int32_t rows = are_hosts() ? 2 : 1;
    for (const size_t rank : {0, 2}) {
      const int32_t chunk = kind == 0 ? 1 : static_cast<int32_t>(rank) * rows;
      EXPECT_EQ(ends[rank].status, PERSEID_TIMEOUT);
      EXPECT_NE(ends[rank].sentence.find(": rank 1 has not taken part within 150 ms; chunk " +
                                         std::to_string(chunk) + " has not arrived"),
                std::string::npos)
          << ends[rank].sentence;
      EXPECT_LT(ends[rank].seconds, 1.2);
      const perseid_wait_record& record = records[rank];
      EXPECT_EQ(record.status, PERSEID_TIMEOUT);
      EXPECT_EQ(record.rank, 1);
      EXPECT_EQ(record.operand, 0);
      EXPECT_EQ(record.chunk, chunk);
      EXPECT_EQ(record.expected, record.seen + 1);
    }
  }
}

// A rank that had no part in the execution before: nothing says which chunk is missing.
TEST(Executions, RecordThatTheGroupHasFailed) {
  const Context context = Context::cpu(1);
  on_threads(2, [&](const Group& group) {
    const MatmulReduce plan(context, group, {.m = 4, .n = 4, .k = 4});
    const Matrix square = Matrix::random({4, 4}, perseid::f32, 1), out({2, 4}, perseid::f32);
    Workspace workspace;
    plan.reserve(workspace);
    if (group.rank() == 1) return;
    perseid_wait_record record{};
    for (const int32_t chunk : {0, -1}) {
      const Ended end = ended([&] {
        plan.execute({.a = square.tensor(),
                      .b = square.tensor(),
                      .c = out.tensor(),
                      .deadline = 50ms,
                      .record = &record},
                     workspace);
      });
      EXPECT_NE(end.status, PERSEID_OK);
      EXPECT_EQ(record.status, end.status);
      EXPECT_EQ(record.rank, 1);
      EXPECT_EQ(record.chunk, chunk);
    }
  });
}

}  // namespace
