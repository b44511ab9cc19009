// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The end of a tile of attention forward: results divided by the sums of their rows, to memory.
//
// Each warp puts its 16 rows, or as many columns of them as there is room for, into shared memory
// of its own, in the copy engine's layout, and one lane asks the engine to store them; it leaves
// out what lies outside of the tensor. Rows behind the end of a ragged sequence lie inside of it,
// in the next one: such a warp stores its rows itself.
//
// Where a result is not finite under a mask, the tile is listed: it gets a second pass when the
// block has no tiles left (forward_consumer.hpp).
#pragma once

#include "cuda/device/ptx/ldmatrix.hpp"
#include "cuda/device/sm90/attention/forward_producer.hpp"
#include "cuda/device/sm90/attention/forward_rows.hpp"
#include "cuda/device/sm90/attention/forward_scores.hpp"

namespace perseid::internal::cuda {

template <AttentionForwardConfig C>
class ForwardEpilogue {
 public:
  __device__ __forceinline__ ForwardEpilogue(const AttentionForwardArguments& arguments,
                                             const ForwardShared<C>& shared,
                                             const ScoreRules<C>& rules, int consumer, int warp,
                                             int lane)
      : a_(arguments),
        shared_(shared),
        rules_(rules),
        consumer_(consumer),
        warp_(warp),
        lane_(lane),
        first_row_(64 * consumer + 16 * warp),
        staged_(shared.out(consumer, warp)) {}

  // Of the calling warp's rows: lse, and what results are to be multiplied by; 0 where a row saw
  // nothing.
  __device__ __forceinline__ void close(const AttentionTile& tile, const RowStatistics& rows,
                                        float (&factor)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = quad_sum(rows.sum[r]);
      const bool empty = sum == 0;
      factor[r] = empty ? 0 : ptx::approximate_reciprocal(sum) * dropout_factor<C.dropout>(a_);
      write_lse(tile, lane_ / 4 + 8 * r,
                empty ? minus_infinity()
                      : rows.maximum[r] * rules_.scale_log2() + ptx::approximate_log2(sum));
    }
  }
  template <int kCount>
  __device__ __forceinline__ void write(AttentionTile& tile, float (&out)[kCount],
                                        const float (&factor)[2]) const {
    if constexpr (C.masked())
      if (sees_nonfinite_values(out)) list(tile);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      out[i] = factor[i / 2 % 2] == 0 ? 0 : out[i] * factor[i / 2 % 2];
    if constexpr (C.split) {
      store_split(tile, out);
      return;
    }
    constexpr int kPieces = 8 * C.out_chunks();  // of 8 columns, that there is room for
    const bool alone = C.lengths && a_.ragged && query_of(tile, 15) >= tile.q_len;
#pragma unroll
    for (int first = 0; first < C.value_dim / 8; first += kPieces) {
      // What was there has been read.
      if (lane_ == 0) ptx::tma_store_wait_read();
      __syncwarp();
#pragma unroll
      for (int j = first; j < min(first + kPieces, C.value_dim / 8); j += 2) {
        const auto pair = [&](int i) {
          return i < kCount ? round_pair<C.dtype>(out[i], out[i + 1]) : 0;
        };
        ptx::stmatrix_x4(piece_at(lane_ % 16, j - first + lane_ / 16), pair(4 * j), pair(4 * j + 2),
                         pair(4 * j + 4), pair(4 * j + 6));
      }
      if (alone) {
        __syncwarp();
        store_rows(tile, first, min(kPieces, a_.value_dim / 8 - first));
      } else {
        ptx::fence_proxy_async();
        __syncwarp();
        if (lane_ == 0 && !is_early(tile)) store_boxes(tile, first / 8);
      }
    }
  }

  // The calling warp's rows of the listed tiles, when the results of the second pass are stored.
  __device__ __forceinline__ void fix_up() const {
    for (int number = shared_.nonfinite_list(); number < a_.tiles;
         number = a_.nonfinite_next[number]) {
      const AttentionTile tile = TileFinder<C>(a_).find(number);
#pragma unroll 1
      for (int row = 0; row < 16; ++row)
        if (has_row(tile, row)) fix_up_row<C>(a_, tile, head_of(tile, row), query_of(tile, row));
    }
  }

