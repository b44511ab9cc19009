// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Epilogue of attention backward on sm_90a: the accumulators of dK and dV, 64 keys of a consumer,
// to global memory.
//
//   ClusterReduction   if C.clusters: the blocks of a cluster have partial sums of the same
//                      tile; each block reduces those of some warps' keys through distributed
//                      shared memory
//   GradientEpilogue   scales, rounds and stores them by TMA, through the shared memory of the keys
//                      or values themselves; or, where a gradient accumulates or is float32, adds
//                      or stores them to global memory from registers. Then the fixup of rows that
//                      are not finite.
#pragma once

#include "cuda/device/attention/backward_fixup.hpp"
#include "cuda/device/ptx/cluster.hpp"
#include "cuda/device/ptx/ldmatrix.hpp"
#include "cuda/device/ptx/ordering.hpp"
#include "cuda/device/ptx/wgmma.hpp"
#include "cuda/device/sm90/attention/backward_chunks.hpp"
#include "cuda/device/sm90/attention/backward_shared.hpp"
#include "cuda/device/sm90/attention/map_coordinates.hpp"

namespace perseid::internal::cuda {

// Partial gradients of a cluster's blocks. Each warp's keys belong to one block, which adds the
// partials of the others to its own in the order of the blocks. The partials lie in shared memory
// that no consumer reads any more, as [four floats][thread of both consumers].
template <AttentionBackwardConfig C>
class ClusterReduction {
 public:
  explicit __device__ __forceinline__ ClusterReduction(const ConsumerContext<C>& context)
      : c_(context) {}

  // The keys of this warp are reduced and stored by this block.
  __device__ __forceinline__ bool owns_keys() const {
    return !C.clusters ||
           ((4 * c_.thread.consumer + c_.thread.warp) & (blocks() - 1)) == block_of_cluster();
  }
  // By both consumers, after their last product.
  template <class... Gradients>
  __device__ __forceinline__ void reduce(Gradients&... gradients) const {
    ptx::named_barrier_sync(1, 256);
    (ptx::fence_operand(gradients), ...);
    int floats = 0;  // of a thread, in the gradients before
    ((push_partial(gradients, floats), floats += count_of(gradients)), ...);
    cluster_sync();
    if (owns_keys()) {
      floats = 0;
      ((reduce_partials(gradients, floats), floats += count_of(gradients)), ...);
    }
    cluster_sync();  // a block must not exit while others read its partials
  }

 private:
  template <int kCount>
  __device__ __forceinline__ static constexpr int count_of(const float (&)[kCount]) {
    return kCount;
  }
  __device__ __forceinline__ int blocks() const { return 1 << c_.arguments.cluster_log2; }
  __device__ __forceinline__ static int block_of_cluster() {
    return static_cast<int>(ptx::block_of_cluster());
  }
  __device__ __forceinline__ static void cluster_sync() {
    ptx::cluster_arrive_and_release();
    ptx::cluster_wait();
  }
  __device__ __forceinline__ float4* partials(int floats_before) const {
    return reinterpret_cast<float4*>(c_.shared.memory) + floats_before / 4 * 256 +
           128 * c_.thread.consumer + 32 * c_.thread.warp + c_.thread.lane;
  }
  template <int kCount>
  __device__ __forceinline__ void push_partial(const float (&d)[kCount], int floats_before) const {
    float4* to = partials(floats_before);
#pragma unroll
    for (int i = 0; i < kCount; i += 4)
      to[i / 4 * 256] = float4{d[i], d[i + 1], d[i + 2], d[i + 3]};
  }
  template <int kCount>
  __device__ __forceinline__ void reduce_partials(float (&d)[kCount], int floats_before) const {
#pragma unroll 1
    for (int block = 0; block < blocks(); ++block) {
      if (block == block_of_cluster()) continue;
      const uint32_t from =
          ptx::address_in_block(partials(floats_before), static_cast<uint32_t>(block));
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const float4 four = ptx::load_four_from_block(from + i / 4 * 256 * 16);
        d[i] += four.x;
        d[i + 1] += four.y;
        d[i + 2] += four.z;
        d[i + 3] += four.w;
      }
    }
  }

  const ConsumerContext<C> c_;
};

template <AttentionBackwardConfig C>
class GradientEpilogue {
 public:
  explicit __device__ __forceinline__ GradientEpilogue(const ConsumerContext<C>& context)
      : c_(context), cluster_(context) {}

  // Both accumulators, or the consumer's only one, summed over the cluster.
  template <class... Gradients>
  __device__ __forceinline__ void reduce_cluster(Gradients&... gradients) const {
    if constexpr (C.clusters) cluster_.reduce(gradients...);
  }

