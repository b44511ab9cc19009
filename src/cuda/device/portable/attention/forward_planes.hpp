// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward in float32: scores, softmax and weights of a warp from products of planes
// (plane_products.hpp).
//
// Weights. With e the exponent of a key's largest value and s its score in units of log2, weights
// are w = 2^(s + e + 15 - m): what is split into halves is the weight times the magnitude of what
// it multiplies, so that rows which see only small values keep their accuracy. m is an integer,
// which makes every rescaling exact, and changes seldom. Row sums add w 2^-e.
//
// A NaN among the numbers of a key, or of the query, makes the row's sum NaN.
#pragma once

#include "cuda/device/attention/softmax.hpp"
#include "cuda/device/portable/attention/plane_products.hpp"
#include "cuda/device/portable/attention/planes_config.hpp"

namespace perseid::internal::cuda {

inline constexpr float kWeightPower = 15;  // weights reach 2^15

// The two rows of a thread, of 16.
struct PlaneStatistics {
  float maximum[2];  // m
  float sum[2];      // of the thread's own columns, times 2^(kWeightPower - m)
  float factor[2];   // of the query's products
};

// Products to scores: the factors of keys.
template <int kTiles, int kCount>
__device__ __forceinline__ void unscale(uint32_t numbers, int lane,
                                        float (&scores)[kTiles][kCount]) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float4 own = numbers_of_keys(numbers, lane, j);
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        scores[i][4 * j + 2 * r] *= own.x;
        scores[i][4 * j + 2 * r + 1] *= own.z;
      }
  }
}

// Turns scores into planes of weights: high halves, then low ones, which are not scaled. `scale`:
// of the rows' scores, to units of log2. `factor`: what earlier sums and results of the rows are to
// be multiplied by.
template <int kCount>
__device__ __forceinline__ void plane_softmax(uint32_t numbers, int lane, const float (&scale)[2],
                                              const float (&scores)[kCount], PlaneStatistics& rows,
                                              float (&factor)[2], uint32_t (&high)[kCount / 2],
                                              uint32_t (&low)[kCount / 2]) {
  float largest[2] = {minus_infinity(), minus_infinity()};
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float4 own = numbers_of_keys(numbers, lane, j);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      largest[r] = fmaxf(largest[r], fmaxf(fmaf(scores[4 * j + 2 * r], scale[r], own.y),
                                           fmaf(scores[4 * j + 2 * r + 1], scale[r], own.w)));
  }
  float shift[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float now = fmaxf(rows.maximum[r], ceilf(quad_max(largest[r])));
    const float top = now <= kLeastPower ? 0 : now;
    factor[r] = ptx::approximate_exp2(rows.maximum[r] - top);
    rows.maximum[r] = now;
    shift[r] = kWeightPower - top;
  }
  float sum[2][2] = {};
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float4 own = numbers_of_keys(numbers, lane, j);
    const float share[2] = {power_of_minus(own.y), power_of_minus(own.w)};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float first =
          ptx::approximate_exp2(fmaf(scores[4 * j + 2 * r], scale[r], own.y + shift[r]));
      const float second =
          ptx::approximate_exp2(fmaf(scores[4 * j + 2 * r + 1], scale[r], own.w + shift[r]));
      sum[r][0] = fmaf(first, share[0], sum[r][0]);
      sum[r][1] = fmaf(second, share[1], sum[r][1]);
      high[2 * j + r] = ptx::to_f16x2(first, second);
      const float2 kept = widen_pair<DType::kF16>(high[2 * j + r]);
      low[2 * j + r] = ptx::to_f16x2(first - kept.x, second - kept.y);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.sum[r] = fmaf(rows.sum[r], factor[r], sum[r][0] + sum[r][1]);
}

}  // namespace perseid::internal::cuda
