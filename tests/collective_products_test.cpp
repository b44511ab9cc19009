// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Products over threads as ranks: scales and types of several products, and results that lie in
// columns or with gaps.
#include "collective_tools.hpp"

namespace {

using namespace collective_tools;
using perseid::AllGatherMatmul;
using perseid::ChunkDim;
using perseid::Context;
using perseid::Fusion;
using perseid::GatherProduct;
using perseid::Matmul;
using perseid::MatmulReduce;
using perseid::Workspace;

// alpha a b + bias by the plain product.
Matrix scaled_product(const Matrix& a, const Matrix& b, const GatherProduct& of,
                      const Tensor& bias) {
  const DType out = of.out_dtype == DType::kNone ? a.dtype : of.out_dtype;
  const Matmul matmul(Context::cpu(1), {.dtype = a.dtype,
                                        .out_dtype = out,
                                        .m = a.shape[0],
                                        .n = of.n,
                                        .k = a.shape[1],
                                        .alpha = of.alpha,
                                        .bias = of.bias});
  Matrix c({a.shape[0], of.n}, out);
  Workspace workspace;
  matmul.reserve(workspace);
  matmul.execute(
      nullptr,
      {.a = a.tensor(), .b = b.tensor(), .bias = of.bias ? bias : Tensor(), .c = c.tensor()},
      workspace);
  return c;
}

// Of each product its own alpha, type, columns and bias.
TEST(AllGatherProducts, HaveScalesAndTypesOfTheirOwn) {
  const Context context = Context::cpu(2);
  for (const DType dtype : {perseid::bf16, perseid::f16, perseid::f32, perseid::f64})
    for (const ChunkDim dim : {ChunkDim::kM, ChunkDim::kK})
      for (const Fusion fusion : {Fusion::kFused, Fusion::kUnfused})
        on_threads(2, [&](const Group& group) {
          const bool along_k = dim == ChunkDim::kK;
          const DType wide = bytes_of(dtype) == 2 ? perseid::f32 : dtype;
          const std::vector<GatherProduct> products = {
              {.n = 30, .out_dtype = wide, .alpha = -0.5},
              {.n = 7, .alpha = 3, .bias = true},
              {.n = 16, .out_dtype = dtype},
              {.n = 9, .out_dtype = wide, .alpha = 0.25, .bias = true}};
          const int64_t m = 90, k = 64, half = (along_k ? k : m) / 2;
          const AllGatherMatmul plan(context, group,
                                     {.dtype = dtype,
                                      .gather_dim = dim,
                                      .m = along_k ? m : half,
                                      .k = along_k ? half : k,
                                      .products = products,
                                      .chunks = 2,
                                      .fusion = fusion});
          const Matrix a = Matrix::random({m, k}, dtype, 1);
          std::vector<Matrix> b, bias, c;
          perseid::AllGatherMatmulArguments with{.a = a.tensor().slice(along_k ? -1 : -2,
                                                                       half * group.rank(),
                                                                       half * (group.rank() + 1))};
          for (const GatherProduct& of : products) {
            b.push_back(Matrix::random({k, of.n}, dtype, 2 + b.size()));
            bias.push_back(Matrix::random({of.n}, dtype, 20 + bias.size()));
            c.emplace_back(std::vector<int64_t>{m, of.n},
                           of.out_dtype == DType::kNone ? dtype : of.out_dtype);
          }
          for (size_t i = 0; i < products.size(); ++i) {
            with.b.push_back(b[i].tensor());
            with.bias.push_back(products[i].bias ? bias[i].tensor() : Tensor());
            with.c.push_back(c[i].tensor());
          }
          Workspace workspace;
          plan.reserve(workspace);
          plan.execute(with, workspace);
          for (size_t i = 0; i < products.size(); ++i)
            EXPECT_EQ(c[i].bytes, scaled_product(a, b[i], products[i], bias[i].tensor()).bytes)
                << "product " << i << ", rank " << group.rank();
        });
}

// ---- Results with strides

// Memory for [m, n], which lies by rows or by columns, with some elements between two of either.
struct Spread {
  Matrix memory;
  Tensor tensor;

