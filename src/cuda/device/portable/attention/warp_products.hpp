// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Products of a warp with tiles in shared memory (vector_tile.hpp). The warp has kTiles times 16
// rows; its sums have the layout of ptx/mma.hpp, whose columns follow in groups of eight.
#pragma once

#include "cuda/device/portable/vector_tile.hpp"
#include "cuda/device/ptx/ldmatrix.hpp"
#include "cuda/device/ptx/mma.hpp"

namespace perseid::internal::cuda {

// Returns the sums of eight columns.
template <class Real, int kCount>
__device__ __forceinline__ Real (&eight_columns(Real (&sums)[kCount], int j))[4] {
  return reinterpret_cast<Real(&)[4]>(sums[4 * j]);
}

// The warp's rows as left operands: read from shared memory each time, or once.
template <int kDepth>
struct SharedRows {
  LaneVectors<line_length(kDepth)> at;

  __device__ __forceinline__ void load(int i, int k, uint32_t (&fragment)[4]) const {
    ptx::ldmatrix_x4(at.at(i, k), fragment);
  }
};
template <int kDepth, int kTiles>
struct RegisterRows {
  uint32_t of[kTiles][kDepth / 16][4];

  __device__ __forceinline__ void fill(const SharedRows<kDepth>& rows) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) rows.load(i, k, of[i][k]);
  }
  __device__ __forceinline__ void load(int i, int k, uint32_t (&fragment)[4]) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) fragment[e] = of[i][k][e];
  }
};

// sums += A B^T over kDepth elements of rows of both. `a`: the warp's rows, `b`: the lane's vectors
// of the columns. `a_first` and `b_first`: where the elements begin, in groups of 16.
template <DType D, int kDepth, class Rows, int kLength, int kTiles, int kCount>
__device__ __forceinline__ void multiply_rows(const Rows& a, const LaneVectors<kLength>& b,
                                              float (&sums)[kTiles][kCount], int a_first = 0,
                                              int b_first = 0) {
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    uint32_t left[kTiles][4];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) a.load(i, a_first + k, left[i]);
#pragma unroll
    for (int j = 0; j < kCount / 8; ++j) {
      uint32_t right[4];
      ptx::ldmatrix_x4(b.at(j, b_first + k), right);
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < kTiles; ++i)
          ptx::mma<D>(eight_columns(sums[i], 2 * j + h), left[i], right[2 * h], right[2 * h + 1]);
    }
  }
}

// sums += W B for rounded weights W of the warp, in the layout of sums, and 16 rows of B from
// 16 * k on. weights_of(i): of 16 of the warp's rows; `b`: the lane's vectors of the rows of B.
template <DType D, class WeightsOf, int kLength, int kTiles, int kCount>
__device__ __forceinline__ void multiply_16_weights(int k, const WeightsOf& weights_of,
                                                    const LaneVectors<kLength>& b,
                                                    float (&sums)[kTiles][kCount]) {
#pragma unroll
  for (int j = 0; j < kCount / 8; ++j) {
    uint32_t right[4];
    ptx::ldmatrix_x4_trans(b.at(k, j), right);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
        ptx::mma<D>(eight_columns(sums[i], 2 * j + h), weights_of(i), right[2 * h],
                    right[2 * h + 1]);
  }
}
// The same over all weights.
template <DType D, int kLength, int kTiles, int kWeights, int kCount>
__device__ __forceinline__ void multiply_weights(const uint32_t (&weights)[kTiles][kWeights],
                                                 const LaneVectors<kLength>& b,
                                                 float (&sums)[kTiles][kCount]) {
#pragma unroll
  for (int k = 0; k < kWeights / 4; ++k)
    multiply_16_weights<D>(
        k,
        [&](int i) -> const uint32_t(&)[4] {
          return reinterpret_cast<const uint32_t(&)[4]>(weights[i][4 * k]);
        },
        b, sums);
}

}  // namespace perseid::internal::cuda
