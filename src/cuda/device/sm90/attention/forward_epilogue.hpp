// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The epilogue of attention forward: divides results by their row sums and stores them.
//
// Each warp stages its 16 rows in its own part of shared memory, in the swizzled layout of TMA, as
// many columns at a time as fit, and one lane issues the TMA store, which clips what is outside of
// the tensor. Rows behind the end of a ragged sequence, or of one with a length of its own, are
// inside of the tensor: a warp that has such rows stores with ordinary stores.
//
// Under a mask a tile with a non-finite result is listed for the second pass
// (forward_consumer.hpp).
//
// Results in float32, and those beyond 256 columns, for which no shared memory is left, are stored
// from registers.
#pragma once

#include "cuda/device/attention/forward_scores.hpp"
#include "cuda/device/portable/attention/forward_planes.hpp"
#include "cuda/device/ptx/ldmatrix.hpp"
#include "cuda/device/ptx/memory.hpp"
#include "cuda/device/sm90/attention/forward_fixup.hpp"
#include "cuda/device/sm90/attention/forward_shared.hpp"

namespace perseid::internal::cuda {

template <AttentionForwardConfig C>
class ForwardEpilogue {
 public:
  __device__ __forceinline__ ForwardEpilogue(const AttentionForwardArguments& arguments,
                                             const ForwardShared<C>& shared,
                                             const ForwardScores<C>& rules, int consumer, int warp,
                                             int lane)
      : a_(arguments),
        shared_(shared),
        rules_(rules),
        consumer_(consumer),
        warp_(warp),
        lane_(lane),
        first_row_(64 * consumer + 16 * warp),
        staged_(shared.out(consumer, warp)) {}

  // For the warp's rows: stores lse and computes the factors of the results, 0 for a row without
  // visible keys.
  __device__ __forceinline__ void finalize(const AnnouncedTile& tile, const RowStatistics& rows,
                                           float (&factor)[2]) const {
    float log2_sum[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = quad_sum(rows.sum[r]);
      const bool empty = sum == 0;
      factor[r] = empty ? 0 : ptx::approximate_reciprocal(sum) * dropout_factor<C.dropout>(a_);
      log2_sum[r] = empty ? minus_infinity()
                          : rows.maximum[r] * rules_.scale_log2() + ptx::approximate_log2(sum);
    }
    write_lse(tile, log2_sum);
  }
  template <int kCount>
  __device__ __forceinline__ void store(AttentionTile& tile, float (&out)[kCount],
                                        const float (&factor)[2]) const {
    if constexpr (C.second_pass())
      if (sees_nonfinite_values(out)) list(tile);
    // Rows without visible keys may hold NaN; few warps have such rows.
    if (__any_sync(0xffffffffu, factor[0] == 0 || factor[1] == 0))
#pragma unroll
      for (int i = 0; i < kCount; ++i) out[i] = factor[i / 2 % 2] == 0 ? 0 : out[i];
#pragma unroll
    for (int i = 0; i < kCount; ++i) out[i] *= factor[i / 2 % 2];
    if constexpr (C.split) {
      store_split(tile, out);
      return;
    } else if constexpr (!C.stages_out()) {
      store_from_registers(tile, out);
      return;
    }
    constexpr int kPieces = 8 * C.out_chunks();  // of 8 columns, that fit
    const uint32_t own = staged_.piece(lane_ % 16, lane_ / 16);
    const bool by_threads =
        C.lengths && (a_.ragged || a_.q_lens.data != nullptr) && query_of(tile, 15) >= tile.q_len;
#pragma unroll
    for (int first = 0; first < C.value_dim / 8; first += kPieces) {
      // The TMA store before has read the staged rows.
      if (lane_ == 0) ptx::tma_store_wait_read();
      __syncwarp();
#pragma unroll
      for (int j = first; j < min(first + kPieces, C.value_dim / 8); j += 2) {
        const auto pair = [&](int i) {
          return i < kCount ? round_pair<C.dtype>(out[i], out[i + 1]) : 0;
        };
        ptx::stmatrix_x4(Out::advance_piece(own, j - first), pair(4 * j), pair(4 * j + 2),
                         pair(4 * j + 4), pair(4 * j + 6));
      }
      if (by_threads) {
        __syncwarp();
        store_by_threads(tile, first, min(kPieces, a_.value_dim / 8 - first));
      } else {
        ptx::fence_proxy_async();
        __syncwarp();
        if (lane_ == 0 && !is_before_first_query(tile)) store_by_tma(tile, first / 8);
      }
    }
  }

