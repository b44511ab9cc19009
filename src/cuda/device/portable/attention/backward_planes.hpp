// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward in float32: products, weights and dS of a warp as planes (plane_products.hpp).
//
// W and dS have no natural range. Each is multiplied by what the column's planes lack (the factor
// of a query or key, the exponent of dO), and then by a power of two that brings the largest of its
// row in the step below 2^15. So what is split into halves is the share of the gradient, and a
// row's bits do not depend on its neighbours.
//
// A NaN among the numbers of a row or column makes the weights that see it NaN.
#pragma once

#include "cuda/device/attention/softmax.hpp"
#include "cuda/device/portable/attention/backward_scores.hpp"
#include "cuda/device/portable/attention/plane_products.hpp"

namespace perseid::internal::cuda {

// Whether all rows have the same numbers, none of them NaN. Those behind the last row, whose factor
// is 0, may have any. `numbers`: in shared memory. By whole warps.
template <int kRows>
__device__ __forceinline__ bool are_equal(uint32_t numbers, int lane) {
  const float2 first = ptx::load_shared_v2(numbers);
  bool equal = true;
#pragma unroll
  for (int i = 0; i < kRows; i += 32) {
    const float2 own =
        ptx::load_shared_v2(numbers + static_cast<uint32_t>(8 * (i + lane % min(kRows, 32))));
    equal = equal && (own.x == 0 || (own.x == first.x && own.y == first.y));
  }
  return __all_sync(0xffffffffu, equal);
}

// Products of planes to those of rows, S by the factors, dP by the exponents (planes of both second
// rows reach 2^15 instead of 2): first what the columns' numbers say, unless they are equal.
template <int kTiles, int kCount>
__device__ __forceinline__ void unscale_columns(uint32_t columns, int lane,
                                                float (&scores)[kTiles][kCount],
                                                float (&products)[kTiles][kCount]) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float4 column = numbers_of_keys(columns, lane, j);
    const float second[2] = {power_of_minus(14 - column.y), power_of_minus(14 - column.w)};
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int x = 4 * j + 2 * r;
        scores[i][x] *= column.x;
        scores[i][x + 1] *= column.z;
        products[i][x] *= second[0];
        products[i][x + 1] *= second[1];
      }
  }
}
// What the thread's two of 16 rows are then to be multiplied by; their numbers are at `rows`.
// equal: those of all columns, at `columns`.
__device__ __forceinline__ RowScales<float> row_scales(uint32_t rows, uint32_t columns, bool equal,
                                                       int lane) {
  float2 column{1, 14};
  if (equal) column = ptx::load_shared_v2(columns);
  const float product = power_of_minus(14 - column.y);
  RowScales<float> scales{};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float2 own = ptx::load_shared_v2(rows + static_cast<uint32_t>(8 * (8 * r + lane / 4)));
    scales.score[r] = own.x * column.x;
    scales.product[r] = power_of_minus(14 - own.y) * product;
  }
  return scales;
}

// Numbers times a power of two of each row, as high and low halves.
template <int kCount>
__device__ __forceinline__ void split_numbers(const float (&values)[kCount],
                                              const float (&scale)[2], uint32_t (&high)[kCount / 2],
                                              uint32_t (&low)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float x = values[2 * i] * scale[i % 2], y = values[2 * i + 1] * scale[i % 2];
    high[i] = ptx::to_f16x2(x, y);
    const float2 kept = widen_pair<DType::kF16>(high[i]);
    low[i] = ptx::to_f16x2(x - kept.x, y - kept.y);
  }
}

// W or dS of 16 rows as planes of the left operand: high halves, and low ones, which are not
// scaled. `factor`: what products with them are to be multiplied by. kOfSecond: the columns' second
// rows (dO) follow, else their first ones.
template <bool kOfSecond, int kCount>
__device__ __forceinline__ void split_gradient(uint32_t columns, bool equal, int lane,
                                               const float (&values)[kCount],
                                               uint32_t (&high)[kCount / 2],
                                               uint32_t (&low)[kCount / 2], float (&factor)[2]) {
  float of_columns = 1, products[kCount];
  if (equal) {
    const float2 first = ptx::load_shared_v2(columns);
    of_columns = kOfSecond ? power_of_minus(-first.y) : first.x;
  }
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    float own[2] = {1, 1};
    if (!equal) {
      const float4 column = numbers_of_keys(columns, lane, j);
      // A NaN is in the weights already where the column is seen; elsewhere they are 0.
      own[0] = kOfSecond ? power_of_minus(-column.y) : fmaxf(column.x, 0);
      own[1] = kOfSecond ? power_of_minus(-column.w) : fmaxf(column.z, 0);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) products[4 * j + e] = values[4 * j + e] * own[e % 2];
  }
  float largest[2] = {0, 0};
#pragma unroll
  for (int x = 0; x < kCount; ++x)
    largest[x / 2 % 2] = fmaxf(largest[x / 2 % 2], fabsf(products[x]));
  float scale[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t exponent = clamp(float_bits(quad_max(largest[r])) >> 23, 27u, 240u);
    scale[r] = float_from_bits((127 + 14 + 127 - exponent) << 23);
    factor[r] =
        float_from_bits((exponent - 14) << 23) * (kOfSecond ? kValueFactor : 1) * of_columns;
  }
  split_numbers(products, scale, high, low);
}

// The largest magnitude of a warp's numbers that are not NaN.
template <int kTiles, int kCount>
__device__ __forceinline__ float largest_of_warp(const float (&values)[kTiles][kCount]) {
  float most = 0;
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
#pragma unroll
    for (int x = 0; x < kCount; ++x) most = fmaxf(most, fabsf(values[i][x]));
#pragma unroll
  for (int step = 1; step < 32; step *= 2)
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
  return most;
}

}  // namespace perseid::internal::cuda
