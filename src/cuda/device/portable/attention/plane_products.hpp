// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Products of a warp with planes of float32 rows (planes.hpp) in shared memory. The layouts are
// those of warp_products.hpp.
//
// With high and low halves x = h + l, of each product of planes
//
//   x y = h h' + h l' + l h'        without l l'
//
// the small ones are summed first, and each tile's sums begin from zero: tensor cores truncate at
// each addition, by the more the larger the sum. Results are added in float32.
#pragma once

#include "cuda/device/portable/attention/planes_config.hpp"
#include "cuda/device/portable/attention/warp_products.hpp"
#include "cuda/device/ptx/memory.hpp"
#include "cuda/device/split/halves.hpp"

namespace perseid::internal::cuda {

// What products with planes of second rows (values, dO) have in addition: they reach 2^15.
inline constexpr float kValueFactor = 0x1p-14f;

// The numbers of a thread's two keys of every eight: factor, exponent, factor, exponent. Read each
// time, which takes no registers in between. `numbers`: an address in shared memory, a multiple of
// 16 bytes if kPairs, else of 8.
template <bool kPairs = true>
__device__ __forceinline__ float4 numbers_of_keys(uint32_t numbers, int lane, int j) {
  constexpr auto kBytes = static_cast<int>(sizeof(RowNumbers));
  const uint32_t own = numbers + static_cast<uint32_t>((8 * j + 2 * (lane % 4)) * kBytes);
  if constexpr (kPairs) return ptx::load_shared_v4(own);
  const float2 first = ptx::load_shared_v2(own), second = ptx::load_shared_v2(own + kBytes);
  return {first.x, first.y, second.x, second.y};
}
// 2^-e for an integer e of [-126, 126].
__device__ __forceinline__ float power_of_minus(float e) {
  // The last bits of the sum are e.
  return float_from_bits(0x3f800000u - (float_bits(e + 0x1.8p23f) << 23));
}

// sums = A B^T of rows of planes of kDepth numbers each, both planes of which are read once. The
// small products, of the low half of a query before those of a key, whichever of them the rows are,
// have sums of their own: lse holds for scores of the same bits.
template <int kDepth, bool kRowsAreQueries = true, class Rows, int kLength, int kTiles, int kCount>
__device__ __forceinline__ void multiply_planes_once(const Rows& a, const LaneVectors<kLength>& b,
                                                     float (&sums)[kTiles][kCount]) {
  constexpr int kLow = kDepth / 16;
  float small[kTiles][kCount];
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
#pragma unroll
    for (int x = 0; x < kCount; ++x) sums[i][x] = small[i][x] = 0;
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    uint32_t high[kTiles][4], low[kTiles][4];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      a.load(i, k, high[i]);
      a.load(i, kLow + k, low[i]);
    }
#pragma unroll
    for (int j = 0; j < kCount / 8; ++j) {
      uint32_t high_b[4], low_b[4];
      ptx::ldmatrix_x4(b.at(j, k), high_b);
      ptx::ldmatrix_x4(b.at(j, kLow + k), low_b);
      const auto add = [&](float(&to)[kTiles][kCount], const uint32_t(&left)[kTiles][4],
                           const uint32_t(&right)[4]) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
          for (int i = 0; i < kTiles; ++i)
            ptx::mma<DType::kF16>(eight_columns(to[i], 2 * j + h), left[i], right[2 * h],
                                  right[2 * h + 1]);
      };
      if constexpr (kRowsAreQueries)
        add(small, low, high_b);
      else
        add(small, high, low_b);
      add(sums, high, high_b);
      if constexpr (kRowsAreQueries)
        add(small, high, low_b);
      else
        add(small, low, high_b);
    }
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
#pragma unroll
    for (int x = 0; x < kCount; ++x) sums[i][x] += small[i][x];
}

