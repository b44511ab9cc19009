// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward in float32: scores, softmax and weights of a warp from products of planes
// (plane_products.hpp).
//
// Weights. With e the exponent of a key's largest value and s its score in units of log2, weights
// are w = 2^(s + e - m) 2^15: what is split into halves is the weight times the magnitude of what
// it multiplies, so that rows which see only small values keep their accuracy. m is an integer,
// which makes every rescaling exact, and changes seldom. Row sums add w 2^-e.
//
// A NaN among the numbers of a key, or of the query, makes the row's sum NaN.
#pragma once

#include "cuda/device/attention/sequence.hpp"
#include "cuda/device/attention/softmax.hpp"
#include "cuda/device/portable/attention/plane_products.hpp"
#include "cuda/device/portable/attention/planes_config.hpp"
#include "cuda/device/ptx/memory.hpp"
#include "cuda/device/split/truncation.hpp"

namespace perseid::internal::cuda {

inline constexpr float kWeightPower = 15, kWeightScale = 0x1p15f;  // weights reach 2^15

PERSEID_INLINE constexpr float power_of_two(int e) {
  return e < 0 ? 1.0f / static_cast<float>(1 << -e) : static_cast<float>(1 << e);
}

// The two rows of a thread, of 16.
struct PlaneStatistics {
  float maximum[2];  // m
  float sum[2];      // of the thread's own columns, times 2^(kWeightPower - m)
  float factor[2];   // of the query's products
};
template <bool kOfPlanes>
struct StatisticsOf {
  using Type = RowStatistics;
};
template <>
struct StatisticsOf<true> {
  using Type = PlaneStatistics;
};

// Products to scores: the factors of keys.
template <bool kPairs = true, int kTiles, int kCount>
__device__ __forceinline__ void unscale(uint32_t numbers, int lane,
                                        float (&scores)[kTiles][kCount]) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float4 own = numbers_of_keys<kPairs>(numbers, lane, j);
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        scores[i][4 * j + 2 * r] *= own.x;
        scores[i][4 * j + 2 * r + 1] *= own.z;
      }
  }
}

// Whether the lane's keys of a tile, of which the lanes of a warp have all, have the numbers of
// rows that are split by the common exponents.
template <int kKeys>
__device__ __forceinline__ bool has_common(uint32_t numbers, int lane) {
  constexpr auto kBytes = static_cast<int>(sizeof(RowNumbers));
  bool common = true;
#pragma unroll
  for (int i = 0; i < kKeys; i += 32) {
    if (i + 32 > kKeys && lane >= kKeys - i) break;
    const float2 own = ptx::load_shared_v2(numbers + static_cast<uint32_t>((i + lane) * kBytes));
    common = common && is_common({own.x, own.y});
  }
  return common;
}
template <int kKeys>
__device__ __forceinline__ bool are_common(uint32_t numbers, int lane) {
  return __all_sync(0xffffffffu, has_common<kKeys>(numbers, lane));
}

// The exponents of a thread's two keys of every eight. kCommon: for tiles of equal exponents.
template <bool kPairs, bool kCommon>
__device__ __forceinline__ float2 exponents_of_keys(uint32_t numbers, int lane, int j) {
  if constexpr (kCommon) return {kCommonValueExponent, kCommonValueExponent};
  const float4 own = numbers_of_keys<kPairs>(numbers, lane, j);
  return {own.y, own.w};
}
// The largest of the thread's scores of each row, in units of log2 with the exponents of their
// keys; kCommon: of the scores alone. `scale`: of the rows' scores, to units of log2.
template <bool kPairs, bool kCommon, int kCount>
__device__ __forceinline__ void largest_powers(uint32_t numbers, int lane, const float (&scale)[2],
                                               const float (&scores)[kCount], float (&largest)[2]) {
  largest[0] = largest[1] = minus_infinity();
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float2 e = exponents_of_keys<kPairs, kCommon>(numbers, lane, j);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float* const pair = &scores[4 * j + 2 * r];
      largest[r] = kCommon ? fmaxf(largest[r], fmaxf(pair[0], pair[1]))
                           : fmaxf(largest[r], fmaxf(fmaf(pair[0], scale[r], e.x),
                                                     fmaf(pair[1], scale[r], e.y)));
    }
  }
}
template <bool kCommon>
__device__ __forceinline__ float power_of(float largest, float scale) {
  return kCommon ? fmaf(largest, scale, kCommonValueExponent) : largest;
}
// m as powers have it: that of rows which have seen nothing is -inf or the least score.
__device__ __forceinline__ float top_of(float maximum) {
  return maximum <= kLeastPower ? 0 : maximum;
}
// m follows the largest power of its row. Returns what earlier sums and results of the row are to
// be multiplied by. `shift`: what is then added to its powers.
__device__ __forceinline__ float follow_power(float most, float& maximum, float& shift) {
  const float now = fmaxf(maximum, ceilf(most)), top = top_of(now);
  const float factor = ptx::approximate_exp2(maximum - top);
  maximum = now;
  shift = -top;
  return factor;
}
// Turns scores of eight keys into weights, and adds them to `sums`: of both rows, two each.
template <bool kPairs, bool kCommon, int kCount>
__device__ __forceinline__ void weigh_eight_keys(uint32_t numbers, int lane, int j,
                                                 const float (&scale)[2], const float (&shift)[2],
                                                 float (&scores)[kCount], float (&sums)[2][2]) {
  const float2 e = exponents_of_keys<kPairs, kCommon>(numbers, lane, j);
  const float share[2] = {power_of_minus(e.x), power_of_minus(e.y)};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float* const pair = &scores[4 * j + 2 * r];
    // Not as 2^(s + e + 15 - m), where large weights have exponents that are rounded to 2^-20.
    pair[0] = ptx::approximate_exp2(fmaf(pair[0], scale[r], e.x + shift[r])) * kWeightScale;
    pair[1] = ptx::approximate_exp2(fmaf(pair[1], scale[r], e.y + shift[r])) * kWeightScale;
    sums[r][0] = kCommon ? sums[r][0] + pair[0] : fmaf(pair[0], share[0], sums[r][0]);
    sums[r][1] = kCommon ? sums[r][1] + pair[1] : fmaf(pair[1], share[1], sums[r][1]);
  }
}
// Of a row, after its last key.
template <bool kCommon>
__device__ __forceinline__ float sum_of_tile(const float (&sums)[2]) {
  const float own = sums[0] + sums[1];
  return kCommon ? own * power_of_two(-kCommonValueExponent) : own;
}