  Spread(int64_t m, int64_t n, bool by_columns, int64_t gap, DType dtype)
      : memory({by_columns ? n : m, (by_columns ? m : n) + gap}, dtype),
        tensor(by_columns ? memory.tensor().transposed().slice(0, 0, m)
                          : memory.tensor().slice(1, 0, n)) {}
  // What lies between the elements is as it was.
  bool gaps_are_untouched(int64_t length) const {
    const auto row = static_cast<size_t>(memory.shape[1] * bytes_of(memory.dtype)),
               used = static_cast<size_t>(length * bytes_of(memory.dtype));
    for (size_t at = 0; at < memory.bytes.size(); ++at)
      if (at % row >= used && memory.bytes[at] != std::byte{0xff}) return false;
    return true;
  }
};

// result_of(c) on every rank writes into c, [m, n]: the same bits wherever it lies.
template <class Write>
void expect_the_same_wherever(int64_t m, int64_t n, DType dtype, const Write& write) {
  const Matrix wanted({m, n}, dtype);
  write(wanted.tensor());
  for (const bool by_columns : {false, true})
    for (const int64_t gap : {0, 5}) {
      SCOPED_TRACE(testing::Message() << (by_columns ? "columns" : "rows") << ", gap " << gap);
      const Spread c(m, n, by_columns, gap, dtype);
      write(c.tensor);
      EXPECT_EQ(copy_of(c.tensor, dtype).bytes, wanted.bytes);
      EXPECT_TRUE(c.gaps_are_untouched(by_columns ? m : n));
    }
}

TEST(StridedResults, OfGatheredProducts) {
  const Context context = Context::cpu(2);
  for (const DType dtype : {perseid::f32, perseid::bf16})
    for (const Fusion fusion : {Fusion::kFused, Fusion::kUnfused})
      on_threads(3, [&](const Group& group) {
        const int64_t m = 40, n = 33, k = 24, begin = m * group.rank();
        const AllGatherMatmul plan(context, group,
                                   {.dtype = dtype,
                                    .m = m,
                                    .k = k,
                                    .products = {{.n = n}, {.n = n, .alpha = 2}},
                                    .chunks = 2,
                                    .fusion = fusion});
        const Matrix a = Matrix::random({3 * m, k}, dtype, 1), b = Matrix::random({k, n}, dtype, 2);
        Workspace workspace;
        plan.reserve(workspace);
        for (const size_t strided : {0, 1})
          expect_the_same_wherever(3 * m, n, dtype, [&](const Tensor& c) {
            const Matrix other({3 * m, n}, dtype);
            plan.execute(
                {.a = a.tensor().slice(0, begin, begin + m),
                 .b = {b.tensor(), b.tensor()},
                 .c = {strided == 0 ? c : other.tensor(), strided == 1 ? c : other.tensor()}},
                workspace);
          });
      });
}

TEST(StridedResults, OfReducedProducts) {
  const Context context = Context::cpu(2);
  for (const DType dtype : {perseid::f32, perseid::bf16})
    for (const ChunkDim dim : {ChunkDim::kM, ChunkDim::kN})
      for (const bool all : {false, true})
        for (const Fusion fusion : {Fusion::kFused, Fusion::kUnfused})
          on_threads(3, [&](const Group& group) {
            const int64_t m = 41, n = 32, k = 24, rank = group.rank();
            const MatmulReduce plan(context, group,
                                    {.dtype = dtype,
                                     .scatter_dim = dim,
                                     .all_reduce = all,
                                     .bias = true,
                                     .m = m,
                                     .n = n,
                                     .k = k,
                                     .fusion = fusion});
            const auto share = [&](int64_t extent) {
              return all ? extent : (rank + 1) * extent / 3 - rank * extent / 3;
            };
            const auto seed = static_cast<uint64_t>(rank);
            const Matrix a = Matrix::random({m, k}, dtype, 10 + seed),
                         b = Matrix::random({k, n}, dtype, 20 + seed),
                         bias = Matrix::random({n}, dtype, 3);
            Workspace workspace;
            plan.reserve(workspace);
            expect_the_same_wherever(
                dim == ChunkDim::kM ? share(m) : m, dim == ChunkDim::kN ? share(n) : n, dtype,
                [&](const Tensor& c) {
                  plan.execute({.a = a.tensor(), .b = b.tensor(), .bias = bias.tensor(), .c = c},
                               workspace);
                });
          });
}

}  // namespace
