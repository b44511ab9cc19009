// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Canonical order over threads as ranks: the same bits for 1, 2, 4 and 8 ranks, which are those of
// the tree by its definition: eight plain products, added in pairs of neighbours.
#include <array>

#include "canonical_tree.hpp"

namespace {

using namespace canonical_tree;
using namespace collective_tools;
using perseid::AllGatherMatmul;
using perseid::ChunkDim;
using perseid::Context;
using perseid::Fusion;
using perseid::MatmulReduce;
using perseid::Workspace;

struct LeafProblem {
  DType dtype, out_dtype;
  int64_t m, n, leaf;  // a leaf's depth
  int64_t batch = 0;   // 0: two dimensions
  bool bias = false;

  int64_t odd_depth = 0;  // that no leaf has

  int64_t k() const { return kLeafCount * leaf + odd_depth; }
  std::vector<int64_t> shape(int64_t rows, int64_t columns) const {
    return batch > 0 ? std::vector<int64_t>{batch, rows, columns}
                     : std::vector<int64_t>{rows, columns};
  }
};

// Rows m above 8, for the order of plain products of few rows is another. A leaf of 300 is more
// than one block of the depth, of 5 no whole pairs.
std::vector<LeafProblem> leaf_problems() {
  return {
      {.dtype = perseid::f32, .out_dtype = perseid::f32, .m = 70, .n = 37, .leaf = 5, .bias = true},
      {.dtype = perseid::f32, .out_dtype = perseid::f32, .m = 210, .n = 270, .leaf = 300},
      {.dtype = perseid::bf16,
       .out_dtype = perseid::bf16,
       .m = 90,
       .n = 41,
       .leaf = 33,
       .batch = 2},
      {.dtype = perseid::bf16, .out_dtype = perseid::f32, .m = 33, .n = 300, .leaf = 270},
      {.dtype = perseid::f64, .out_dtype = perseid::f64, .m = 40, .n = 20, .leaf = 1},
      {.dtype = perseid::f16, .out_dtype = perseid::f32, .m = 24, .n = 17, .leaf = 64},
  };
}

// In float32 (float64) before it is rounded, so that bias is in it, too.
Matrix whole_product(const LeafProblem& problem, const Matrix& a, const Matrix& b,
                     const Matrix& bias) {
  const Matrix sum = product(a.tensor(), b.tensor(), problem.dtype, sums_of(problem.dtype));
  return rounded(problem.bias ? plus(sum, bias) : sum, problem.out_dtype);
}

Matrix by_definition(const LeafProblem& problem, const Matrix& a, const Matrix& b,
                     const Matrix& bias) {
  const Matrix sum = sum_of_leaves([&](int64_t i) {
    const int64_t begin = i * problem.leaf, end = begin + problem.leaf;
    return product(a.tensor().slice(-1, begin, end), b.tensor().slice(-2, begin, end),
                   problem.dtype, sums_of(problem.dtype));
  });
  return rounded(problem.bias ? plus(sum, bias) : sum, problem.out_dtype);
}

TEST(CanonicalOrder, OfReducedProductsIsTheTree) {
  const Context context = Context::cpu(2);
  for (const LeafProblem& problem : leaf_problems()) {
    const Matrix a = Matrix::random(problem.shape(problem.m, problem.k()), problem.dtype, 1),
                 b = Matrix::random(problem.shape(problem.k(), problem.n), problem.dtype, 2),
                 bias = Matrix::random({problem.n}, problem.dtype, 3);
    const Matrix whole = by_definition(problem, a, b, bias);
    for (const int32_t ranks : {1, 2, 4, 8})
      on_threads(ranks, [&](const Group& group) {
        const int32_t rank = group.rank();
        const int64_t k = problem.k() / ranks;
        Workspace workspace;
        for (int kind = 0; kind < 4; ++kind) {
          SCOPED_TRACE(testing::Message()
                       << ranks << " ranks, k " << problem.k() << ", kind " << kind);
          const bool along_n = kind == 1, all = kind > 1;
          const MatmulReduce plan(context, group,
                                  {.dtype = problem.dtype,
                                   .out_dtype = problem.out_dtype,
                                   .scatter_dim = along_n ? ChunkDim::kN : ChunkDim::kM,
                                   .all_reduce = all,
                                   .bias = problem.bias,
                                   .batch = std::max<int64_t>(problem.batch, 1),
                                   .m = problem.m,
                                   .n = problem.n,
                                   .k = k,
                                   .fusion = kind == 2 ? Fusion::kUnfused : Fusion::kFused,
                                   .canonical = true});
          plan.reserve(workspace);
          const int64_t extent = along_n ? problem.n : problem.m;
          const Tensor part = all ? whole.tensor()
                                  : whole.tensor().slice(along_n ? -1 : -2, rank * extent / ranks,
                                                         (rank + 1) * extent / ranks);
          const Matrix wanted = copy_of(part, problem.out_dtype);
          const Matrix c(wanted.shape, problem.out_dtype);
          plan.execute({.a = a.tensor().slice(-1, rank * k, (rank + 1) * k),
                        .b = b.tensor().slice(-2, rank * k, (rank + 1) * k),
                        .bias = problem.bias ? bias.tensor() : Tensor(),
                        .c = c.tensor()},
                       workspace);
          EXPECT_EQ(c.bytes, wanted.bytes) << "rank " << rank;
        }
      });
  }
}

// Shards of rows, and of the depth, where sums are put aside while a shard is late. A rank sums the
// whole depth, whatever it is, in the order of a plain product.
TEST(CanonicalOrder, OfGatheredProductsIsThatOfOneRank) {
  const Context context = Context::cpu(2);
  for (LeafProblem problem : leaf_problems()) {
    problem.odd_depth = 3;
    const Matrix a = Matrix::random(problem.shape(problem.m, problem.k()), problem.dtype, 1),
                 b = Matrix::random(problem.shape(problem.k(), problem.n), problem.dtype, 2),
                 bias = Matrix::random({problem.n}, problem.dtype, 3);
    const Matrix wanted = whole_product(problem, a, b, bias);
    for (const int32_t ranks : {1, 2, 3, 8})
      on_threads(ranks, [&](const Group& group) {
        const int32_t rank = group.rank();
        for (const bool along_k : {false, true}) {
          if (along_k && problem.batch > 0) continue;
          SCOPED_TRACE(testing::Message()
                       << ranks << " ranks, k " << problem.k() << ", along k " << along_k);
          const int64_t extent = along_k ? problem.k() : problem.m;
          const int64_t begin = rank * extent / ranks, end = (rank + 1) * extent / ranks;
          const AllGatherMatmul plan(
              context, group,
              {.dtype = problem.dtype,
               .gather_dim = along_k ? ChunkDim::kK : ChunkDim::kM,
               .batch = std::max<int64_t>(problem.batch, 1),
               .m = along_k ? problem.m : end - begin,
               .k = along_k ? end - begin : problem.k(),
               .products = {{.n = problem.n, .out_dtype = problem.out_dtype, .bias = problem.bias}},
               .chunks = 2,
               .fusion = Fusion::kFused,
               .canonical = true});
          Workspace workspace;
          plan.reserve(workspace);
          const Matrix c(wanted.shape, problem.out_dtype);
          if (rank == 1) std::this_thread::sleep_for(2ms);
          plan.execute({.a = a.tensor().slice(along_k ? -1 : -2, begin, end),
                        .b = {b.tensor()},
                        .bias = {problem.bias ? bias.tensor() : Tensor()},
                        .c = {c.tensor()}},
                       workspace);
          EXPECT_EQ(c.bytes, wanted.bytes) << "rank " << rank;
        }
      });
  }
}

// Columns that are a rank's own are few on 8 ranks and many on one: no element depends on it.
TEST(CanonicalOrder, IsThatOfFewColumnsToo) {
  const Context context = Context::cpu(1);
  const Matrix a = Matrix::random({20, 256}, perseid::f32, 1),
               b = Matrix::random({256, 40}, perseid::f32, 2);
  std::array<Matrix, 2> whole = {Matrix({20, 40}, perseid::f32), Matrix({20, 40}, perseid::f32)};
  for (const size_t many : {0, 1}) {
    const int32_t ranks = many == 1 ? 8 : 1;
    on_threads(ranks, [&](const Group& group) {
      const int64_t n = 40 / ranks, rows = group.rank() == 0 ? 20 : 0;
      const AllGatherMatmul plan(context, group,
                                 {.m = rows, .k = 256, .products = {{.n = n}}, .canonical = true});
      Workspace workspace;
      plan.reserve(workspace);
      plan.execute({.a = a.tensor().slice(0, 0, rows),
                    .b = {b.tensor().slice(1, group.rank() * n, (group.rank() + 1) * n)},
                    .c = {whole[many].tensor().slice(1, group.rank() * n, (group.rank() + 1) * n)}},
                   workspace);
    });
  }
  EXPECT_EQ(whole[0].bytes, whole[1].bytes);
}

TEST(CanonicalOrder, IsRefusedWhereItCannotHold) {
  const Context context = Context::cpu(1);
  const auto expect_refused = [&](int32_t ranks, perseid_status status, const char* sentence,
                                  const std::function<void(const Group&)>& make) {
    on_threads(ranks, [&](const Group& group) {
      const Ended end = ended([&] { make(group); });
      EXPECT_EQ(end.status, status) << end.sentence;
      EXPECT_NE(end.sentence.find(sentence), std::string::npos) << end.sentence;
    });
  };
  expect_refused(3, PERSEID_UNSUPPORTED, "canonical is 1 with 3 ranks, expected 1, 2, 4 or 8",
                 [&](const Group& group) {
                   MatmulReduce(context, group, {.m = 4, .n = 3, .k = 8, .canonical = true});
                 });
  expect_refused(2, PERSEID_INVALID_ARGUMENT, "k of all ranks is 12, expected a multiple of 8",
                 [&](const Group& group) {
                   MatmulReduce(context, group, {.m = 4, .n = 3, .k = 6, .canonical = true});
                 });
  expect_refused(
      2, PERSEID_INVALID_ARGUMENT, "k is 12 on rank 1 and 4 on rank 0", [&](const Group& group) {
        MatmulReduce(context, group,
                     {.m = 4, .n = 3, .k = group.rank() == 0 ? 4 : 12, .canonical = true});
      });
  expect_refused(2, PERSEID_INVALID_ARGUMENT, "canonical is 1 on rank 1 and 0 on rank 0",
                 [&](const Group& group) {
                   MatmulReduce(context, group,
                                {.m = 4, .n = 3, .k = 8, .canonical = group.rank() == 1});
                 });
  expect_refused(1, PERSEID_UNSUPPORTED, "does not sum in leaves", [&](const Group& group) {
    MatmulReduce(context, group,
                 {.m = 4, .n = 3, .k = 8, .implementation = "cpu:reference", .canonical = true});
  });
}

}  // namespace