  // After the last product. A null pointer disables the gradient.
  __device__ __forceinline__ void store_grad_value(float (&d)[C.value_dim / 2]) {
    ptx::fence_operand(d);
    const RowsInMemory& rows = sum_of<C>(c_.arguments, c_.tile).grad_value(c_.arguments);
    if constexpr (C.accumulate_value) {
      if (!cluster_.owns_keys() || rows.data == nullptr) return;
      accumulate<C.value_dim>(d, dropout_factor<C.dropout>(c_.arguments), rows,
                              c_.arguments.value_dim, values_left_out_);
    } else {
      find_nonfinite(d, nonfinite_);
      if (!cluster_.owns_keys() || rows.data == nullptr) return;
      const float factor = dropout_factor<C.dropout>(c_.arguments);
      if constexpr (C.f32_key_gradients)
        store_f32<C.value_dim>(d, factor, rows, c_.arguments.value_dim);
      else
        store<C.value_dim>(d, factor, c_.shared.value(), c_.arguments.grad_value);
    }
  }
  __device__ __forceinline__ void store_grad_key(float (&d)[C.key_dim / 2]) {
    ptx::fence_operand(d);
    const RowsInMemory& rows = sum_of<C>(c_.arguments, c_.tile).grad_key(c_.arguments);
    if constexpr (C.accumulate_key) {
      if (!cluster_.owns_keys() || rows.data == nullptr) return;
      accumulate<C.key_dim>(d, c_.arguments.scale, rows, c_.arguments.head_dim, keys_left_out_);
    } else {
      find_nonfinite(d, nonfinite_);
      if (!cluster_.owns_keys() || rows.data == nullptr) return;
      if constexpr (C.f32_key_gradients)
        store_f32<C.key_dim>(d, c_.arguments.scale, rows, c_.arguments.head_dim);
      else
        store<C.key_dim>(d, c_.arguments.scale, c_.shared.key(), c_.arguments.grad_key);
    }
  }
  // After the last store: shared memory stays until TMA has read it.
  __device__ __forceinline__ void finish() const {
    if (c_.thread.lane == 0) ptx::tma_store_wait_read();
    if (!cluster_.owns_keys()) return;
    fix_up();
    if constexpr (C.async) depart_keys<C>(c_.arguments, c_.tile);
  }

 private:
  // 16 keys of a warp, through the shared memory of what the gradient belongs to, by TMA.
  template <int kDim>
  __device__ __forceinline__ void store(const float (&d)[kDim / 2], float factor,
                                        const SharedTile<C.keys(), kDim>& through,
                                        const TensorMap& map) const {
    const int warp_key = c_.thread.warp_key(), lane = c_.thread.lane;
    // The warp's rows of all chunks.
    const SharedTile<C.keys(), kDim> rows{through.base + warp_key * 128};
    const auto pair = [&](int i) { return round_pair<C.dtype>(d[i] * factor, d[i + 1] * factor); };
#pragma unroll
    for (int j = 0; j < kDim / 8; j += 2) {
      ptx::stmatrix_x4(rows.base + rows.offset(j / 8, lane % 16, j % 8 + lane / 16), pair(4 * j),
                       pair(4 * j + 2), pair(4 * j + 4), pair(4 * j + 6));
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane != 0) return;
    const MapCoordinate first = key_coordinate<C.lengths>(c_.arguments, c_.tile);
    const int row = first.row + c_.tile.key + warp_key;
#pragma unroll
    for (int chunk = 0; chunk < rows.kChunks; ++chunk)
      ptx::tma_store(map, rows.chunk(chunk),
                     {chunk * kChunk, 0, row, c_.tile.kv_head, first.entry});
    ptx::tma_store_commit();
  }

