// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Products of 8-bit types over threads as ranks: bit for bit as the plain product with the scales
// of all rows, or as the sum of the ranks' own scaled products in their order.
#include "collective_tools.hpp"

extern thread_local int64_t allocations_of_this_thread;  // of counting_new.cpp

namespace {

using namespace collective_tools;
using perseid::AllGatherMatmul;
using perseid::ChunkDim;
using perseid::Context;
using perseid::Fusion;
using perseid::MatmulReduce;
using perseid::Reduction;
using perseid::Scaling;
using perseid::Workspace;

// The scales of an operand with `lines` rows, or columns.
Matrix scales_for(Scaling scaling, int64_t batch, int64_t lines, uint64_t seed) {
  if (scaling == Scaling::kTensor) return random_scales({1}, seed);
  return random_scales(batch > 0 ? std::vector<int64_t>{batch, lines} : std::vector<int64_t>{lines},
                       seed);
}

// c = scale_a a scale_b b + bias by the plain product.
Matrix scaled_product(const Tensor& a, const Tensor& b, Scaling scaling, const Tensor& scale_a,
                      const Tensor& scale_b, DType out_dtype, const Tensor& bias = {}) {
  const bool batched = a.ndim() == 3;
  const int64_t batch = batched ? a.size(0) : 1, m = a.size(-2), n = b.size(-1);
  const perseid::Matmul matmul(Context::cpu(1), {.dtype = a.dtype(),
                                                 .out_dtype = out_dtype,
                                                 .batch = batch,
                                                 .m = m,
                                                 .n = n,
                                                 .k = a.size(-1),
                                                 .bias = bias.present(),
                                                 .b_dtype = b.dtype(),
                                                 .scaling = scaling});
  Matrix c(batched ? std::vector<int64_t>{batch, m, n} : std::vector<int64_t>{m, n}, out_dtype);
  Workspace workspace;
  matmul.reserve(workspace);
  const bool scaled = scaling != Scaling::kNone;
  matmul.execute(nullptr,
                 {.a = a,
                  .b = b,
                  .bias = bias,
                  .c = c.tensor(),
                  .scale_a = scaled ? scale_a : Tensor(),
                  .scale_b = scaled ? scale_b : Tensor()},
                 workspace);
  return c;
}

struct Float8Gathering {
  int32_t ranks = 2;
  DType dtype = perseid::f8e4m3, b_dtype = perseid::f8e4m3, out_dtype = DType::kNone;
  Scaling scaling = Scaling::kNone;
  bool sharded = false;
  ChunkDim dim = ChunkDim::kM;
  int64_t batch = 0;  // 0: two dimensions
  std::vector<int64_t> shards = {};
  int64_t other = 0;  // k, or m where k is gathered
  int64_t chunks = 1;
  bool in_place = false, transposed = false;
};

// Executions of a plan of each fusion in turns, with other operands and scales, two products each,
// the second with a bias.
void expect_gathered(const Float8Gathering& problem) {
  SCOPED_TRACE(testing::Message() << problem.ranks << " ranks, batch " << problem.batch
                                  << ", scaling " << static_cast<int>(problem.scaling)
                                  << (problem.sharded ? " sharded" : "") << ", dim "
                                  << static_cast<int>(problem.dim));
  const bool along_k = problem.dim == ChunkDim::kK;
  int64_t extent = 0;
  for (const int64_t size : problem.shards) extent += size;
  const int64_t m = along_k ? problem.other : extent, k = along_k ? extent : problem.other;
  const DType out_dtype = problem.out_dtype == DType::kNone ? perseid::f32 : problem.out_dtype;
  const Context context = Context::cpu(2);
  on_threads(problem.ranks, [&](const Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    int64_t begin = 0;
    for (size_t r = 0; r < rank; ++r) begin += problem.shards[r];
    const int64_t size = problem.shards[rank];
    const int64_t n[] = {30 + 17 * static_cast<int64_t>(rank), 9};
    const auto plan_of = [&](Fusion fusion) {
      return AllGatherMatmul(
          context, group,
          {.dtype = problem.dtype,
           .gather_dim = problem.dim,
           .batch = std::max<int64_t>(problem.batch, 1),
           .m = along_k ? m : size,
           .k = along_k ? size : k,
           .products = {{.n = n[0], .out_dtype = problem.out_dtype},
                        {.n = n[1], .out_dtype = problem.out_dtype, .bias = true}},
           .chunks = problem.chunks,
           .fusion = fusion,
           .report = problem.chunks == 3,
           .b_dtype = problem.b_dtype,
           .scaling = problem.scaling,
           .sharded_scales = problem.sharded});
    };
    const AllGatherMatmul plans[] = {plan_of(Fusion::kFused), plan_of(Fusion::kUnfused)};
    EXPECT_EQ(plans[0].shard().dtype(), problem.dtype);
    Workspace workspace;
    for (const AllGatherMatmul& plan : plans) plan.reserve(workspace);
    for (uint64_t repeat = 1; repeat <= 6; ++repeat) {
      const AllGatherMatmul& plan = plans[repeat % 2];
      const auto matrix = [&](int64_t rows, int64_t columns, DType dtype, uint64_t seed) {
        return Matrix::random(problem.batch > 0 ? std::vector<int64_t>{problem.batch, rows, columns}
                                                : std::vector<int64_t>{rows, columns},
                              dtype, seed * 100 + repeat);
      };
      const Matrix a = matrix(m, k, problem.dtype, 1), flipped = matrix(k, m, problem.dtype, 2);
      const Tensor whole = problem.transposed ? flipped.tensor().transposed() : a.tensor();
      const Matrix row_major = copy_of(whole, problem.dtype);
      const Matrix b[] = {matrix(k, n[0], problem.b_dtype, 3 + rank),
                          matrix(k, n[1], problem.b_dtype, 13 + rank)};
      const Matrix bias = Matrix::random({n[1]}, perseid::f32, repeat);
      const bool scaled = problem.scaling != Scaling::kNone;
      const Matrix scale_a = scales_for(problem.scaling, problem.batch, m, 1000 + repeat);
      const Matrix scale_b[] = {scales_for(problem.scaling, problem.batch, n[0], 7 * repeat + rank),
                                scales_for(problem.scaling, 0, n[1], 9 * repeat + rank)};
      Matrix wanted[] = {Matrix({0}, out_dtype), Matrix({0}, out_dtype)};
      for (size_t i = 0; i < 2; ++i)
        wanted[i] =
            scaled_product(row_major.tensor(), b[i].tensor(), problem.scaling, scale_a.tensor(),
                           scale_b[i].tensor(), out_dtype, i == 1 ? bias.tensor() : Tensor());
      Tensor shard = whole.slice(along_k ? -1 : -2, begin, begin + size);
      if (problem.in_place) {
        const Matrix part = copy_of(shard, problem.dtype);
        std::copy(part.bytes.begin(), part.bytes.end(),
                  static_cast<std::byte*>(plan.shard().data()));
        shard = plan.shard();
      }
      Matrix c[] = {Matrix(wanted[0].shape, out_dtype), Matrix(wanted[1].shape, out_dtype)};
      const Matrix gathered(a.shape, problem.dtype);
      plan.execute(
          {.a = shard,
           .b = {b[0].tensor(), b[1].tensor()},
           .bias = {{}, bias.tensor()},
           .c = {c[0].tensor(), c[1].tensor()},
           .gathered = gathered.tensor(),
           .scale_a = !scaled           ? Tensor()
                      : problem.sharded ? scale_a.tensor().slice(-1, begin, begin + size)
                                        : scale_a.tensor(),
           .scale_b = scaled ? std::vector<Tensor>{scale_b[0].tensor(), scale_b[1].tensor()}
                             : std::vector<Tensor>()},
          workspace);
      EXPECT_EQ(c[0].bytes, wanted[0].bytes) << "rank " << rank;
      EXPECT_EQ(c[1].bytes, wanted[1].bytes) << "rank " << rank;
      EXPECT_EQ(gathered.bytes, row_major.bytes) << "rank " << rank;
    }
  });
}

TEST(Float8, GathersBitForBitWithScalesOfAllRowsOrOfTheOwn) {
  for (const auto& [scaling, sharded] :
       {std::pair{Scaling::kNone, false}, std::pair{Scaling::kTensor, false},
        std::pair{Scaling::kRow, false}, std::pair{Scaling::kRow, true}}) {
    Float8Gathering problem{
        .scaling = scaling, .sharded = sharded, .shards = {64, 64}, .other = 50};
    expect_gathered(problem);
    problem.out_dtype = perseid::bf16;
    problem.b_dtype = perseid::f8e5m2;
    problem.shards = {70, 31};
    problem.transposed = true;
    expect_gathered(problem);
    problem.ranks = 3;
    problem.dtype = perseid::f8e5m2;
    problem.out_dtype = perseid::f16;
    problem.shards = {70, 0, 131};
    problem.other = 33;
    problem.chunks = 3;
    problem.transposed = false;
    problem.in_place = true;
    expect_gathered(problem);
    problem.batch = 3;
    problem.in_place = false;
    problem.shards = {20, 31, 7};
    expect_gathered(problem);
  }
  expect_gathered(
      {.ranks = 1, .scaling = Scaling::kRow, .sharded = true, .shards = {40}, .other = 20});
  expect_gathered({.scaling = Scaling::kRow, .sharded = true, .shards = {0, 0}, .other = 20});
}

TEST(Float8, GathersColumnsWithScalesOfAllRows) {
  for (const Scaling scaling : {Scaling::kTensor, Scaling::kRow})
    expect_gathered({.ranks = 3,
                     .scaling = scaling,
                     .dim = ChunkDim::kK,
                     .shards = {300, 0, 201},
                     .other = 70,
                     .chunks = 2});
}

// Scales that are no neighbours in memory.
TEST(Float8, GathersScalesOfAnyStride) {
  const Context context = Context::cpu(1);
  on_threads(2, [&](const Group& group) {
    const Matrix a = Matrix::random({40, 16}, perseid::f8e4m3, 1),
                 b = Matrix::random({16, 5}, perseid::f8e4m3, 2), scale_b = random_scales({5}, 3),
                 spread = random_scales({40, 3}, 4);
    const Tensor scale_a = spread.tensor().select(1, 1);
    const Matrix together = copy_of(scale_a, perseid::f32);
    const Matrix wanted = scaled_product(a.tensor(), b.tensor(), Scaling::kRow, together.tensor(),
                                         scale_b.tensor(), perseid::f32);
    const AllGatherMatmul plan(context, group,
                               {.dtype = perseid::f8e4m3,
                                .m = 20,
                                .k = 16,
                                .products = {{.n = 5}},
                                .scaling = Scaling::kRow,
                                .sharded_scales = true});
    EXPECT_NE(plan.explain().find("sharded_scales"), std::string::npos) << plan.explain();
    Workspace workspace;
    plan.reserve(workspace);
    const int64_t begin = 20 * group.rank();
    const Matrix c({40, 5}, perseid::f32);
    plan.execute({.a = a.tensor().slice(0, begin, begin + 20),
                  .b = {b.tensor()},
                  .c = {c.tensor()},
                  .scale_a = scale_a.slice(0, begin, begin + 20),
                  .scale_b = {scale_b.tensor()}},
                 workspace);
    EXPECT_EQ(c.bytes, wanted.bytes);
  });
}

struct Float8Reducing {
  int32_t ranks = 2;
  DType dtype = perseid::f8e4m3, b_dtype = perseid::f8e4m3, out_dtype = perseid::f32;
  Scaling scaling = Scaling::kNone;
  ChunkDim dim = ChunkDim::kM;
  int64_t batch = 0;
  std::vector<int64_t> k = {};
  bool all = false;
  DType bias = DType::kNone;
  Reduction reduction = Reduction::kSum;
};

float widened(const Matrix& matrix, size_t element) {
  if (matrix.dtype == perseid::f32) return matrix.value(element);
  uint16_t half = 0;
  std::memcpy(&half, matrix.bytes.data() + 2 * element, sizeof half);
  const uint32_t bits = uint32_t{half} << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The ranks' own products added in their order, then the bias; rounded once.
Matrix sum_of_parts(const Float8Reducing& problem, const std::vector<Matrix>& parts,
                    const Matrix& bias) {
  Matrix sum(parts[0].shape, problem.out_dtype);
  const auto columns = static_cast<size_t>(parts[0].shape.back());
  for (size_t i = 0; i < parts[0].bytes.size() / 4; ++i) {
    float total = parts[0].value(i);
    for (size_t rank = 1; rank < parts.size(); ++rank) total += parts[rank].value(i);
    if (problem.reduction == Reduction::kAverage) total /= static_cast<float>(parts.size());
    if (problem.bias != DType::kNone) total += widened(bias, i % columns);
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

void expect_summed(const Float8Reducing& problem) {
  SCOPED_TRACE(testing::Message() << problem.ranks << " ranks, scaling "
                                  << static_cast<int>(problem.scaling) << ", dim "
                                  << static_cast<int>(problem.dim) << ", all " << problem.all);
  constexpr int64_t kRows = 41, kColumns = 50;
  const bool along_n = problem.dim == ChunkDim::kN, scaled = problem.scaling != Scaling::kNone;
  const Context context = Context::cpu(2);
  on_threads(problem.ranks, [&](const Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    const auto plan_of = [&](Fusion fusion) {
      return MatmulReduce(context, group,
                          {.dtype = problem.dtype,
                           .out_dtype = problem.out_dtype,
                           .scatter_dim = problem.dim,
                           .reduction = problem.reduction,
                           .all_reduce = problem.all,
                           .bias = problem.bias != DType::kNone,
                           .batch = std::max<int64_t>(problem.batch, 1),
                           .m = kRows,
                           .n = kColumns,
                           .k = problem.k[rank],
                           .fusion = fusion,
                           .b_dtype = problem.b_dtype,
                           .scaling = problem.scaling});
    };
    const MatmulReduce plans[] = {plan_of(Fusion::kFused), plan_of(Fusion::kUnfused)};
    Workspace workspace;
    for (const MatmulReduce& plan : plans) plan.reserve(workspace);
    for (uint64_t repeat = 1; repeat <= 4; ++repeat) {
      const auto matrix = [&](size_t of, int64_t rows, int64_t columns, DType dtype) {
        return Matrix::random(problem.batch > 0 ? std::vector<int64_t>{problem.batch, rows, columns}
                                                : std::vector<int64_t>{rows, columns},
                              dtype, 10 * of + repeat);
      };
      std::vector<Matrix> a, b, scale_a, scale_b, parts;
      for (size_t r = 0; r < problem.k.size(); ++r) {
        a.push_back(matrix(r, kRows, problem.k[r], problem.dtype));
        b.push_back(matrix(r + 50, problem.k[r], kColumns, problem.b_dtype));
        scale_a.push_back(scales_for(problem.scaling, problem.batch, kRows, r + 100 * repeat));
        scale_b.push_back(scales_for(problem.scaling, 0, kColumns, r + 101 * repeat));
        parts.push_back(scaled_product(a[r].tensor(), b[r].tensor(), problem.scaling,
                                       scale_a[r].tensor(), scale_b[r].tensor(), perseid::f32));
      }
      const Matrix bias = Matrix::random({kColumns}, problem.bias, repeat);
      const Matrix whole = sum_of_parts(problem, parts, bias);
      const int64_t extent = along_n ? kColumns : kRows, r = group.rank();
      const Matrix wanted =
          copy_of(problem.all ? whole.tensor()
                              : whole.tensor().slice(along_n ? -1 : -2, r * extent / problem.ranks,
                                                     (r + 1) * extent / problem.ranks),
                  problem.out_dtype);
      const Matrix c(wanted.shape, problem.out_dtype);
      plans[repeat % 2].execute({.a = a[rank].tensor(),
                                 .b = b[rank].tensor(),
                                 .bias = problem.bias != DType::kNone ? bias.tensor() : Tensor(),
                                 .c = c.tensor(),
                                 .scale_a = scaled ? scale_a[rank].tensor() : Tensor(),
                                 .scale_b = scaled ? scale_b[rank].tensor() : Tensor()},
                                workspace);
      EXPECT_EQ(c.bytes, wanted.bytes) << "rank " << rank;
    }
  });
}

TEST(Float8, ReducesEachRanksScaledProductInTheOrderOfRanks) {
  for (const bool all : {false, true})
    for (const Scaling scaling : {Scaling::kNone, Scaling::kTensor, Scaling::kRow}) {
      expect_summed({.scaling = scaling, .k = {30, 47}, .all = all, .bias = perseid::f32});
      expect_summed({.ranks = 3,
                     .dtype = perseid::f8e5m2,
                     .out_dtype = perseid::bf16,
                     .scaling = scaling,
                     .dim = ChunkDim::kN,
                     .k = {30, 0, 31},
                     .all = all,
                     .bias = perseid::bf16,
                     .reduction = Reduction::kAverage});
      expect_summed({.b_dtype = perseid::f8e5m2,
                     .out_dtype = perseid::bf16,
                     .scaling = scaling,
                     .batch = 2,
                     .k = {30, 20},
                     .all = all,
                     .bias = perseid::f32});
    }
}

// Without scales of ranks, whose products would round apart.
TEST(Float8, HasTheBitsOfOneRankInCanonicalOrder) {
  constexpr int64_t kRows = 48, kColumns = 24, kDepth = 64;
  const Context context = Context::cpu(1);
  const Matrix a = Matrix::random({kRows, kDepth}, perseid::f8e4m3, 1),
               b = Matrix::random({kDepth, kColumns}, perseid::f8e4m3, 2),
               scale_a = random_scales({kRows}, 3), scale_b = random_scales({kColumns}, 4);
  std::vector<std::vector<std::byte>> gathered, reduced;
  for (const int32_t ranks : {1, 2, 4}) {
    on_threads(ranks, [&](const Group& group) {
      const int64_t rows = kRows / ranks, depth = kDepth / ranks, r = group.rank();
      const AllGatherMatmul gather(context, group,
                                   {.dtype = perseid::f8e4m3,
                                    .m = rows,
                                    .k = kDepth,
                                    .products = {{.n = kColumns}},
                                    .canonical = true,
                                    .scaling = Scaling::kRow,
                                    .sharded_scales = true});
      const MatmulReduce reduce(context, group,
                                {.dtype = perseid::f8e4m3,
                                 .all_reduce = true,
                                 .m = kRows,
                                 .n = kColumns,
                                 .k = depth,
                                 .canonical = true});
      Workspace workspace;
      gather.reserve(workspace);
      reduce.reserve(workspace);
      const Matrix c({kRows, kColumns}, perseid::f32), sum({kRows, kColumns}, perseid::f32);
      gather.execute({.a = a.tensor().slice(0, r * rows, (r + 1) * rows),
                      .b = {b.tensor()},
                      .c = {c.tensor()},
                      .scale_a = scale_a.tensor().slice(0, r * rows, (r + 1) * rows),
                      .scale_b = {scale_b.tensor()}},
                     workspace);
      reduce.execute({.a = a.tensor().slice(1, r * depth, (r + 1) * depth),
                      .b = b.tensor().slice(0, r * depth, (r + 1) * depth),
                      .c = sum.tensor()},
                     workspace);
      if (r != 0) return;
      gathered.push_back(c.bytes);
      reduced.push_back(sum.bytes);
    });
    EXPECT_EQ(gathered.back(), gathered.front()) << ranks << " ranks";
    EXPECT_EQ(reduced.back(), reduced.front()) << ranks << " ranks";
  }
}

TEST(Float8, AllocatesNothingToGatherScales) {
  if (are_hosts()) GTEST_SKIP() << "what leaves for another host is queued";
  const Context context = Context::cpu(2);
  on_threads(2, [&](const Group& group) {
    const Matrix a = Matrix::random({6, 6}, perseid::f8e4m3, 1), scales = random_scales({6}, 2),
                 c({12, 6}, perseid::f32);
    const AllGatherMatmul plan(context, group,
                               {.dtype = perseid::f8e4m3,
                                .m = 6,
                                .k = 6,
                                .products = {{.n = 6}},
                                .scaling = Scaling::kRow,
                                .sharded_scales = true});
    Workspace workspace;
    plan.reserve(workspace);
    const perseid::AllGatherMatmulArguments arguments = {.a = a.tensor(),
                                                         .b = {a.tensor()},
                                                         .c = {c.tensor()},
                                                         .scale_a = scales.tensor(),
                                                         .scale_b = {scales.tensor()}};
    plan.execute(arguments, workspace);
    const int64_t before = allocations_of_this_thread;
    plan.execute(arguments, workspace);
    EXPECT_EQ(allocations_of_this_thread, before);
  });
}

}  // namespace