  // The factor of the planes of the lane's row r.
  __device__ __forceinline__ float query_factor(const AttentionTile& tile, int r) const {
    const int row = lane_ / 4 + 8 * r;
    if (!has_row(tile, row)) return 1;
    const int64_t head = int64_t{batch_of(tile)} * a_.heads + head_of(tile, row);
    const int64_t rows = C.lengths && a_.ragged ? a_.total_q : a_.q_len;
    return a_.query_numbers[head * rows + tile.q_begin + query_of(tile, row)].factor;
  }
  // Whether the lane's row r exists.
  __device__ __forceinline__ bool has_row_of_lane(const AttentionTile& tile, int r) const {
    return has_row(tile, lane_ / 4 + 8 * r);
  }
  // float32, for the warp's rows: stores lse and returns the row sums.
  __device__ __forceinline__ void finalize(const AnnouncedTile& tile, const PlaneStatistics& rows,
                                           float (&sums)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sums[r] = quad_sum(rows.sum[r]);
      const int row = lane_ / 4 + 8 * r;
      if (tile.lse != nullptr && lane_ % 4 == 0 && has_row(tile, row))
        *lse_at(tile, row) = sums[r] == 0
                                 ? minus_infinity()
                                 : natural_logarithm(rows.maximum[r] - kWeightPower, sums[r]);
    }
  }
  // Planes do not hold what makes a sum NaN: its row needs a fixup.
  template <int kCount>
  __device__ __forceinline__ void store_float32(AttentionTile& tile, const float (&out)[kCount],
                                                const float (&sums)[2]) const {
    if (__any_sync(0xffffffffu, sums[0] + sums[1] != sums[0] + sums[1])) list(tile);
    const int column = lane_ % 4 * 2;
    const int64_t stride = a_.out_rows.stride[3];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane_ / 4 + 8 * r;
      if (!has_row(tile, row)) continue;
      float* const to = row_at<float>(a_.out_rows, batch_of(tile), head_of(tile, row),
                                      tile.q_begin + query_of(tile, row));
      store_results(to + column * stride, stride, a_.value_dim - column, a_.out_pairs, out, r,
                    result_factor(sums[r], dropout_factor<C.dropout>(a_),
                                  loss_of_results<C>(tile, query_of(tile, row))));
    }
  }

  // Fixes up the warp's rows in the listed tiles, after the results of the second pass were stored.
  __device__ __forceinline__ void fixup() const {
    for (int number = shared_.nonfinite_list(); number < a_.tiles;
         number = a_.nonfinite_next[number]) {
      const AttentionTile tile = TileFinder<C>(a_).find(number);
#pragma unroll 1
      for (int row = 0; row < 16; ++row)
        if (has_row(tile, row))
          fixup_row<C>(a_, tile, head_of(tile, row), query_of(tile, row), first_column<C>(tile));
    }
  }

 private:
  // Lists the tile once, in the first pass, however many warps call it.
  __device__ __forceinline__ void list(AttentionTile& tile) const {
    if (lane_ != 0 || atomicExch(&tile.listed, 1) != 0) return;
    a_.nonfinite_next[tile.number] = atomicExch(&shared_.nonfinite_list(), tile.number);
    if constexpr (C.split) a_.counter->nonfinite = a_.launch;
  }
  // Rows count from the warp's first.
  __device__ __forceinline__ int query_of(const AttentionTile& tile, int row) const {
    return tile.query + ((first_row_ + row) >> a_.pack_gqa);
  }
  // Whether all of the warp's rows are before the first query.
  __device__ __forceinline__ bool is_before_first_query(const AttentionTile& tile) const {
    return C.partial_tile_first() && query_of(tile, 0) < 0;
  }
  __device__ __forceinline__ bool has_row(const AttentionTile& tile, int row) const {
    return !is_before_first_query(tile) && query_of(tile, row) < tile.q_len;
  }
  __device__ __forceinline__ int head_of(const AttentionTile& tile, int row) const {
    return (tile.head << a_.pack_gqa) + ((first_row_ + row) & ((1 << a_.pack_gqa) - 1));
  }
  __device__ __forceinline__ int batch_of(const AttentionTile& tile) const {
    return entry_of<C.lengths>(a_, tile.batch);
  }

  // lse of a row of the warp.
  __device__ __forceinline__ float* lse_at(const AnnouncedTile& tile, int row) const {
    const int own = first_row_ + row, heads = 1 << a_.pack_gqa;
    return tile.lse + (own >> a_.pack_gqa) * a_.lse_stride[2] +
           (own & (heads - 1)) * a_.lse_stride[1];
  }
  // `sum`: the logarithms to base 2 of those of the thread's two rows. Predicated: behind a branch
  // the second row would wait for the first.
  __device__ __forceinline__ void write_lse(const AnnouncedTile& tile,
                                            const float (&sum)[2]) const {
    const int row = lane_ / 4;
    if constexpr (C.split) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (lane_ % 4 == 0 && has_row(tile, row + 8 * r))
          a_.split_sums[split_row(tile, row + 8 * r)] = sum[r];
    } else {
      float* const first = lse_at(tile, row);
      const int64_t step =
          a_.pack_gqa < 4 ? (8 >> a_.pack_gqa) * a_.lse_stride[2] : 8 * a_.lse_stride[1];
      const bool stores = lane_ % 4 == 0 && tile.lse != nullptr;
#pragma unroll
      for (int r = 0; r < 2; ++r)
        ptx::store_if(stores && has_row(tile, row + 8 * r), first + r * step,
                      ptx::Packed<1>{{float_bits(sum[r] * kLn2)}});
    }
  }
  // In split_sums and split_results.
  __device__ __forceinline__ int64_t split_row(const AttentionTile& tile, int row) const {
    const int length = a_.ragged ? a_.total_q : a_.q_len;
    const int head = batch_of(tile) * (a_.heads << a_.pack_gqa) + head_of(tile, row);
    return int64_t{tile.split} * a_.rows + int64_t{head} * length + tile.q_begin +
           query_of(tile, row);
  }
  template <int kCount>
  __device__ __forceinline__ void store_split(const AttentionTile& tile,
                                              const float (&out)[kCount]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane_ / 4 + 8 * r;
      if (query_of(tile, row) >= tile.q_len) continue;
      float* to = a_.split_results + split_row(tile, row) * a_.value_dim + 2 * (lane_ % 4);
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j)
        if (8 * j < a_.value_dim)
          *reinterpret_cast<float2*>(to + 8 * j) =
              float2{out[4 * j + 2 * r], out[4 * j + 2 * r + 1]};
    }
  }
  // The four lanes of a row store 16 bytes that lie side by side.
  template <int kCount>
  __device__ __forceinline__ void store_from_registers(const AttentionTile& tile,
                                                       const float (&out)[kCount]) const {
    const int column = first_column<C>(tile) + lane_ % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane_ / 4 + 8 * r;
      if (!has_row(tile, row)) continue;
      uint16_t* to = row_at<uint16_t>(a_.out_rows, batch_of(tile), head_of(tile, row),
                                      tile.q_begin + query_of(tile, row));
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j)
        if (column + 8 * j < a_.value_dim)
          *reinterpret_cast<uint32_t*>(to + column + 8 * j) =
              round_pair<C.dtype>(out[4 * j + 2 * r], out[4 * j + 2 * r + 1]);
    }
  }
  __device__ __forceinline__ void store_by_tma(const AttentionTile& tile, int first_chunk) const {
#pragma unroll
    for (int chunk = 0; chunk < C.out_chunks(); ++chunk)
      if (first_chunk + chunk < C.value_chunks())
        ptx::tma_store(a_.out, staged_.chunk(chunk),
                       {(first_chunk + chunk) * kChunk, 0, tile.q_begin + query_of(tile, 0),
                        tile.head, batch_of(tile)});
    ptx::tma_store_commit();
  }
  __device__ __forceinline__ void store_by_threads(const AttentionTile& tile, int first,
                                                   int pieces) const {
    for (int i = lane_; i < 16 * pieces; i += 32) {
      const int row = i / pieces, piece = i % pieces, query = query_of(tile, row);
      if (query >= tile.q_len) continue;
      uint16_t* to =
          row_at<uint16_t>(a_.out_rows, batch_of(tile), head_of(tile, row), tile.q_begin + query);
      *reinterpret_cast<uint4*>(to + 8 * (first + piece)) =
          *reinterpret_cast<const uint4*>(shared_.pointer(staged_.piece(row, piece)));
    }
  }

  using Out = typename ForwardShared<C>::Out;
  const AttentionForwardArguments& a_;
  const ForwardShared<C>& shared_;
  const ForwardScores<C> rules_;
  const int consumer_, warp_, lane_;
  const int first_row_;
  const Out staged_;  // the warp's 16 rows of each chunk
};

}  // namespace perseid::internal::cuda
