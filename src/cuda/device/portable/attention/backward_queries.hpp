// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// dQ of attention backward on sm_80 and up that is added to sums in memory: dQ = dS K over a
// block's keys, of a step.
//
// The warps' dS meet in shared memory, as keys x queries, in two buffers: a step's product follows
// in the next step, after the barrier that it has anyway. A warp then has 16 or 32 queries and a
// part of the head dim. Sums in memory have the layout of the products, so that each thread adds
// four numbers at a time. Products of two steps may follow together (adds_pairs()): of four
// buffers, a step writes another one than those that warps behind it still read.
#pragma once

#include "cuda/device/attention/backward_work.hpp"
#include "cuda/device/portable/attention/backward_config.hpp"
#include "cuda/device/portable/attention/warp_products.hpp"
#include "cuda/device/ptx/memory.hpp"

namespace perseid::internal::cuda {

template <PortableBackwardConfig C>
class QuerySums {
 public:
  using Weights = uint32_t[C.rows / 16][C.own_columns() / 4];
  static constexpr int kWarps = C.adds_in_turn() ? C.warps / 2 : C.warps;  // that add a step's dQ

  __device__ __forceinline__ QuerySums(unsigned char* memory, uint32_t address, int warp, int lane)
      : memory_(memory), address_(address), warp_(warp), lane_(lane) {}

  static __device__ __forceinline__ int offset(int step) {
    return C.ds_offset() + step % (C.adds_pairs() ? 4 : 2) * C.ds_bytes();
  }
  // dS of the warp's keys from `key` on, and queries from `query` on.
  __device__ __forceinline__ void share(int step, int key, int query, const Weights& ds) const {
    unsigned char* own = memory_ + offset(step) + line(key) + lane_ / 4 * kLine + lane_ % 4 * 4;
#pragma unroll
    for (int j = 0; j < C.own_columns() / 8; ++j) {
      unsigned char* at = own + vector(lane_ / 4, query / 8 + j);
#pragma unroll
      for (int i = 0; i < C.rows / 16; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          *reinterpret_cast<uint32_t*>(at + line(16 * i + 8 * r)) = ds[i][2 * j + r];
    }
  }
  // Loads what another warp has shared, behind a barrier.
  __device__ __forceinline__ void load(int step, int key, int query, Weights& ds) const {
    const LaneVector own = lane_vector_of_rows(lane_);
    const uint32_t first = address_ + static_cast<uint32_t>(offset(step) + line(key + own.line));
#pragma unroll
    for (int k = 0; k < C.own_columns() / 16; ++k) {
      const uint32_t at =
          first + static_cast<uint32_t>(vector(own.line, query / 8 + 2 * k + own.half));
#pragma unroll
      for (int i = 0; i < C.rows / 16; ++i)
        ptx::ldmatrix_x4(at + line(16 * i), reinterpret_cast<uint32_t(&)[4]>(ds[i][4 * k]));
    }
  }
  // After a barrier. `key`: offset of the keys in shared memory, `to`: the sums of the queries.
  // kPair: by every second warp, others do the same for another step.
  template <bool kPair = false>
  __device__ __forceinline__ void add(int step, int key, float* to) const {
    constexpr int kTiles = C.adds_in_turn() || kPair ? 2 : C.columns / 32;  // of 16 queries
    constexpr int kAdders = kPair ? kWarps / 2 : kWarps;
    constexpr int kQueryWarps = C.columns / 16 / kTiles, kDimWarps = kAdders / kQueryWarps;
    constexpr int kAll = C.key_dim / 16, kBlocks = (kAll + kDimWarps - 1) / kDimWarps;
    constexpr int kKeyLine = line_length(C.key_dim);
    const int own = kPair ? warp_ / 2 : warp_ % kWarps;
    const int tile = own % kQueryWarps * kTiles, first = own / kQueryWarps * kBlocks;
    const LaneVector of_ds = lane_vector_of_columns(lane_), of_key = lane_vector_of_rows(lane_);
    const auto is_own = [&](int b) { return kAll % kDimWarps == 0 || first + b < kAll; };
    uint32_t left_at[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      left_at[i] =
          address_ + static_cast<uint32_t>(offset(step) + line(of_ds.line) +
                                           vector(of_ds.line, 2 * (tile + i) + of_ds.half));
    uint32_t right_at[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
      right_at[b] =
          address_ + static_cast<uint32_t>(
                         key + vector_offset<kKeyLine>(of_key.line, 2 * (first + b) + of_key.half));
    float sums[kTiles][2 * kBlocks][4] = {};
#pragma unroll
    for (int k = 0; k < C.block_rows() / 16; ++k) {
      uint32_t left[kTiles][4];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) ptx::ldmatrix_x4_trans(left_at[i] + line(16 * k), left[i]);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        if (!is_own(b)) break;
        uint32_t right[4];
        ptx::ldmatrix_x4_trans(right_at[b] + 16 * k * kKeyLine * 2, right);
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
          for (int i = 0; i < kTiles; ++i)
            ptx::mma<C.dtype>(sums[i][2 * b + h], left[i], right[2 * h], right[2 * h + 1]);
      }
    }
    add_to_memory<kTiles, 2 * kBlocks, kDimWarps>(sums, tile, first, to);
  }

 protected:
  // Sums of a warp's queries and dims, from that tile of 16 queries and those 16 dims on.
  template <int kTiles, int kCount, int kDimWarps = kWarps / (C.columns / 16 / kTiles)>
  __device__ __forceinline__ void add_to_memory(const float (&sums)[kTiles][kCount][4], int tile,
                                                int first, float* to) const {
    constexpr int kAll = C.key_dim / 16;
    to += ((tile * 2 * kAll + 2 * first) * 32 + lane_) * 4;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int j = 0; j < kCount; ++j)
        if (kAll % kDimWarps == 0 || first + j / 2 < kAll)
          ptx::red_add_v4(to + (i * 2 * kAll + j) * 128, sums[i][j][0], sums[i][j][1],
                          sums[i][j][2], sums[i][j][3]);
  }
  static constexpr int kLine = 2 * C.columns;  // bytes of a key
  static constexpr int line(int key) { return key * kLine + key / 8 * C.ds_gap(); }
  // Offset of a vector in the line of a key, permuted so that eight keys are in different banks.
  static __device__ __forceinline__ int vector(int key, int number) {
    return (number ^ (C.columns == 32 ? key >> 1 & 3 : key & 7)) << 4;
  }

  unsigned char* const memory_;
  const uint32_t address_;
  const int warp_, lane_;
};

}  // namespace perseid::internal::cuda
