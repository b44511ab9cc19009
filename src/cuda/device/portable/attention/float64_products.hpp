// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Products of a warp in float64 with tiles in shared memory (vector_tile.hpp). The warp has 16
// rows; its sums have the layout of ptx/mma.hpp, whose columns follow in groups of eight.
//
// There is no ldmatrix for float64. Lane 4 g + c of a right operand has column g and four numbers
// of the depth. The order of the depth is free as long as both operands have it:
//
//   A B^T   numbers 4 c .. 4 c + 3 of each 16: two vectors of 16 bytes of line g; of A the same
//   W B     lines 2 c, 2 c + 1, 2 c + 8, 2 c + 9 of each 16, which the lane has sums of as W
//
// Neither access has bank conflicts.
#pragma once

#include "cuda/device/portable/attention/warp_products.hpp"

namespace perseid::internal::cuda {

// The lane's numbers of lines of kDim elements.
template <int kDim>
class Float64Lines {
  static constexpr int kLine = line_length(kFloat64Units * kDim);

 public:
  __device__ __forceinline__ Float64Lines(const unsigned char* tile, int lane) {
#pragma unroll
    for (int t = 0; t < 2; ++t) first_[t] = tile + vector_offset<kLine>(lane / 4, lane % 4 * 2 + t);
  }
  // Loads elements from 16 k on of the lines from 8 j on.
  __device__ __forceinline__ void load(int j, int k, double (&numbers)[4]) const {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      // Lines of the same number in each eight permute their vectors alike, in eights.
      const auto pair =
          *reinterpret_cast<const double2*>(first_[t] + vector_offset<kLine>(8 * j, 8 * k));
      numbers[2 * t] = pair.x;
      numbers[2 * t + 1] = pair.y;
    }
  }
  // Loads the first 16 lines as a left operand.
  __device__ __forceinline__ void load_left(int k, double (&numbers)[8]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      double row[4];
      load(r, k, row);
#pragma unroll
      for (int t = 0; t < 4; ++t) numbers[2 * t + r] = row[t];
    }
  }

 private:
  const unsigned char* first_[2];
};

// sums += A B^T over kDim elements. left(k, fragment): of A those from 16 k.
template <int kDim, int kCount, class Left>
__device__ __forceinline__ void multiply_lines(const Left& left, const Float64Lines<kDim>& right,
                                               double (&sums)[kCount]) {
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    double a[8];
    left(k, a);
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      double b[4];
      right.load(j, k, b);
      ptx::mma_f64(eight_columns(sums, j), a, b);
    }
  }
}

// sums += W B over 16 kSteps lines of kDim elements: kEights groups of eight columns, from column 8
// * first on. left(k, fragment): of W the columns from 16 k.
template <int kDim, int kEights, int kSteps, int kCount, class Left>
__device__ __forceinline__ void multiply_columns(const Left& left, const unsigned char* tile,
                                                 int lane, double (&sums)[kCount], int first) {
  constexpr int kLine = line_length(kFloat64Units * kDim);
  const unsigned char* at[2][2];  // the lane's first elements: of even and odd lines and groups
#pragma unroll
  for (int t = 0; t < 2; ++t)
#pragma unroll
    for (int j = 0; j < 2; ++j)
      at[t][j] = tile + lane / 4 % 2 * 8 +
                 vector_offset<kLine>(lane % 4 * 2 + t, 4 * (first + j) + lane / 4 / 2);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    double a[8];
    left(k, a);
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      double b[4];
#pragma unroll
      for (int t = 0; t < 4; ++t)
        b[t] = *reinterpret_cast<const double*>(
            at[t % 2][j % 2] + vector_offset<kLine>(16 * k + t / 2 * 8, j / 2 * 8));
      ptx::mma_f64(eight_columns(sums, j), a, b);
    }
  }
}
// The same for weights W of the warp, in the layout of sums.
template <int kDim, int kEights, int kWeights, int kCount>
__device__ __forceinline__ void multiply_weights(const double (&weights)[kWeights],
                                                 const unsigned char* tile, int lane,
                                                 double (&sums)[kCount], int first = 0) {
  multiply_columns<kDim, kEights, kWeights / 8>(
      [&](int k, double(&a)[8]) {
#pragma unroll
        for (int t = 0; t < 4; ++t)
#pragma unroll
          for (int r = 0; r < 2; ++r) a[2 * t + r] = weights[8 * k + t / 2 * 4 + 2 * r + t % 2];
      },
      tile, lane, sums, first);
}

}  // namespace perseid::internal::cuda
