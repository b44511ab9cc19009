// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// dQ of attention backward in float32 that is added to sums in memory (backward_queries.hpp), from
// planes. All warps share the dS of a step where its columns were, after their last products with
// them, and multiply after another barrier.
//
// dS has no natural range. Where numbers of queries and keys are equal, each warp shares the planes
// that it has multiplied for dK, with one power of two. Otherwise it multiplies what it shares of a
// query, times the factors of its keys, by a power of two that brings the largest below 2^15. The
// inverse is stored with it; the products with each warp's keys begin from zero and are multiplied
// by it.
#pragma once

#include "cuda/device/attention/softmax.hpp"
#include "cuda/device/portable/attention/backward_queries.hpp"
#include "cuda/device/portable/attention/plane_products.hpp"

namespace perseid::internal::cuda {

template <PortableBackwardConfig C>
class PlaneQuerySums : QuerySums<C> {
  using Base = QuerySums<C>;
  using Base::memory_, Base::address_, Base::warp_, Base::lane_, Base::kLine;
  static constexpr int kPlaneBytes = 2 * C.block_rows() * C.columns;

 public:
  using Scores = float[C.rows / 16][C.columns / 2];
  using Base::Base;

  // dS of the warp's keys to that offset.
  __device__ __forceinline__ void share(int to_offset, const Scores& ds) const {
    constexpr int kTiles = C.rows / 16;
    float key[kTiles][2];
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp_ * C.rows + 16 * i + 8 * r + lane_ / 4;
        // A NaN is in dS already where the key is seen; elsewhere it is 0.
        key[i][r] = fmaxf(
            ptx::load_shared_v2(address_ + static_cast<uint32_t>(C.numbers_offset() + 8 * row)).x,
            0);
      }
    unsigned char* const own =
        memory_ + to_offset + (warp_ * C.rows + lane_ / 4) * kLine + lane_ % 4 * 4;
    auto* const units = reinterpret_cast<float2*>(memory_ + C.units_offset()) +
                        (warp_ * C.columns + 2 * (lane_ % 4)) / 2;
#pragma unroll
    for (int j = 0; j < C.columns / 8; ++j) {
      float scale[2], unit[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float most = 0;
#pragma unroll
        for (int i = 0; i < kTiles; ++i)
#pragma unroll
          for (int r = 0; r < 2; ++r)
            most = fmaxf(most, fabsf(ds[i][4 * j + 2 * r + e] * key[i][r]));
#pragma unroll
        for (int step = 4; step < 32; step *= 2)
          most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
        const uint32_t exponent = clamp(float_bits(most) >> 23, 27u, 240u);
        scale[e] = float_from_bits((127 + 14 + 127 - exponent) << 23);
        unit[e] = float_from_bits((exponent - 14) << 23);
      }
      if (lane_ < 4) units[4 * j] = {unit[0], unit[1]};
      unsigned char* const at = own + Base::vector(lane_ / 4, j);
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float x = ds[i][4 * j + 2 * r] * key[i][r] * scale[0];
          const float y = ds[i][4 * j + 2 * r + 1] * key[i][r] * scale[1];
          const uint32_t high = ptx::to_f16x2(x, y);
          const float2 kept = widen_pair<DType::kF16>(high);
          auto* const to = at + (16 * i + 8 * r) * kLine;
          *reinterpret_cast<uint32_t*>(to) = high;
          *reinterpret_cast<uint32_t*>(to + kPlaneBytes) = ptx::to_f16x2(x - kept.x, y - kept.y);
        }
    }
  }
  // Planes of dS, high halves first, of keys with equal factors; `unit`: what the products are to
  // be multiplied by for dS.
  __device__ __forceinline__ void share_split(int to_offset, float unit,
                                              const Scores& planes) const {
    constexpr int kPairs = C.columns / 4;
    const float key = ptx::load_shared_v2(address_ + static_cast<uint32_t>(C.numbers_offset())).x;
    auto* const units = reinterpret_cast<float*>(memory_ + C.units_offset()) + warp_ * C.columns;
#pragma unroll
    for (int i = 0; i < C.columns; i += 32)
      if (i + lane_ < C.columns) units[i + lane_] = unit * key;
    unsigned char* const own =
        memory_ + to_offset + (warp_ * C.rows + lane_ / 4) * kLine + lane_ % 4 * 4;
#pragma unroll
    for (int j = 0; j < C.columns / 8; ++j) {
      unsigned char* const at = own + Base::vector(lane_ / 4, j);
#pragma unroll
      for (int i = 0; i < C.rows / 16; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
          for (int p = 0; p < 2; ++p)
            *reinterpret_cast<uint32_t*>(at + (16 * i + 8 * r) * kLine + p * kPlaneBytes) =
                float_bits(planes[i][p * kPairs + 2 * j + r]);
    }
  }
  // After a barrier. `ds`, `key`: offsets in shared memory of what was shared and of the keys'
  // planes; `to`: the sums of the queries.
  __device__ __forceinline__ void add(int ds, int key, float* to) const {
    constexpr int kTiles = C.columns / 32;  // of 16 queries, of a warp
    constexpr int kQueryWarps = C.columns / 16 / kTiles, kDimWarps = C.warps / kQueryWarps;
    constexpr int kAll = C.key_dim / 16, kBlocks = (kAll + kDimWarps - 1) / kDimWarps;
    constexpr int kKeyLine = line_length(2 * C.key_dim);
    const int tile = warp_ % kQueryWarps * kTiles, first = warp_ / kQueryWarps * kBlocks;
    const auto is_own = [&](int b) { return kAll % kDimWarps == 0 || first + b < kAll; };
    const LaneVector of_ds = lane_vector_of_columns(lane_), of_key = lane_vector_of_rows(lane_);
    const LaneVectors<kKeyLine> keys(address_ + static_cast<uint32_t>(key), of_key.line,
                                     of_key.half);
    uint32_t left_at[kTiles], right_at[kBlocks][2];
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      left_at[i] =
          address_ + static_cast<uint32_t>(ds + of_ds.line * kLine +
                                           Base::vector(of_ds.line, 2 * (tile + i) + of_ds.half));
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int p = 0; p < 2; ++p)
        right_at[b][p] =
            address_ +
            static_cast<uint32_t>(key + vector_offset<kKeyLine>(
                                            of_key.line, 2 * (first + b + p * kAll) + of_key.half));
    float sums[kTiles][2 * kBlocks][4] = {};
#pragma unroll
    for (int w = 0; w < C.warps; ++w) {
      float products[kTiles][2 * kBlocks][4] = {};
#pragma unroll
      for (int k = w * (C.rows / 16); k < (w + 1) * (C.rows / 16); ++k) {
        uint32_t left[kTiles][2][4];
#pragma unroll
        for (int i = 0; i < kTiles; ++i)
#pragma unroll
          for (int p = 0; p < 2; ++p)
            ptx::ldmatrix_x4_trans(left_at[i] + 16 * k * kLine + p * kPlaneBytes, left[i][p]);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          if (!is_own(b)) break;
          uint32_t right[2][4];
#pragma unroll
          for (int p = 0; p < 2; ++p)
            ptx::ldmatrix_x4_trans(right_at[b][p] + 16 * k * kKeyLine * 2, right[p]);
          const auto multiply = [&](int of_ds_plane, int of_key_plane) {
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
              for (int i = 0; i < kTiles; ++i)
                ptx::mma<DType::kF16>(products[i][2 * b + h], left[i][of_ds_plane],
                                      right[of_key_plane][2 * h], right[of_key_plane][2 * h + 1]);
          };
          multiply(0, 1);
          multiply(1, 0);
          multiply(0, 0);
        }
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const auto* const units = reinterpret_cast<const float*>(memory_ + C.units_offset()) +
                                  w * C.columns + 16 * (tile + i) + lane_ / 4;
        const float unit[2] = {units[0], units[8]};
#pragma unroll
        for (int j = 0; j < 2 * kBlocks; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            sums[i][j][e] = fmaf(products[i][j][e], unit[e / 2], sums[i][j][e]);
      }
    }
    Base::add_to_memory(sums, tile, first, to);
  }
};

}  // namespace perseid::internal::cuda
