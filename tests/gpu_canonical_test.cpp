// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Canonical order of products on GPUs: one GPU and several have the same bits, which are those of
// the tree by its definition: eight plain products, added in pairs of neighbours.
#include "gpu_collective_tools.hpp"

namespace {

using namespace collective_tools;
using perseid::AllGatherMatmul;
using perseid::ChunkDim;
using perseid::Fusion;
using perseid::MatmulReduce;

constexpr auto kLeafDeadline = 5s;
constexpr int64_t kLeaves = 8;

class GpuCanonicalOrder : public GpuRanksTest {};

struct LeafProblem {
  DType dtype, out_dtype;
  int64_t m, n, leaf;
  bool bias = false;

  int64_t k() const { return kLeaves * leaf; }
};

Matrix plus(Matrix left, const Matrix& right) {
  const size_t period = right.bytes.size() / sizeof(float);
  for (size_t i = 0; i < left.bytes.size() / sizeof(float); ++i) {
    const float sum = left.value(i) + right.value(i % period);
    std::memcpy(left.at(i), &sum, sizeof sum);
  }
  return left;
}

// The bf16 matrix in float32.
Matrix widened(const Matrix& bf16) {
  Matrix wide(bf16.shape, perseid::f32);
  for (size_t i = 0; i < bf16.bytes.size() / 2; ++i) {
    uint16_t half = 0;
    std::memcpy(&half, bf16.bytes.data() + 2 * i, sizeof half);
    const uint32_t bits = uint32_t{half} << 16;
    std::memcpy(wide.at(i), &bits, sizeof bits);
  }
  return wide;
}

Matrix rounded(const Matrix& sums, DType dtype) {
  if (dtype == perseid::f32) return sums;
  Matrix out(sums.shape, dtype);
  for (size_t i = 0; i < out.bytes.size() / 2; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, sums.bytes.data() + 4 * i, sizeof bits);
    const auto half = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    std::memcpy(out.at(i), &half, sizeof half);
  }
  return out;
}

struct Operands {
  Matrix a, b, bias, wanted;

  Operands(const Context& context, const LeafProblem& problem)
      : a(Matrix::random({problem.m, problem.k()}, problem.dtype, 1)),
        b(Matrix::random({problem.k(), problem.n}, problem.dtype, 2)),
        bias(Matrix::random({problem.n}, problem.dtype, 3)),
        wanted(by_definition(context, problem)) {}

 private:
  Matrix by_definition(const Context& context, const LeafProblem& problem) const {
    std::vector<Matrix> leaf;
    for (int64_t i = 0; i < kLeaves; ++i) {
      const int64_t begin = i * problem.leaf, end = begin + problem.leaf;
      leaf.push_back(
          gpu_product(context, part_of(a, 1, begin, end), part_of(b, 0, begin, end), perseid::f32));
    }
    const Matrix sum = plus(plus(plus(leaf[0], leaf[1]), plus(leaf[2], leaf[3])),
                            plus(plus(leaf[4], leaf[5]), plus(leaf[6], leaf[7])));
    return rounded(problem.bias ? plus(sum, widened(bias)) : sum, problem.out_dtype);
  }
};

class GpuCanonicalProducts : public GpuCanonicalOrder,
                             public testing::WithParamInterface<LeafProblem> {};
// Tiles of either number of consumers, in pairs of blocks and not, with rows that overhang.
INSTANTIATE_TEST_SUITE_P(
    , GpuCanonicalProducts,
    testing::Values(LeafProblem{perseid::bf16, perseid::bf16, 520, 264, 64, true},
                    LeafProblem{perseid::f16, perseid::f32, 100, 72, 192},
                    LeafProblem{perseid::bf16, perseid::f32, 4224, 2048, 128}));

