// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// c = alpha * a b + beta * c0 + bias. A task is a tile of c: for every k, a column of a and a row
// of b are widened to float64 and their outer product is added to the tile, so each sum runs over k
// in order.
#include "cpu/reference/access.hpp"
#include "cpu/reference/reference.hpp"

namespace perseid::internal::cpu::reference {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileColumns = 64;

void multiply_tile(const MatmulProblem& problem, const MatmulArguments& arguments, int64_t batch,
                   int64_t first_row, int64_t first_column) {
  const int64_t rows = min(kTileRows, problem.m - first_row);
  const int64_t columns = min(kTileColumns, problem.n - first_column);
  const auto offset = [&](const Tensor& tensor, int64_t row, int64_t column) {
    return batch * tensor.stride[0] + row * tensor.stride[1] + column * tensor.stride[2];
  };

  double sums[kTileRows][kTileColumns] = {};
  double a[kTileRows];
  double b[kTileColumns] = {};
  for (int64_t k = 0; k < problem.depth(); ++k) {
    load_row(arguments.a, offset(arguments.a, first_row, k), arguments.a.stride[1], rows, a, 1);
    load_row(arguments.b, offset(arguments.b, k, first_column), arguments.b.stride[2], columns, b,
             1);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < kTileColumns; ++j) sums[i][j] += a[i] * b[j];
  }

  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t row = first_row + i, column = first_column + j;
      double value = problem.alpha * sums[i][j];
      if (problem.beta != 0)
        value += problem.beta * load(arguments.c0, offset(arguments.c0, row, column));
      if (problem.bias) value += load(arguments.bias, column * arguments.bias.stride[0]);
      store(arguments.c, offset(arguments.c, row, column), value);
    }
  }
}

}  // namespace

void matmul(const MatmulProblem& problem, const MatmulArguments& arguments,
            const Execution& execution) {
  const int64_t tiles_down = ceil_div(problem.m, kTileRows);
  const int64_t tiles_across = ceil_div(problem.n, kTileColumns);
  for_each_task(execution.executor, problem.batch * tiles_down * tiles_across,
                [&](int64_t task, int32_t) {
                  multiply_tile(problem, arguments, task / (tiles_down * tiles_across),
                                task / tiles_across % tiles_down * kTileRows,
                                task % tiles_across * kTileColumns);
                });
}

}  // namespace perseid::internal::cpu::reference
