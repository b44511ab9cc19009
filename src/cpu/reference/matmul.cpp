// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// c = activation(alpha * a b + beta * c0 + bias) * scale_result. A task is a tile of c: for every
// k, a column of a and a row of b are widened to float64, times their scales, and their outer
// product is added to the tile, so each sum runs over k in order.
#include <cmath>
#include <mutex>

#include "cpu/reference/access.hpp"
#include "cpu/reference/reference.hpp"

namespace perseid::internal::cpu::reference {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileColumns = 64;

// Multiplies `count` elements by their scales: those of lines `first` and on, at depth k.
void scale_lines(const Tensor& scales, int64_t batch, int64_t first, int64_t count,
                 int64_t lines_of_scale, int64_t k, double* lines) {
  if (!scales.present()) return;
  for (int64_t i = 0; i < count; ++i)
    lines[i] *=
        load(scales, batch * scales.stride[0] + (first + i) / lines_of_scale * scales.stride[1] +
                         k / kScaledBlock * scales.stride[2]);
}

double activated(Activation activation, double y) {
  constexpr double kSqrt2OverPi = 0.79788456080286535588, kSqrtHalf = 0.70710678118654752440;
  switch (activation) {
    case Activation::kGeluTanh:
      return 0.5 * y * (1 + std::tanh(kSqrt2OverPi * (y + 0.044715 * y * y * y)));
    case Activation::kGeluErf:
      return 0.5 * y * (1 + std::erf(y * kSqrtHalf));
    case Activation::kSilu:
      return y / (1 + std::exp(-y));
    case Activation::kNone:
      break;
  }
  return y;
}

// The larger magnitude, or NaN where one is.
double larger(double most, double value) {
  return std::isnan(most) || most >= std::abs(value) ? most : std::abs(value);
}

// Returns the largest magnitude of the tile, before scale_result.
double multiply_tile(const MatmulProblem& problem, const MatmulArguments& arguments, int64_t batch,
                     int64_t first_row, int64_t first_column) {
  const int64_t rows = min(kTileRows, problem.m - first_row);
  const int64_t columns = min(kTileColumns, problem.n - first_column);
  const auto offset = [&](const Tensor& tensor, int64_t row, int64_t column) {
    return batch * tensor.stride[0] + row * tensor.stride[1] + column * tensor.stride[2];
  };

  const int64_t columns_of_scale = problem.scaling == Scaling::kBlock ? kScaledBlock : 1;
  double sums[kTileRows][kTileColumns] = {};
  double a[kTileRows];
  double b[kTileColumns] = {};
  for (int64_t k = 0; k < problem.depth(); ++k) {
    load_row(arguments.a, offset(arguments.a, first_row, k), arguments.a.stride[1], rows, a, 1);
    load_row(arguments.b, offset(arguments.b, k, first_column), arguments.b.stride[2], columns, b,
             1);
    scale_lines(arguments.scale_a, batch, first_row, rows, 1, k, a);
    scale_lines(arguments.scale_b, batch, first_column, columns, columns_of_scale, k, b);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < kTileColumns; ++j) sums[i][j] += a[i] * b[j];
  }

  double most = 0;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t row = first_row + i, column = first_column + j;
      double value = problem.alpha * sums[i][j];
      if (problem.beta != 0)
        value += problem.beta * load(arguments.c0, offset(arguments.c0, row, column));
      if (problem.bias) value += load(arguments.bias, column * arguments.bias.stride[0]);
      value = activated(problem.activation, value);
      most = larger(most, value);
      if (problem.scale_result) value *= load(arguments.scale_result, 0);
      store(arguments.c, offset(arguments.c, row, column), value);
    }
  }
  return most;
}

}  // namespace

void matmul(const MatmulProblem& problem, const MatmulArguments& arguments,
            const Execution& execution) {
  const int64_t tiles_down = ceil_div(problem.m, kTileRows);
  const int64_t tiles_across = ceil_div(problem.n, kTileColumns);
  std::mutex mutex;
  double most = 0;
  for_each_task(
      execution.executor, problem.batch * tiles_down * tiles_across, [&](int64_t task, int32_t) {
        const double of_tile = multiply_tile(problem, arguments, task / (tiles_down * tiles_across),
                                             task / tiles_across % tiles_down * kTileRows,
                                             task % tiles_across * kTileColumns);
        const std::lock_guard lock(mutex);
        most = larger(most, of_tile);
      });
  if (problem.amax) store(arguments.amax, 0, most);
}

}  // namespace perseid::internal::cpu::reference