  // 16 keys of a warp, added to global memory from registers. Rows that are not finite are left
  // out: the fixup needs their old values.
  template <int kDim>
  __device__ __forceinline__ void accumulate(const float (&d)[kDim / 2], float factor,
                                             const RowsInMemory& rows, int32_t dim,
                                             uint32_t (&rows_left_out)[2]) const {
    const int lane = c_.thread.lane;
    uint32_t left_out[2] = {0, 0};  // a bit for each thread's upper and lower row
    if constexpr (C.masked()) {
      float nonfinite[2] = {0, 0};
      find_nonfinite(d, nonfinite);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        rows_left_out[half] = left_out[half] =
            __ballot_sync(0xffffffffu, !(quad_sum(nonfinite[half]) == 0));
    }
    for_each_pair<uint16_t, uint32_t, kDim>(rows, dim, [&](uint32_t* pair, int half, int i) {
      if ((left_out[half] >> lane & 1) == 0)
        *pair = add_to_pair<C.dtype>(__ldcg(pair), d[i], d[i + 1], factor);
    });
  }
  template <int kDim>
  __device__ __forceinline__ void store_f32(const float (&d)[kDim / 2], float factor,
                                            const RowsInMemory& rows, int32_t dim) const {
    for_each_pair<float, float2, kDim>(rows, dim, [&](float2* pair, int, int i) {
      *pair = {d[i] * factor, d[i + 1] * factor};
    });
  }
  // visit(pair, half, i): where elements i and i + 1 of the thread's fragment, which are of its
  // upper or lower key, lie in global memory.
  template <class Element, class Pair, int kDim, class Visit>
  __device__ __forceinline__ void for_each_pair(const RowsInMemory& rows, int32_t dim,
                                                Visit&& visit) const {
    const int lane = c_.thread.lane;
    const int32_t entry = entry_of<C.lengths>(c_.arguments, c_.tile.batch);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = c_.tile.key + c_.thread.warp_key() + 8 * half + lane / 4;
      if (key >= c_.tile.kv_rows) continue;
      auto* const to = row_at<Element>(rows, entry, c_.tile.kv_head, c_.tile.kv_begin + key);
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
        const int column = 8 * j + 2 * (lane % 4);
        if (column < dim) visit(reinterpret_cast<Pair*>(to + column), half, 4 * j + 2 * half);
      }
    }
  }

  // ---- Rows that are not finite ----

  // NaN in `nonfinite`, of the thread's two keys, where a gradient is not finite.
  template <int kCount>
  __device__ __forceinline__ static void find_nonfinite(const float (&d)[kCount],
                                                        float (&nonfinite)[2]) {
    if constexpr (C.masked()) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) nonfinite[i / 2 % 2] = fmaf(d[i], 0, nonfinite[i / 2 % 2]);
    }
  }
  // Recomputes rows of the warp's keys that are not finite, or depend on elements that were
  // cleared. After the stores, by the whole warp.
  __device__ __forceinline__ void fix_up() const {
    if constexpr (C.masked()) {
      uint32_t upper = __ballot_sync(0xffffffffu, !(quad_sum(nonfinite_[0]) == 0));
      uint32_t lower = __ballot_sync(0xffffffffu, !(quad_sum(nonfinite_[1]) == 0));
      if constexpr (C.accumulate_key || C.accumulate_value) {
        upper |= keys_left_out_[0] | values_left_out_[0];
        lower |= keys_left_out_[1] | values_left_out_[1];
      }
      const bool cleared = C.clears_nonfinite() && c_.shared.nonfinite() != 0;
      if ((upper | lower) == 0 && !cleared) return;
      if (c_.thread.lane == 0) ptx::tma_store_wait();
      __syncwarp();
      const auto sum = sum_of<C>(c_.arguments, c_.tile);
#pragma unroll 1
      for (int row = 0; row < 16; ++row) {
        const int key = c_.tile.key + c_.thread.first_key() + 16 * c_.thread.warp + row;
        if (key >= c_.tile.kv_rows) break;
        if (((row < 8 ? upper : lower) >> (4 * (row % 8)) & 1) != 0 ||
            (cleared &&
             key_depends_on_nonfinite<C>(c_.arguments, c_.tile.batch, c_.tile.kv_head, key, sum)))
          fix_up_key<C>(c_.arguments, c_.tile.batch, c_.tile.kv_head, key, left_out(row), 0,
                        kLastColumn, sum);
      }
    }
  }
  // The gradients, bits of RowGradient, that the fixup of one of the warp's 16 rows writes: an
  // accumulating gradient only if accumulate() has left the row out.
  __device__ __forceinline__ uint32_t left_out(int row) const {
    const auto is_in = [row](const uint32_t(&rows)[2]) {
      return ((row < 8 ? rows[0] : rows[1]) >> (4 * (row % 8)) & 1) != 0;
    };
    return (!C.accumulate_key || is_in(keys_left_out_) ? kRowOfKey : 0) |
           (!C.accumulate_value || is_in(values_left_out_) ? kRowOfValue : 0);
  }

  const ConsumerContext<C> c_;
  const ClusterReduction<C> cluster_;
  float nonfinite_[2] = {0, 0};
  // Rows that accumulate() has left out, as ballots.
  uint32_t keys_left_out_[2] = {0, 0}, values_left_out_[2] = {0, 0};
};

}  // namespace perseid::internal::cuda