// Turns scores into weights, by the above. `factor`: what earlier results of the rows are to be
// multiplied by. kCommon: of keys with common exponents; the bits are the same.
template <bool kPairs = true, bool kCommon = false, int kCount>
__device__ __forceinline__ void plane_softmax(uint32_t numbers, int lane, const float (&scale)[2],
                                              float (&scores)[kCount], PlaneStatistics& rows,
                                              float (&factor)[2]) {
  float largest[2], shift[2], sums[2][2] = {};
  largest_powers<kPairs, kCommon>(numbers, lane, scale, scores, largest);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float most = power_of<kCommon>(quad_max(largest[r]), scale[r]);
    factor[r] = follow_power(most, rows.maximum[r], shift[r]);
  }
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j)
    weigh_eight_keys<kPairs, kCommon>(numbers, lane, j, scale, shift, scores, sums);
#pragma unroll
  for (int r = 0; r < 2; ++r)
    rows.sum[r] = fmaf(rows.sum[r], factor[r], sum_of_tile<kCommon>(sums[r]));
}
// Weights as left operands: high halves and low ones, which are not scaled.
template <int kCount>
__device__ __forceinline__ void split_weights(const float (&weights)[kCount],
                                              uint32_t (&high)[kCount / 2],
                                              uint32_t (&low)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float first = weights[2 * i], second = weights[2 * i + 1];
    high[i] = ptx::to_f16x2(first, second);
    const float2 kept = widen_pair<DType::kF16>(high[i]);
    low[i] = ptx::to_f16x2(first - kept.x, second - kept.y);
  }
}

// The share of its results that a query's products with values lose, of tiles of C.keys. C: a
// configuration of attention forward.
template <auto C>
__device__ __forceinline__ float loss_of_results(const AttentionSequence& sequence, int32_t query) {
  int32_t keys = sequence.kv_len;
  if constexpr (C.right) keys = min(keys, query + sequence.right);
  if constexpr (C.left) keys -= max(query + sequence.left, 0);
  return loss_of_sums(min(keys, int32_t{C.keys}));
}
// What the results of a row with that sum are to be multiplied by, as the sum of two numbers.
// `dropout`: the factor of kept weights. `loss`: what the results lack.
__device__ __forceinline__ float2 result_factor(float sum, float dropout, float loss) {
  if (sum == 0) return {0, 0};
  const float inverse = 1 / sum, of_values = kValueFactor * dropout;
  const float rest = fmaf(-inverse, sum, 1) * inverse;
  return {inverse * of_values, fmaf(inverse, loss, rest) * of_values};
}
__device__ __forceinline__ float result_of(float sum, float2 factor) {
  return factor.x == 0 ? 0 : fmaf(sum, factor.x, sum * factor.y);
}
// Stores the thread's results of its row r: `to` is the element of the first one, of `columns` from
// there on. The four lanes of a row store 32 bytes that lie side by side. `pairs`: two elements are
// one aligned access, with a stride of 1. Without branches, which would take a fifth of the
// kernel's compile time.
template <int kCount>
__device__ __forceinline__ void store_results(float* to, int64_t stride, int columns, bool pairs,
                                              const float (&sums)[kCount], int r, float2 factor) {
  const uint32_t mask = factor.x == 0 ? 0 : ~0u;
  const auto result = [&](float sum) {  // the bits of result_of
    return float_bits(fmaf(sum, factor.x, sum * factor.y)) & mask;
  };
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const uint32_t first = result(sums[4 * j + 2 * r]);
    const uint32_t second = result(sums[4 * j + 2 * r + 1]);
    const bool both = 8 * j + 1 < columns;
    ptx::store_if(pairs && both, to, ptx::Packed<2>{{first, second}});
    ptx::store_if(8 * j < columns && !(pairs && both), to, ptx::Packed<1>{{first}});
    ptx::store_if(!pairs && both, to + stride, ptx::Packed<1>{{second}});
    to += 8 * stride;
  }
}

}  // namespace perseid::internal::cuda
