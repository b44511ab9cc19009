// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Products of 8-bit types over ranks on GPUs of compute capability 9.0: bit for bit as the plain
// product with the scales of all rows, or as the sum of the ranks' own scaled products. Elsewhere
// nothing takes them, and the tests end at once.
#include "gpu_collective_tools.hpp"

namespace {

using namespace collective_tools;
using perseid::Accumulation;
using perseid::AllGatherMatmul;
using perseid::ChunkDim;
using perseid::Fusion;
using perseid::MatmulReduce;
using perseid::Reduction;
using perseid::Scaling;

constexpr int32_t kFloat8Ranks = 2;
constexpr auto kFloat8Deadline = 5s;

class GpuFloat8Ranks : public GpuRanksTest {
 protected:
  // body(group, context of the rank's GPU), where that takes the types.
  static void on_gpus(const std::function<void(const Group&, const Context&)>& body) {
    on_gpu_ranks(kFloat8Ranks, [&](const Group& group) {
      const Context context = context_of(group.rank());
      try {
        perseid::Matmul(context, {.dtype = perseid::f8e4m3, .m = 16, .n = 16, .k = 16});
      } catch (const perseid::Error& error) {
        if (error.status() == PERSEID_UNSUPPORTED) return;
        throw;
      }
      body(group, context);
    });
  }
};

// What products of a case have in common.
struct Float8Case {
  DType dtype = perseid::f8e4m3, b_dtype = perseid::f8e4m3, out_dtype = perseid::bf16;
  Scaling scaling = Scaling::kNone;
  Accumulation accumulation = Accumulation::kPromoted;
};

// [batch, lines], or [lines] without a batch; one of a tensor; none.
class ScalesOnGpu {
 public:
  ScalesOnGpu(const Context& context, Scaling scaling, int64_t batch, int64_t lines, uint64_t seed)
      : scaled_(scaling != Scaling::kNone),
        scales_(context, random_scales(scaling == Scaling::kTensor ? std::vector<int64_t>{1}
                                       : batch > 0 ? std::vector<int64_t>{batch, lines}
                                                   : std::vector<int64_t>{lines},
                                       seed)) {}
  Tensor tensor() const { return scaled_ ? scales_.tensor() : Tensor(); }
  Tensor slice(int64_t from, int64_t to) const { return scales_.tensor().slice(-1, from, to); }

 private:
  bool scaled_;
  OnGpu scales_;
};

// A right operand [batch, k, n], column-major.
class RightOnGpu {
 public:
  RightOnGpu(const Context& context, DType dtype, int64_t batch, int64_t k, int64_t n,
             uint64_t seed)
      : lies_(context, Matrix::random(batch > 0 ? std::vector<int64_t>{batch, n, k}
                                                : std::vector<int64_t>{n, k},
                                      dtype, seed)) {}
  Tensor tensor() const { return lies_.tensor().transposed(); }

