// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What matmul_tensor_core has of its own for f32 that was split into two planes of f16
// (device/split/halves.hpp): the products of a stage, and the factors of rows and columns.
//
// A line of a stage has [32 high halves][32 low halves] of 32 of k, two steps of 16. The tensor
// cores truncate at each addition; so they sum the products of a stage alone, from zero, and
// registers add those to the sums in float32, rounded to nearest:
//
//   products = low high' + high low'    of both steps
//   sums    += products 2^-12
//   products = high high'               of both steps, the second first: its halves are still there
//   sums    += products
#pragma once

#include "cuda/device/matmul/output.hpp"
#include "cuda/device/matmul/tensor_core_warp.hpp"
#include "cuda/device/split/halves.hpp"

namespace perseid::internal::cuda {

// `stage`, `row` and `column`: as WarpOperands::load says.
template <MatmulTensorConfig C>
__device__ __forceinline__ void add_stage_of_planes(uint32_t stage, int row, int column,
                                                    WarpSums<C>& sums) {
  constexpr int kStep = TileLayout<C>::kStep, kSteps = 2, kLow = kStep * kSteps;
  WarpOperands<C> high, low;
  WarpSums<C> products;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    high.load(stage, row, column, kStep * i);
    low.load(stage, row, column, kLow + kStep * i);
    products.add(low, high);
    products.add(high, low);
  }
  sums.add(products, 1 / kLowHalfScale);
  products = {};
#pragma unroll
  for (int i = kSteps - 1; i >= 0; --i) {
    if (i + 1 < kSteps) high.load(stage, row, column, kStep * i);
    products.add(high);
  }
  sums.add(products, 1);
}

// Writes elements times the factors of their row and column; where one is NaN, nothing.
class PlaneFactors {
 public:
  __device__ __forceinline__ PlaneFactors(const MatmulLaunch& launch, int64_t batch)
      : rows_(of(launch.row_factors, batch)),
        columns_(of(launch.column_factors, batch)),
        last_row_(launch.rows - 1),
        last_column_(launch.columns - 1) {}

  template <class Output>
  __device__ __forceinline__ void write(Output& output, int64_t row, int64_t column, float first,
                                        float second) const {
    const float of_row = rows_[min(row, last_row_)];
    const float of_first = columns_[min(column, last_column_)];
    const float of_second = columns_[min(column + 1, last_column_)];
    if (isnan(of_row)) return;
    first = first * of_row * of_first;
    second = second * of_row * of_second;
    if (!isnan(of_first) && !isnan(of_second)) {
      output.write(row, column, first, second);
    } else if (!isnan(of_first)) {
      output.write(row, column, first);
    } else if (!isnan(of_second)) {
      output.write(row, column + 1, second);
    }
  }

 private:
  static __device__ __forceinline__ const float* of(const MatmulFactors& factors, int64_t batch) {
    return factors.data + batch * factors.batch;
  }

  const float *rows_, *columns_;
  int64_t last_row_, last_column_;
};

}  // namespace perseid::internal::cuda
