// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The epilogue of attention backward for f32 on sm_90a: a consumer's sums to gradients in memory.
#pragma once

#include "cuda/device/attention/backward_fixup.hpp"
#include "cuda/device/portable/attention/forward_planes.hpp"
#include "cuda/device/sm90/attention/backward_planes_shared.hpp"
#include "cuda/device/sm90/attention/backward_scores.hpp"

namespace perseid::internal::cuda {

template <AttentionBackwardConfig C>
class PlanesEpilogue {
 public:
  __device__ __forceinline__ PlanesEpilogue(const AttentionBackwardPlanesArguments& arguments,
                                            const BackwardTile& tile, int consumer)
      : a_(arguments), tile_(tile), thread_{consumer} {}

  // Gradients of the consumer's keys; rows that are not finite are computed once more. A null
  // pointer disables a gradient.
  __device__ __forceinline__ void store(const float (&grad_key)[C.key_dim / 2],
                                        const float (&grad_value)[C.value_dim / 2]) const {
    Rows nonfinite;
    find_nonfinite(grad_value, nonfinite);
    find_nonfinite(grad_key, nonfinite);
    store_values(grad_value, nonfinite);
    store_keys(grad_key, nonfinite);
    fix_up(nonfinite);
  }
  __device__ __forceinline__ void store_value(const float (&sums)[C.value_dim / 2]) const {
    Rows nonfinite;
    find_nonfinite(sums, nonfinite);
    store_values(sums, nonfinite);
    fix_up(nonfinite);
  }
  __device__ __forceinline__ void store_key(const float (&sums)[C.key_dim / 2]) const {
    Rows nonfinite;
    find_nonfinite(sums, nonfinite);
    store_keys(sums, nonfinite);
    fix_up(nonfinite);
  }

 private:
  struct Rows {
    uint32_t lanes[2] = {0, 0};  // a bit for each thread's upper and lower row
  };
  template <int kCount>
  __device__ __forceinline__ static void find_nonfinite(const float (&sums)[kCount], Rows& rows) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        if (i / 2 % 2 == r) sum = fmaf(sums[i], 0, sum);
      rows.lanes[r] |= __ballot_sync(0xffffffffu, !(quad_sum(sum) == 0));
    }
  }
  __device__ __forceinline__ void store_values(const float (&sums)[C.value_dim / 2],
                                               const Rows& left_out) const {
    if constexpr (C.grad_value)
      store_rows(sums, dropout_factor<C.dropout>(a_), a_.grad_value_rows, a_.value_dim, left_out,
                 loss<C.value_dim>());
  }
  __device__ __forceinline__ void store_keys(const float (&sums)[C.key_dim / 2],
                                             const Rows& left_out) const {
    if constexpr (C.grad_key)
      store_rows(sums, kLn2, a_.grad_key_rows, a_.head_dim, left_out, loss<C.key_dim>());
  }
  __device__ __forceinline__ void fix_up(const Rows& left_out) const {
    const uint32_t rows = rows_of(left_out.lanes[0]) | rows_of(left_out.lanes[1]) << 8;
#pragma unroll 1
    for (int row = 0; row < 16; ++row) {
      const int key = tile_.key + thread_.warp_key() + row;
      if (key < tile_.kv_rows && (rows >> row & 1) != 0)
        fix_up_key<C>(a_, tile_.batch, tile_.kv_head, key);
    }
  }
  // Planes of queries have what products over kDim lose. Sums over the queries of a step lose
  // nothing that could be measured.
  template <int kDim>
  static constexpr float loss() {
    return -loss_of_sums(kDim);
  }
  // The bits of eight rows, from the first lane of each.
  __device__ __forceinline__ static uint32_t rows_of(uint32_t lanes) {
    uint32_t rows = 0;
#pragma unroll
    for (int l = 0; l < 8; ++l) rows |= (lanes >> (4 * l) & 1) << l;
    return rows;
  }
  // The sums times the factor.
  template <int kCount>
  __device__ __forceinline__ void store_rows(const float (&sums)[kCount], float factor,
                                             const RowsInMemory& rows, int32_t dim,
                                             const Rows& left_out, float loss) const {
    if (rows.data == nullptr) return;
    const int32_t entry = entry_of<C.lengths>(a_, tile_.batch);
    const int column = 2 * (thread_.lane % 4);
    const bool pairs = rows.stride[3] == 1 &&
                       (rows.stride[2] | rows.stride[1] | rows.stride[0]) % 2 == 0 &&
                       reinterpret_cast<uint64_t>(rows.data) % 8 == 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = thread_.own_key(tile_) + 8 * r;
      if (key >= tile_.kv_rows || (left_out.lanes[r] >> thread_.lane & 1) != 0) continue;
      float* const to =
          row_at<float>(rows, entry, tile_.kv_head, tile_.kv_begin + key) + column * rows.stride[3];
      store_results(to, rows.stride[3], dim - column, pairs, sums, r, {factor, factor * loss});
    }
  }

  const AttentionBackwardPlanesArguments& a_;
  const BackwardTile& tile_;
  const ConsumerThread<C> thread_;
};

}  // namespace perseid::internal::cuda