TEST_P(GpuCanonicalProducts, ReducedAreTheTree) {
  const LeafProblem& problem = GetParam();
  if (problem.m > 1000 && ranks_share_a_gpu()) GTEST_SKIP() << kOwnGpus;
  for (const int32_t ranks : rank_counts({1, 2, 4}))
    on_gpu_ranks(ranks, [&](const Group& group) {
      const int32_t rank = group.rank();
      const Context context = context_of(rank);
      const Operands with(context, problem);
      const int64_t k = problem.k() / ranks;
      const OnGpu a(context, part_of(with.a, 1, rank * k, (rank + 1) * k)),
          b(context, part_of(with.b, 0, rank * k, (rank + 1) * k)), bias(context, with.bias);
      for (int kind = 0; kind < 4; ++kind) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, m " << problem.m << ", kind " << kind);
        const bool along_n = kind == 1, all = kind > 1;
        const MatmulReduce plan(context, group,
                                {.dtype = problem.dtype,
                                 .out_dtype = problem.out_dtype,
                                 .scatter_dim = along_n ? ChunkDim::kN : ChunkDim::kM,
                                 .all_reduce = all,
                                 .bias = problem.bias,
                                 .m = problem.m,
                                 .n = problem.n,
                                 .k = k,
                                 .fusion = kind == 2 ? Fusion::kUnfused : Fusion::kFused,
                                 .canonical = true});
        const int64_t extent = along_n ? problem.n : problem.m;
        const Matrix wanted = all ? with.wanted
                                  : part_of(with.wanted, along_n ? 1 : 0, rank * extent / ranks,
                                            (rank + 1) * extent / ranks);
        const OnGpu c(context, Matrix(wanted.shape, problem.out_dtype));
        const GpuWorkspace workspace(context, plan);
        for (int run = 0; run < 2; ++run) {
          plan.execute({.a = a.tensor(),
                        .b = b.tensor(),
                        .bias = problem.bias ? bias.tensor() : Tensor(),
                        .c = c.tensor(),
                        .deadline = kLeafDeadline},
                       workspace.bytes());
          context.synchronize();
          EXPECT_TRUE(c.get().bytes == wanted.bytes) << "rank " << rank;
        }
      }
    });
}

// The product of a group whose ranks have shards of a along one of its dimensions.
Matrix gather(const Context& context, const Group& group, const LeafProblem& problem,
              const Operands& with, bool along_k) {
  const int32_t rank = group.rank(), ranks = group.size();
  const int64_t extent = along_k ? problem.k() : problem.m;
  const int64_t begin = rank * extent / ranks, end = (rank + 1) * extent / ranks;
  const AllGatherMatmul plan(
      context, group,
      {.dtype = problem.dtype,
       .gather_dim = along_k ? ChunkDim::kK : ChunkDim::kM,
       .m = along_k ? problem.m : end - begin,
       .k = along_k ? end - begin : problem.k(),
       .products = {{.n = problem.n, .out_dtype = problem.out_dtype, .bias = problem.bias}},
       .chunks = 2,
       .fusion = Fusion::kFused,
       .canonical = true});
  const OnGpu b(context, with.b), bias(context, with.bias),
      a(context, part_of(with.a, along_k ? 1 : 0, begin, end)),
      c(context, Matrix(with.wanted.shape, problem.out_dtype));
  const GpuWorkspace workspace(context, plan);
  plan.execute({.a = a.tensor(),
                .b = {b.tensor()},
                .bias = {problem.bias ? bias.tensor() : Tensor()},
                .c = {c.tensor()},
                .deadline = kLeafDeadline},
               workspace.bytes());
  context.synchronize();
  return c.get();
}

// Each rank sums the whole depth, in the order of k.
TEST_P(GpuCanonicalProducts, GatheredAreThoseOfOneGpu) {
  const LeafProblem& problem = GetParam();
  for (const int32_t ranks : rank_counts({2, 4}))
    on_gpu_ranks(ranks, [&](const Group& group) {
      const Context context = context_of(group.rank());
      const Operands with(context, problem);
      const Matrix alone = gather(context, Group::threads(1)[0], problem, with, false);
      if (problem.m > 1000) {  // of fewer rows, plain products split the depth
        EXPECT_TRUE(alone.bytes == gpu_product(context, with.a, with.b, problem.out_dtype,
                                               problem.bias ? &with.bias : nullptr)
                                       .bytes);
      }
      for (const bool along_k : {false, true})
        EXPECT_TRUE(gather(context, group, problem, with, along_k).bytes == alone.bytes)
            << "rank " << group.rank() << ", m " << problem.m << ", along k " << along_k;
    });
}

TEST_F(GpuCanonicalOrder, OfProductsIsRefusedWhereItCannotHold) {
  on_gpu_ranks(2, [&](const Group& group) {
    const Context context = context_of(group.rank());
    const auto refused = [&](DType dtype, int64_t k, const char* part) {
      const Ended end = ended([&] {
        MatmulReduce(context, group, {.dtype = dtype, .m = 64, .n = 64, .k = k, .canonical = true});
      });
      EXPECT_EQ(end.status, PERSEID_UNSUPPORTED) << end.sentence;
      EXPECT_NE(end.sentence.find(part), std::string::npos) << end.sentence;
    };
    refused(perseid::bf16, 520, "made for leaves whose depth is a multiple of 64");
    refused(perseid::f32, 512, "does not sum in leaves");
  });
}

}  // namespace
