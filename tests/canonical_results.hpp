// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What ranks compute together in canonical order: whole results, the same on every rank and for
// every number of ranks.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "perseid/collective.hpp"

namespace canonical_results {

using perseid::Tensor;

class Matrix {
 public:
  Matrix(int64_t rows, int64_t columns, uint64_t seed)
      : columns_(columns), values_(static_cast<size_t>(rows * columns)) {
    std::mt19937_64 engine(seed);
    std::uniform_real_distribution<float> random(-1, 1);
    for (float& value : values_) value = random(engine);
  }

  int64_t rows() const { return static_cast<int64_t>(values_.size()) / columns_; }
  const std::vector<float>& values() const { return values_; }
  Tensor tensor() const { return Tensor(values_.data(), perseid::f32, {rows(), columns_}); }
  // Rows as those of attention, [1, rows, heads, dim].
  Tensor heads(int64_t count) const {
    return Tensor(values_.data(), perseid::f32, {1, rows(), count, columns_ / count});
  }
  // The rows of a rank.
  Matrix part(const perseid::Group& group) const {
    const int64_t begin = rows() * group.rank() / group.size(),
                  end = rows() * (group.rank() + 1) / group.size();
    Matrix part(0, columns_, 0);
    part.values_.assign(values_.begin() + begin * columns_, values_.begin() + end * columns_);
    return part;
  }

 private:
  int64_t columns_;
  std::vector<float> values_;
};

// A gathered product and attention, on any number of ranks.
inline std::vector<float> gathered(const perseid::Group& group, const perseid::Context& context) {
  constexpr int64_t kRows = 80, kDepth = 700, kColumns = 30, kTokens = 600, kHeads = 2, kDim = 32;
  std::vector<float> results;
  perseid::Workspace workspace;
  const Matrix a = Matrix(kRows, kDepth, 1).part(group), b(kDepth, kColumns, 2),
               c(kRows, kColumns, 0);
  const perseid::AllGatherMatmul product(
      context, group,
      {.m = a.rows(), .k = kDepth, .products = {{.n = kColumns}}, .canonical = true});
  product.reserve(workspace);
  product.execute({.a = a.tensor(), .b = {b.tensor()}, .c = {c.tensor()}}, workspace);
  results = c.values();

  const auto rows = [&](uint64_t seed) { return Matrix(kTokens, kHeads * kDim, seed).part(group); };
  // More keys than a block, so that their order matters.
  const Matrix query = rows(3), key = rows(4), value = rows(5), out = query,
               all(kTokens, kHeads * kDim, 0);
  std::vector<float> lse(static_cast<size_t>(kHeads * query.rows()));
  const perseid::ContextAttention attention(context, group,
                                            {.attention = {.heads = kHeads,
                                                           .q_len = query.rows(),
                                                           .kv_len = query.rows(),
                                                           .head_dim = kDim,
                                                           .mask = perseid::causal_bottom_right()},
                                             .placement = perseid::Sharding::kContiguous,
                                             .canonical = true});
  attention.reserve(workspace);
  attention.forward(nullptr,
                    {.query = query.heads(kHeads),
                     .key = key.heads(kHeads),
                     .value = value.heads(kHeads),
                     .out = out.heads(kHeads),
                     .lse = Tensor(lse.data(), perseid::f32, {1, kHeads, query.rows()})},
                    workspace);
  group.all_gather(out.tensor(), all.tensor());
  results.insert(results.end(), all.values().begin(), all.values().end());
  return results;
}

// A product whose depth the ranks share, and gradients of attention: on 1, 2, 4 and 8 ranks.
inline std::vector<float> summed(const perseid::Group& group, const perseid::Context& context) {
  constexpr int64_t kRows = 40, kDepth = 8 * 33, kColumns = 30, kHeads = 2, kDim = 32, kTokens = 64;
  std::vector<float> results;
  perseid::Workspace workspace;
  // Columns of a, as rows of its transpose.
  const Matrix at = Matrix(kDepth, kRows, 6).part(group),
               b = Matrix(kDepth, kColumns, 7).part(group), c(kRows, kColumns, 0);
  const perseid::MatmulReduce product(
      context, group,
      {.all_reduce = true, .m = kRows, .n = kColumns, .k = at.rows(), .canonical = true});
  product.reserve(workspace);
  product.execute({.a = at.tensor().transposed(), .b = b.tensor(), .c = c.tensor()}, workspace);
  results = c.values();

  const auto rows = [&](uint64_t seed) { return Matrix(kTokens, kHeads * kDim, seed).part(group); };
  const Matrix query = rows(8), key = rows(9), value = rows(10), grad = rows(11);
  const Matrix out = query, grad_query = query, grad_key = key, grad_value = value;
  std::vector<float> lse(static_cast<size_t>(kHeads * query.rows()));
  const Tensor lse_tensor(lse.data(), perseid::f32, {1, kHeads, query.rows()});
  const perseid::ContextAttention attention(context, group,
                                            {.attention = {.heads = kHeads,
                                                           .q_len = query.rows(),
                                                           .kv_len = query.rows(),
                                                           .head_dim = kDim,
                                                           .mask = perseid::causal_bottom_right(),
                                                           .backward = true},
                                             .placement = perseid::Sharding::kContiguous,
                                             .canonical = true});
  attention.reserve(workspace);
  attention.forward(nullptr,
                    {.query = query.heads(kHeads),
                     .key = key.heads(kHeads),
                     .value = value.heads(kHeads),
                     .out = out.heads(kHeads),
                     .lse = lse_tensor},
                    workspace);
  attention.backward(nullptr,
                     {.query = query.heads(kHeads),
                      .key = key.heads(kHeads),
                      .value = value.heads(kHeads),
                      .out = out.heads(kHeads),
                      .lse = lse_tensor,
                      .grad_out = grad.heads(kHeads),
                      .grad_query = grad_query.heads(kHeads),
                      .grad_key = grad_key.heads(kHeads),
                      .grad_value = grad_value.heads(kHeads)},
                     workspace);
  for (const Matrix* gradient : {&grad_query, &grad_key, &grad_value}) {
    const Matrix all(kTokens, kHeads * kDim, 0);
    group.all_gather(gradient->tensor(), all.tensor());
    results.insert(results.end(), all.values().begin(), all.values().end());
  }
  return results;
}

}  // namespace canonical_results