 private:
  // A non-finite element of a value that any row of the tile sees, or that is hidden, makes a
  // non-finite element in all rows, since 0 times it is NaN: the first row of each thread tells.
  // Four chains of additions instead of one that is four times as long.
  template <int kCount>
  static __device__ __forceinline__ bool sees_nonfinite_values(const float (&out)[kCount]) {
    float zero[4] = {};
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      zero[i / 4 % 2 * 2] = fmaf(out[i], 0, zero[i / 4 % 2 * 2]);
      zero[i / 4 % 2 * 2 + 1] = fmaf(out[i + 1], 0, zero[i / 4 % 2 * 2 + 1]);
    }
    return __any_sync(0xffffffffu, zero[0] + zero[1] + (zero[2] + zero[3]) != 0);
  }
  // Once, in the first pass, whichever warps call it.
  __device__ __forceinline__ void list(AttentionTile& tile) const {
    if (lane_ != 0 || atomicExch(&tile.listed, 1) != 0) return;
    a_.nonfinite_next[tile.number] = atomicExch(&shared_.nonfinite_list(), tile.number);
    if constexpr (C.split) a_.counter->nonfinite = a_.launch;
  }
  // Rows count from the warp's first.
  __device__ __forceinline__ int query_of(const AttentionTile& tile, int row) const {
    return tile.query + ((first_row_ + row) >> a_.pack_gqa);
  }
  // All of the warp's rows are before the first query.
  __device__ __forceinline__ bool is_early(const AttentionTile& tile) const {
    return C.begins_early() && query_of(tile, 0) < 0;
  }
  __device__ __forceinline__ bool has_row(const AttentionTile& tile, int row) const {
    return !is_early(tile) && query_of(tile, row) < tile.q_len;
  }
  __device__ __forceinline__ int head_of(const AttentionTile& tile, int row) const {
    return (tile.head << a_.pack_gqa) + ((first_row_ + row) & ((1 << a_.pack_gqa) - 1));
  }
  __device__ __forceinline__ int batch_of(const AttentionTile& tile) const {
    return entry_of<C.lengths>(a_, tile.batch);
  }
  // The 16 bytes of elements 8 * piece and on.
  __device__ __forceinline__ uint32_t piece_at(int row, int piece) const {
    return staged_ + piece / 8 * 16 * 128 + row * 128 + ((piece % 8 ^ row % 8) << 4);
  }

  // `sum`: as a logarithm to base 2.
  __device__ __forceinline__ void write_lse(const AttentionTile& tile, int row, float sum) const {
    const int query = query_of(tile, row);
    if (lane_ % 4 != 0 || !has_row(tile, row)) return;
    if constexpr (C.split) {
      a_.split_sums[split_row(tile, row)] = sum;
    } else if (a_.lse != nullptr) {
      a_.lse[batch_of(tile) * a_.lse_stride[0] + head_of(tile, row) * a_.lse_stride[1] +
             int64_t{tile.q_begin + query} * a_.lse_stride[2]] = sum * kLn2;
    }
  }
  // Of the part's rows.
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
  __device__ __forceinline__ void store_boxes(const AttentionTile& tile, int first_chunk) const {
#pragma unroll
    for (int chunk = 0; chunk < C.out_chunks(); ++chunk)
      if (first_chunk + chunk < C.value_chunks())
        ptx::tma_store(a_.out, staged_ + chunk * 16 * 128,
                       {(first_chunk + chunk) * kChunk, 0, tile.q_begin + query_of(tile, 0),
                        tile.head, batch_of(tile)});
    ptx::tma_store_commit();
  }
  __device__ __forceinline__ void store_rows(const AttentionTile& tile, int first,
                                             int pieces) const {
    for (int i = lane_; i < 16 * pieces; i += 32) {
      const int row = i / pieces, piece = i % pieces, query = query_of(tile, row);
      if (query >= tile.q_len) continue;
      uint16_t* to =
          row_at<uint16_t>(a_.out_rows, batch_of(tile), head_of(tile, row), tile.q_begin + query);
      *reinterpret_cast<uint4*>(to + 8 * (first + piece)) =
          *reinterpret_cast<const uint4*>(shared_.memory + (piece_at(row, piece) - shared_.base));
    }
  }

  const AttentionForwardArguments& a_;
  const ForwardShared<C>& shared_;
  const ScoreRules<C> rules_;
  const int consumer_, warp_, lane_;
  const int first_row_;
  const uint32_t staged_;  // the warp's rows, 16 of each chunk
};

}  // namespace perseid::internal::cuda