// sums = A B^T of rows of planes of kDepth numbers each. The low half of a query is multiplied
// before that of a key, whichever of them the rows are: lse holds for scores of the same bits.
template <int kDepth, bool kRowsAreQueries = true, class Rows, int kLength, int kTiles, int kCount>
__device__ __forceinline__ void multiply_planes(const Rows& a, const LaneVectors<kLength>& b,
                                                float (&sums)[kTiles][kCount]) {
  constexpr int kLow = kDepth / 16;
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
#pragma unroll
    for (float& each : sums[i]) each = 0;
  multiply_rows<DType::kF16, kDepth>(a, b, sums, kRowsAreQueries ? kLow : 0,
                                     kRowsAreQueries ? 0 : kLow);
  multiply_rows<DType::kF16, kDepth>(a, b, sums, kRowsAreQueries ? 0 : kLow,
                                     kRowsAreQueries ? kLow : 0);
  multiply_rows<DType::kF16, kDepth>(a, b, sums);
}

// For planes of weights, whose low halves are not scaled, and of rows of values in chunks of kChunk
// numbers: use(i, index, sum) of the elements of P V in kGroups groups of 16 columns from `group`
// on, whose sums begin from zero. kByRows: both small products of 16 rows of values follow one
// another, else those of all rows with low halves of values and then those with high ones; each
// kernel has the order that was measured faster. With kByRows make(k) makes the weights for 16
// rows, from 16 * k on: what takes long there overlaps with the small products with the rows
// before.
template <bool kByRows, int kGroups, int kChunk, int kLength, int kTiles, int kWeights, class Make,
          class Use>
__device__ __forceinline__ void multiply_plane_columns(
    int group, const uint32_t (&weights)[2][kTiles][kWeights], const LaneVectors<kLength>& values,
    const Make& make, const Use& use) {
  constexpr int kSteps = kWeights / 4, kOfChunk = kChunk / 16;
  float sums[kGroups][kTiles][8] = {};
  uint32_t low[kSteps][kGroups][4], high[kSteps][kGroups][4];
  const auto load = [&](int k, int plane, uint32_t(&right)[kGroups][4]) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int at = (group + g) / kOfChunk * 2 * kOfChunk + (group + g) % kOfChunk;
      ptx::ldmatrix_x4_trans(values.at(k, at + plane * kOfChunk), right[g]);
    }
  };
  const auto add = [&](int k, const uint32_t(&plane)[kTiles][kWeights],
                       const uint32_t(&right)[kGroups][4]) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < kTiles; ++i)
          ptx::mma<DType::kF16>(eight_columns(sums[g][i], h),
                                reinterpret_cast<const uint32_t(&)[4]>(plane[i][4 * k]),
                                right[g][2 * h], right[g][2 * h + 1]);
  };
  const auto for_all = [&](const auto& act) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) act(k);
  };
  if constexpr (kByRows) {
    for_all([&](int k) {
      make(k);
      load(k, 1, low[k]);
      load(k, 0, high[k]);
      add(k, weights[0], low[k]);
      add(k, weights[1], high[k]);
    });
  } else {
    for_all([&](int k) { load(k, 1, low[k]); });
    for_all([&](int k) { add(k, weights[0], low[k]); });
    for_all([&](int k) { load(k, 0, high[k]); });
    for_all([&](int k) { add(k, weights[1], high[k]); });
  }
  for_all([&](int k) { add(k, weights[0], high[k]); });
#pragma unroll
  for (int g = 0; g < kGroups; ++g)
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int e = 0; e < 8; ++e) use(i, 8 * (group + g) + e, sums[g][i][e]);
}
// The same of all columns, 16 at a time, with weights that are there.
template <bool kByRows, int kCount, int kChunk, int kLength, int kTiles, int kWeights, class Use>
__device__ __forceinline__ void multiply_plane_weights(
    const uint32_t (&weights)[2][kTiles][kWeights], const LaneVectors<kLength>& values,
    const Use& use) {
#pragma unroll
  for (int group = 0; group < kCount / 8; ++group)
    multiply_plane_columns<kByRows, 1, kChunk>(
        group, weights, values, [](int) {}, use);
}

}  // namespace perseid::internal::cuda