 private:
  OnGpu lies_;
};

// The plain product of this GPU.
Matrix float8_product(const Context& context, const Float8Case& kind, DType out_dtype,
                      const Tensor& a, const Tensor& b, const ScalesOnGpu& scale_a,
                      const ScalesOnGpu& scale_b, const Tensor& bias = {}) {
  const bool batched = a.ndim() == 3;
  const int64_t batch = batched ? a.size(0) : 1, m = a.size(-2), n = b.size(-1);
  const perseid::Matmul matmul(context, {.dtype = kind.dtype,
                                         .out_dtype = out_dtype,
                                         .batch = batch,
                                         .m = m,
                                         .n = n,
                                         .k = a.size(-1),
                                         .bias = bias.present(),
                                         .b_dtype = kind.b_dtype,
                                         .scaling = kind.scaling,
                                         .accumulation = kind.accumulation});
  const OnGpu c(
      context,
      Matrix(batched ? std::vector<int64_t>{batch, m, n} : std::vector<int64_t>{m, n}, out_dtype));
  const GpuWorkspace workspace(context, matmul);
  matmul.execute(nullptr,
                 {.a = a,
                  .b = b,
                  .bias = bias,
                  .c = c.tensor(),
                  .scale_a = scale_a.tensor(),
                  .scale_b = scale_b.tensor()},
                 workspace.bytes());
  context.synchronize();
  return c.get();
}

struct Float8Gathering {
  Float8Case kind = {};
  bool sharded = false;
  ChunkDim dim = ChunkDim::kM;
  int64_t batch = 0;
  std::vector<int64_t> shards = {};
  int64_t other = 0;  // k, or m where k is gathered
  int64_t n = 0;
  int64_t chunks = 1;
  bool in_place = false;
  Fusion fusion = Fusion::kFused;
};

// Several executions with other operands and scales, two products each, the second with a bias.
void expect_gathered(const Float8Gathering& problem, const Group& group, const Context& context) {
  SCOPED_TRACE(testing::Message() << "scaling " << static_cast<int>(problem.kind.scaling)
                                  << ", sharded " << problem.sharded << ", shards "
                                  << problem.shards[0] << " " << problem.shards[1] << ", other "
                                  << problem.other << ", chunks " << problem.chunks);
  const Float8Case& kind = problem.kind;
  const bool along_k = problem.dim == ChunkDim::kK, scaled = kind.scaling != Scaling::kNone;
  const int32_t rank = group.rank();
  const int64_t extent = problem.shards[0] + problem.shards[1];
  const int64_t begin = rank == 0 ? 0 : problem.shards[0],
                size = problem.shards[static_cast<size_t>(rank)];
  const int64_t m = along_k ? problem.other : extent, k = along_k ? extent : problem.other;
  const int64_t n[] = {problem.n + 16 * rank, 32};
  const AllGatherMatmul plan(context, group,
                             {.dtype = kind.dtype,
                              .gather_dim = problem.dim,
                              .batch = std::max<int64_t>(problem.batch, 1),
                              .m = along_k ? m : size,
                              .k = along_k ? size : k,
                              .products = {{.n = n[0], .out_dtype = kind.out_dtype},
                                           {.n = n[1], .out_dtype = kind.out_dtype, .bias = true}},
                              .chunks = problem.chunks,
                              .fusion = problem.fusion,
                              .b_dtype = kind.b_dtype,
                              .scaling = kind.scaling,
                              .accumulation = kind.accumulation,
                              .sharded_scales = problem.sharded});
  const GpuWorkspace workspace(context, plan);
  for (uint64_t repeat = 1; repeat <= 4; ++repeat) {
    const auto own = static_cast<uint64_t>(rank);
    const Matrix a = Matrix::random(
        problem.batch > 0 ? std::vector<int64_t>{problem.batch, m, k} : std::vector<int64_t>{m, k},
        kind.dtype, repeat);
    const OnGpu whole(context, a), bias(context, Matrix::random({n[1]}, perseid::f32, repeat));
    const RightOnGpu b[] = {
        {context, kind.b_dtype, problem.batch, k, n[0], 100 * repeat + own},
        {context, kind.b_dtype, problem.batch, k, n[1], 100 * repeat + 10 + own}};
    const ScalesOnGpu scale_a(context, kind.scaling, problem.batch, m, 7 * repeat),
        scale_b[] = {{context, kind.scaling, problem.batch, n[0], 8 * repeat + own},
                     {context, kind.scaling, 0, n[1], 9 * repeat + own}};
    const Matrix wanted[] = {float8_product(context, kind, kind.out_dtype, whole.tensor(),
                                            b[0].tensor(), scale_a, scale_b[0]),
                             float8_product(context, kind, kind.out_dtype, whole.tensor(),
                                            b[1].tensor(), scale_a, scale_b[1], bias.tensor())};
    const Matrix part = part_of(a, along_k ? -1 : -2, begin, begin + size);
    const OnGpu shard(context, part), c0(context, Matrix(wanted[0].shape, kind.out_dtype)),
        c1(context, Matrix(wanted[1].shape, kind.out_dtype)),
        gathered(context, Matrix(a.shape, kind.dtype));
    if (problem.in_place) context.copy(plan.shard().data(), part.bytes.data(), part.bytes.size());
    // [batch, m] without gaps between the rows of an entry.
    plan.execute(
        {.a = problem.in_place ? plan.shard() : shard.tensor(),
         .b = {b[0].tensor(), b[1].tensor()},
         .bias = {{}, bias.tensor()},
         .c = {c0.tensor(), c1.tensor()},
         .gathered = gathered.tensor(),
         .deadline = kFloat8Deadline,
         .scale_a = problem.sharded ? scale_a.slice(begin, begin + size) : scale_a.tensor(),
         .scale_b = scaled ? std::vector<Tensor>{scale_b[0].tensor(), scale_b[1].tensor()}
                           : std::vector<Tensor>()},
        workspace.bytes());
    context.synchronize();
    EXPECT_EQ(c0.get().bytes, wanted[0].bytes) << "rank " << rank << ", execution " << repeat;
    EXPECT_EQ(c1.get().bytes, wanted[1].bytes) << "rank " << rank << ", execution " << repeat;
    EXPECT_EQ(gathered.get().bytes, a.bytes) << "rank " << rank << ", execution " << repeat;
  }
}

TEST_F(GpuFloat8Ranks, GatherBitForBitAsThePlainProduct) {
  on_gpus([](const Group& group, const Context& context) {
    const Float8Case plain, mixed{.b_dtype = perseid::f8e5m2, .out_dtype = perseid::f32};
    const Float8Case tensors{.scaling = Scaling::kTensor};
    const Float8Case rows{.scaling = Scaling::kRow};
    const Float8Case fast{.dtype = perseid::f8e5m2,
                          .out_dtype = perseid::f16,
                          .scaling = Scaling::kRow,
                          .accumulation = Accumulation::kFast};
    for (const Float8Gathering& problem : std::vector<Float8Gathering>{
             {.kind = plain, .shards = {512, 512}, .other = 256, .n = 512},
             {.kind = mixed, .shards = {1000, 24}, .other = 528, .n = 272, .chunks = 3},
             {.kind = tensors, .shards = {77, 300}, .other = 64, .n = 144, .chunks = 2},
             {.kind = rows, .shards = {512, 256}, .other = 256, .n = 512, .in_place = true},
             {.kind = rows, .dim = ChunkDim::kK, .shards = {192, 320}, .other = 300, .n = 256},
             {.kind = rows, .sharded = true, .shards = {512, 512}, .other = 256, .n = 512},
             {.kind = fast,
             .sharded = true,
             .shards = {1000, 24},
             .other = 528,
             .n = 272,
             .chunks = 3,
             .in_place = true},
             {.kind = rows, .sharded = true, .shards = {0, 130}, .other = 64, .n = 144},
             {.kind = rows,
             .sharded = true,
             .batch = 3,
             .shards = {100, 156},
             .other = 64,
             .n = 128,
             .chunks = 2},
             {.kind = fast,
             .sharded = true,
             .shards = {300, 128},
             .other = 64,
             .n = 128,
             .fusion = Fusion::kUnfused}})
      expect_gathered(problem, group, context);
  });
}

struct Float8Reducing {
  Float8Case kind = {};
  ChunkDim dim = ChunkDim::kM;
  int64_t batch = 0, m = 0, n = 0;
  std::vector<int64_t> k = {};
  bool bias = false;
  Reduction reduction = Reduction::kSum;
  Fusion fusion = Fusion::kFused;
};

// The ranks' own products added in their order, then the bias; rounded once.
Matrix sum_of_ranks(const Float8Reducing& problem, const std::vector<Matrix>& parts,
                    const Matrix& bias) {
  Matrix sum(parts[0].shape, problem.kind.out_dtype);
  for (size_t i = 0; i < parts[0].bytes.size() / 4; ++i) {
    float total = parts[0].value(i);
    for (size_t rank = 1; rank < parts.size(); ++rank) total += parts[rank].value(i);
    if (problem.reduction == Reduction::kAverage) total /= static_cast<float>(parts.size());
    if (problem.bias) total += bias.value(i % static_cast<size_t>(problem.n));
    if (problem.kind.out_dtype == perseid::f32) {
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

void expect_summed(const Float8Reducing& problem, bool all, const Group& group,
                   const Context& context) {
  SCOPED_TRACE(testing::Message() << "scaling " << static_cast<int>(problem.kind.scaling) << ", m "
                                  << problem.m << ", n " << problem.n << ", all " << all << ", dim "
                                  << static_cast<int>(problem.dim));
  const Float8Case& kind = problem.kind;
  const int32_t rank = group.rank();
  const bool along_n = problem.dim == ChunkDim::kN;
  const MatmulReduce plan(context, group,
                          {.dtype = kind.dtype,
                           .out_dtype = kind.out_dtype,
                           .scatter_dim = problem.dim,
                           .reduction = problem.reduction,
                           .all_reduce = all,
                           .bias = problem.bias,
                           .batch = std::max<int64_t>(problem.batch, 1),
                           .m = problem.m,
                           .n = problem.n,
                           .k = problem.k[static_cast<size_t>(rank)],
                           .fusion = problem.fusion,
                           .b_dtype = kind.b_dtype,
                           .scaling = kind.scaling,
                           .accumulation = kind.accumulation});
  const GpuWorkspace workspace(context, plan);
  for (uint64_t repeat = 1; repeat <= 3; ++repeat) {
    std::vector<Matrix> parts;
    const Matrix bias = Matrix::random({problem.n}, perseid::f32, repeat);
    const OnGpu added(context, bias);
    std::optional<OnGpu> a;
    std::optional<RightOnGpu> b;
    std::optional<ScalesOnGpu> scale_a, scale_b;
    // The own operands are the last.
    for (int32_t step = 1; step <= kFloat8Ranks; ++step) {
      const int32_t r = (rank + step) % kFloat8Ranks;
      const int64_t k = problem.k[static_cast<size_t>(r)];
      const uint64_t seed = 10 * repeat + static_cast<uint64_t>(r);
      a.emplace(context,
                Matrix::random(problem.batch > 0 ? std::vector<int64_t>{problem.batch, problem.m, k}
                                                 : std::vector<int64_t>{problem.m, k},
                               kind.dtype, seed));
      b.emplace(context, kind.b_dtype, problem.batch, k, problem.n, seed + 1000);
      scale_a.emplace(context, kind.scaling, problem.batch, problem.m, seed + 2000);
      scale_b.emplace(context, kind.scaling, 0, problem.n, seed + 3000);
      parts.push_back(float8_product(context, kind, perseid::f32, a->tensor(), b->tensor(),
                                     *scale_a, *scale_b));
    }
    if (rank == 0) std::swap(parts[0], parts[1]);
    Matrix wanted = sum_of_ranks(problem, parts, bias);
    const int64_t extent = along_n ? problem.n : problem.m;
    if (!all)
      wanted = part_of(wanted, along_n ? -1 : -2, rank * extent / kFloat8Ranks,
                       (rank + 1) * extent / kFloat8Ranks);
    const OnGpu c(context, Matrix(wanted.shape, kind.out_dtype));
    plan.execute({.a = a->tensor(),
                  .b = b->tensor(),
                  .bias = problem.bias ? added.tensor() : Tensor(),
                  .c = c.tensor(),
                  .deadline = kFloat8Deadline,
                  .scale_a = scale_a->tensor(),
                  .scale_b = scale_b->tensor()},
                 workspace.bytes());
    context.synchronize();
    EXPECT_EQ(c.get().bytes, wanted.bytes) << "rank " << rank << ", execution " << repeat;
  }
}

TEST_F(GpuFloat8Ranks, ReduceScaledProductsInTheOrderOfRanks) {
  on_gpus([](const Group& group, const Context& context) {
    const Float8Case rows{.scaling = Scaling::kRow}, tensors{.scaling = Scaling::kTensor};
    const Float8Case fast{.dtype = perseid::f8e5m2,
                          .out_dtype = perseid::f32,
                          .scaling = Scaling::kRow,
                          .accumulation = Accumulation::kFast};
    for (const bool all : {false, true})
      for (const Float8Reducing& problem : std::vector<Float8Reducing>{
               {.m = 512, .n = 256, .k = {256, 256}},
               {.kind = tensors, .m = 333, .n = 272, .k = {128, 64}, .bias = true},
               {.kind = rows, .m = 1024, .n = 512, .k = {256, 512}, .bias = true},
               {.kind = rows,
               .dim = ChunkDim::kN,
               .m = 200,
               .n = 272,
               .k = {64, 128},
               .reduction = Reduction::kAverage},
               {.kind = fast, .batch = 2, .m = 130, .n = 64, .k = {64, 64}},
               {.kind = fast, .m = 300, .n = 128, .k = {64, 64}, .fusion = Fusion::kUnfused}})
        expect_summed(problem, all, group, context);
  });
}

// Many executions in flight, with two sets of scales in turns: none is overwritten too early.
TEST_F(GpuFloat8Ranks, GatherScalesBackToBack) {
  on_gpus([](const Group& group, const Context& context) {
    const Float8Case kind{.scaling = Scaling::kRow};
    const int64_t m = 512, n = 256, k = 128, begin = m * group.rank();
    const AllGatherMatmul plan(context, group,
                               {.dtype = kind.dtype,
                                .m = m,
                                .k = k,
                                .products = {{.n = n, .out_dtype = kind.out_dtype}},
                                .fusion = Fusion::kFused,
                                .scaling = kind.scaling,
                                .sharded_scales = true});
    const GpuWorkspace workspace(context, plan);
    const Matrix a = Matrix::random({m * kFloat8Ranks, k}, kind.dtype, 1);
    const OnGpu whole(context, a), shard(context, part_of(a, 0, begin, begin + m));
    const RightOnGpu b(context, kind.b_dtype, 0, k, n, 2);
    const ScalesOnGpu scale_b(context, kind.scaling, 0, n, 3),
        scale_a[] = {{context, kind.scaling, 0, m * kFloat8Ranks, 4},
                     {context, kind.scaling, 0, m * kFloat8Ranks, 5}};
    const Matrix wanted[] = {float8_product(context, kind, kind.out_dtype, whole.tensor(),
                                            b.tensor(), scale_a[0], scale_b),
                             float8_product(context, kind, kind.out_dtype, whole.tensor(),
                                            b.tensor(), scale_a[1], scale_b)};
    EXPECT_NE(wanted[0].bytes, wanted[1].bytes);
    constexpr size_t kOutputs = 20;
    std::vector<OnGpu> c;
    for (size_t i = 0; i < kOutputs; ++i)
      c.emplace_back(context, Matrix(wanted[0].shape, kind.out_dtype));
    for (int round = 0; round < 10; ++round) {
      for (size_t i = 0; i < kOutputs; ++i)
        plan.execute({.a = shard.tensor(),
                      .b = {b.tensor()},
                      .c = {c[i].tensor()},
                      .deadline = kFloat8Deadline,
                      .scale_a = scale_a[i % 2].slice(begin, begin + m),
                      .scale_b = {scale_b.tensor()}},
                     workspace.bytes());
      context.synchronize();
      for (size_t i = 0; i < kOutputs; ++i)
        EXPECT_EQ(c[i].get().bytes, wanted[i % 2].bytes) << "round " << round << ", " << i;
    }
  });
}

// The others' synchronisation names the rank.
TEST_F(GpuFloat8Ranks, NameARankWhoseScalesAreMissing) {
  on_gpus([](const Group& group, const Context& context) {
    const Float8Case kind{.scaling = Scaling::kRow};
    const int64_t m = 256, n = 128, k = 64;
    const AllGatherMatmul plan(context, group,
                               {.dtype = kind.dtype,
                                .m = m,
                                .k = k,
                                .products = {{.n = n}},
                                .fusion = Fusion::kFused,
                                .scaling = kind.scaling,
                                .sharded_scales = true});
    const GpuWorkspace workspace(context, plan);
    const OnGpu shard(context, Matrix::random({m, k}, kind.dtype, 1)),
        c(context, Matrix({m * kFloat8Ranks, n}, perseid::f32));
    const RightOnGpu b(context, kind.b_dtype, 0, k, n, 2);
    const ScalesOnGpu scale_a(context, kind.scaling, 0, m, 3),
        scale_b(context, kind.scaling, 0, n, 4);
    perseid_wait_record record{};
    const auto once = [&] {
      plan.execute({.a = shard.tensor(),
                    .b = {b.tensor()},
                    .c = {c.tensor()},
                    .deadline = 300ms,
                    .record = &record,
                    .scale_a = scale_a.tensor(),
                    .scale_b = {scale_b.tensor()}},
                   workspace.bytes());
      context.synchronize();
    };
    once();
    if (group.rank() == 1) std::this_thread::sleep_for(700ms);
    const Ended waited = ended(once);
    EXPECT_EQ(waited.status, PERSEID_TIMEOUT) << waited.sentence;
    EXPECT_NE(waited.sentence.find("rank 1"), std::string::npos) << waited.sentence;
    EXPECT_EQ(group.info().failed_rank, 1);
    if (group.rank() == 0) {
      EXPECT_LT(waited.seconds, are_hosts() ? 1 : 0.6);
      EXPECT_EQ(record.status, PERSEID_TIMEOUT);
      EXPECT_EQ(record.rank, 1);
      EXPECT_EQ(record.chunk, 1);
    }
  });
}

}  // namespace
