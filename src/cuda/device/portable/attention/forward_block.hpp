// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What a block of attention forward on sm_80 and up has: its Q tile, and of each warp rows of it,
// whose results it stores.
#pragma once

#include "cuda/device/attention/forward_scores.hpp"
#include "cuda/device/attention/row_fixup.hpp"
#include "cuda/device/portable/attention/config.hpp"
#include "cuda/device/portable/attention/forward_planes.hpp"
#include "cuda/device/ptx/cluster.hpp"
#include "cuda/device/ptx/ordering.hpp"
#include "cuda/device/raster_order.hpp"

namespace perseid::internal::cuda {

template <PortableForwardConfig C>
class PortableForwardBlock {
 protected:
  static constexpr int kTiles = C.rows / 16;  // of 16 rows, of a warp
  static constexpr int kPlanes = C.planes();
  static constexpr int kColumns = line_length(kPlanes * C.columns());

  __device__ __forceinline__ PortableForwardBlock(const PortableForwardArguments& arguments,
                                                  unsigned char* memory)
      : a_(arguments),
        memory_(memory),
        address_(ptx::shared_address(memory)),
        own_(reinterpret_cast<QueryTile*>(memory + C.tile_bytes())[warp()]) {}

  // Read again each time: what follows from it takes no registers in between.
  static __device__ __forceinline__ int lane() { return ptx::thread_number() & 31; }
  static __device__ __forceinline__ int warp() {
    return static_cast<int>(static_cast<uint32_t>(ptx::thread_number()) / 32);
  }

  // ---- The block's Q tile, and the warp's rows of it ----

  // Returns whether the tile has rows.
  __device__ __forceinline__ bool locate(QueryTile& tile) {
    split_ = C.split ? static_cast<int32_t>(blockIdx.x) % a_.num_splits : 0;
    const int32_t block = C.split ? static_cast<int32_t>(blockIdx.x) / a_.num_splits
                                  : static_cast<int32_t>(blockIdx.x);
    first_column_ = block % C.parts() * C.columns();
    if (!find_query_tile<C>(a_, block / C.parts(), tile)) return false;
    QueryTile own = tile;
    const int32_t first = warp() * C.rows;
    own.query += first >> pack();
    if (own.query < own.q_len)
      find_kv_tiles<C>(own, min(tile.query + ((first + C.rows - 1) >> pack()) + 1, own.q_len) - 1);
    else
      own.first = 1;  // it visits none
    find_kv_tiles<C>(tile, min(tile.query + C.block_rows(), tile.q_len) - 1);
    if constexpr (C.split) {
      keep_split(a_, split_, own);
      keep_split(a_, split_, tile);
    }
    if constexpr (C.packs) own.query = 0;
    if (lane() == 0) own_ = own;
    __syncwarp();
    return true;
  }
  // 2^pack() query heads are packed into the rows of the block, which has all their queries then:
  // row r is query r >> pack() of the pack's head r % 2^pack().
  __device__ __forceinline__ int pack() const { return C.packs ? a_.pack_gqa : 0; }
  // Return the query and the head of one of the warp's rows.
  __device__ __forceinline__ int query_of(int row) const {
    return own_.query + (C.packs ? (warp() * C.rows + row) >> a_.pack_gqa : row);
  }
  __device__ __forceinline__ int head_of(int row) const {
    if constexpr (!C.packs) return own_.head;
    return (own_.head << a_.pack_gqa) + ((warp() * C.rows + row) & ((1 << a_.pack_gqa) - 1));
  }
  // The warp's rows.
  __device__ __forceinline__ int row_count() const {
    if constexpr (!C.packs) return min(own_.q_len - own_.query, C.rows);
    return min((own_.q_len << a_.pack_gqa) - warp() * C.rows, C.rows);
  }
  __device__ __forceinline__ int32_t entry() const { return entry_of<C.lengths>(a_, own_.batch); }

  // The per-score operations of 16 rows.
  __device__ __forceinline__ ForwardScores<C> rules(int i) const {
    const int own = lane();
    return {a_, (C.packs ? warp() * C.rows : 0) + 16 * i + own / 4, own};
  }
  // ---- Epilogue ----

  // Divides the results by their row sums. Each warp stages its rows in shared memory, in place of
  // its queries where their lines are as long, and stores whole lines.
  __device__ __forceinline__ void epilogue() {
    if constexpr (C.stores_registers()) {
      store_registers();
      return;
    }
    if constexpr (!C.streams() && kColumns == line_length(C.depth()))
      __syncwarp();
    else
      __syncthreads();  // all warps are done with the stages
    const int own = lane();
    unsigned char* staged = memory_ + warp() * C.rows * kColumns * 2;
    // Of the thread's first row; packed ones have no common stride.
    float* const lse = C.packs ? nullptr : lse_of<C>(a_, own_, head_of(own / 4), query_of(own / 4));
    float factor[kTiles][2];
    finalize(lse, factor);
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int j = 0; j < C.columns() / 8; ++j)
          *reinterpret_cast<uint32_t*>(
              staged + vector_offset<kColumns>(16 * i + 8 * r + own / 4, j) + own % 4 * 4) =
              rounded(i, r, j, factor[i][r]);
    __syncwarp();
    const int rows = row_count();
    const int columns = min(a_.value_dim - first_column_, C.columns());
    if constexpr (C.vectors)
      store_vectors(staged, rows, columns / kVector);
    else
      store_elements(staged, rows, columns);
  }
  // The same from registers alone: the lanes of a quad exchange words until each has whole vectors.
  __device__ __forceinline__ void store_registers() {
    const int own = lane(), rows = row_count();
    float* const lse = lse_of<C>(a_, own_, head_of(own / 4), query_of(own / 4));
    const int vectors = min(a_.value_dim - first_column_, C.columns()) / kVector;
    const auto exchange = [](uint32_t& kept, uint32_t& sent, int with, bool upper) {
      const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? kept : sent, with);
      if (upper)
        kept = other;
      else
        sent = other;
    };
    uint16_t* to = out_row(own / 4) + first_column_ + own % 4 * kVector;
    float factor[kTiles][2];
    finalize(lse, factor);
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 16 * i + 8 * r + own / 4;
#pragma unroll
        for (int g = 0; g < C.columns() / 32; ++g) {
          ptx::Packed<4> words;
#pragma unroll
          for (int j = 0; j < 4; ++j) words.word[j] = rounded(i, r, 4 * g + j, factor[i][r]);
          const bool odd = own % 2 != 0, upper = own % 4 >= 2;
          exchange(words.word[0], words.word[1], 1, odd);
          exchange(words.word[2], words.word[3], 1, odd);
          exchange(words.word[0], words.word[2], 2, upper);
          exchange(words.word[1], words.word[3], 2, upper);
          ptx::store_if(row < rows && 4 * g + own % 4 < vectors, to + 32 * g, words);
        }
        to += 8 * a_.out_rows.stride[2];
      }
  }
  // Two results of a row.
  __device__ __forceinline__ uint32_t rounded(int i, int r, int j, float factor) const {
    const float(&sums)[4] = eight_columns(out_[i], j);
    return round_pair<C.dtype>(sums[2 * r] * factor, sums[2 * r + 1] * factor);
  }
  // Stores lse of all rows, `lse` of the thread's first one, and returns the factors of their
  // results. Those of rows without visible keys become 0: they may be 0 times NaN.
  __device__ __forceinline__ void finalize(float* lse, float (&factor)[kTiles][2]) {
    bool empty = false;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        factor[i][r] =
            finalize(i, r, 16 * i + 8 * r + lane() / 4, lse + (16 * i + 8 * r) * a_.lse_stride[2]);
        empty = empty || factor[i][r] == 0;
      }
    if (!__any_sync(0xffffffffu, empty)) return;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int x = 0; x < C.columns() / 2; ++x)
        if (factor[i][x / 2 % 2] == 0) out_[i][x] = 0;
  }
  // Stores lse of a row and returns the factor of its results: 0 for a row without visible keys.
  __device__ __forceinline__ float finalize(int i, int r, int row, float* lse) const {
    const float sum = quad_sum(rows_[i].sum[r]);
    const bool empty = sum == 0;
    const float log2 =
        empty ? minus_infinity()
              : rows_[i].maximum[r] * rules(i).scale_log2() + ptx::approximate_log2(sum);
    const bool stores =
        a_.lse != nullptr && first_column_ == 0 && lane() % 4 == 0 && row < row_count();
    if constexpr (C.packs) {
      if (stores) *lse_of<C>(a_, own_, head_of(row), query_of(row)) = log2 * kLn2;
    } else {
      ptx::store_if(stores, lse, ptx::Packed<1>{{float_bits(log2 * kLn2)}});
    }
    return empty ? 0 : ptx::approximate_reciprocal(sum) * dropout_factor<C.dropout>(a_);
  }
  __device__ __forceinline__ uint16_t* out_row(int row) const {
    return row_at<uint16_t>(a_.out_rows, entry(), head_of(row), own_.q_begin + query_of(row));
  }
  __device__ __forceinline__ void store_vectors(const unsigned char* staged, int rows,
                                                int vectors) const {
    constexpr int kVectors = C.columns() / kVector;
    if constexpr (C.packs || 32 % kVectors != 0) {
#pragma unroll 4
      for (int i = lane(); i < rows * kVectors; i += 32) {
        const int row = i / kVectors, vector = i % kVectors;
        if (vector < vectors)
          *reinterpret_cast<uint4*>(out_row(row) + first_column_ + vector * kVector) =
              *reinterpret_cast<const uint4*>(staged + vector_offset<kColumns>(row, vector));
      }
    } else {
      // Without branches, so that the loads of some rows overlap.
      constexpr int kPass = 32 / kVectors, kPasses = C.rows / kPass, kAtOnce = min(kPasses, 8);
      const int first = lane() / kVectors, vector = lane() % kVectors;
      const int end = vector < vectors ? rows : 0;
      uint16_t* to = out_row(first) + first_column_ + vector * kVector;
#pragma unroll
      for (int pass = 0; pass < kPasses; pass += kAtOnce) {
        ptx::Packed<4> loaded[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          loaded[i] = *reinterpret_cast<const ptx::Packed<4>*>(
              staged + vector_offset<kColumns>((pass + i) * kPass + first, vector));
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          ptx::store_if((pass + i) * kPass + first < end, to, loaded[i]);
          to += kPass * a_.out_rows.stride[2];
        }
      }
    }
  }
  __device__ __forceinline__ void store_elements(const unsigned char* staged, int rows,
                                                 int columns) const {
#pragma unroll 1
    for (int i = lane(); i < rows * C.columns(); i += 32) {
      const int row = i / C.columns(), column = i % C.columns();
      if (column < columns)
        out_row(row)[(first_column_ + column) * a_.out_rows.stride[3]] =
            *reinterpret_cast<const uint16_t*>(
                staged + vector_offset<kColumns>(row, column / kVector) + column % kVector * 2);
    }
  }

  // Stores float32 results from registers. Returns the rows of the warp whose sums are NaN, as
  // bits.
  __device__ __forceinline__ uint32_t store_float32() const {
    uint32_t lost = 0;
    const int own = lane();
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 16 * i + 8 * r + own / 4;
        const float sum = quad_sum(rows_[i].sum[r]);
        const uint32_t lanes = __ballot_sync(0xffffffffu, sum != sum);
#pragma unroll
        for (int l = 0; l < 8; ++l) lost |= (lanes >> (4 * l) & 1) << (16 * i + 8 * r + l);
        if (row >= row_count()) continue;
        if (first_column_ == 0 && own % 4 == 0 && a_.lse != nullptr)
          *lse_of<C>(a_, own_, head_of(row), query_of(row)) =
              sum == 0 ? minus_infinity()
                       : natural_logarithm(rows_[i].maximum[r] - kWeightPower, sum);
        const int column = first_column_ + own % 4 * 2;
        const int64_t stride = a_.out_rows.stride[3];
        float* const to =
            row_at<float>(a_.out_rows, entry(), head_of(row), own_.q_begin + query_of(row));
        store_results(to + column * stride, stride, a_.value_dim - column, a_.out_pairs, out_[i], r,
                      result_factor(sum, dropout_factor<C.dropout>(a_),
                                    loss_of_results<C>(own_, query_of(row))));
      }
    return lost;
  }

  // A split's results, and the logarithms of its row sums. Few rows: in the layout of registers.
  __device__ __forceinline__ void store_split() const {
    const int own = lane();
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int own_row = 16 * i + 8 * r + own / 4;
        const float sum = quad_sum(rows_[i].sum[r]);
        if (own_row >= row_count()) continue;
        const int64_t length = C.lengths && a_.ragged ? a_.total_q : a_.q_len;
        const int64_t head = int64_t{entry()} * (a_.heads << pack()) + head_of(own_row);
        const int64_t row = split_ * a_.rows + head * length + own_.q_begin + query_of(own_row);
        const bool first = own % 4 == 0 && first_column_ == 0;
        float2 factor{0, 0};
        if constexpr (kPlanes == 2) {
          if (first) {
            a_.split_sums[row] = sum == 0     ? minus_infinity()
                                 : sum != sum ? 0
                                              : rows_[i].maximum[r] - kWeightPower;
            a_.split_weights[row] = sum;
          }
          if (sum != sum) *a_.nonfinite = a_.launch;
          factor = result_factor(sum, dropout_factor<C.dropout>(a_),
                                 loss_of_results<C>(own_, query_of(own_row)));
        } else {
          if (first)
            a_.split_sums[row] =
                sum == 0 ? minus_infinity()
                         : rows_[i].maximum[r] * rules(i).scale_log2() + ptx::approximate_log2(sum);
          if (sum != 0) factor.x = ptx::approximate_reciprocal(sum) * dropout_factor<C.dropout>(a_);
        }
#pragma unroll
        for (int j = 0; j < C.columns() / 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int column = first_column_ + 8 * j + own % 4 * 2 + e;
            if (column < a_.value_dim)
              a_.split_results[row * a_.value_dim + column] =
                  kPlanes == 2    ? result_of(out_[i][4 * j + 2 * r + e], factor)
                  : factor.x == 0 ? 0
                                  : out_[i][4 * j + 2 * r + e] * factor.x;
          }
      }
  }

  // Computes the warp's rows `lost` (bits) of float32 once more, after the results were stored.
  __device__ __forceinline__ void fix_up(uint32_t lost) const {
    __syncwarp();
#pragma unroll 1
    for (; lost != 0; lost &= lost - 1) {
      const int row = __ffs(static_cast<int>(lost)) - 1;
      if (row < row_count()) fixup_row<C, true>(a_, own_, head_of(row), query_of(row));
    }
  }
  // After the results with cleared values were stored.
  __device__ __forceinline__ void fix_up() const {
    if constexpr (C.split) {
      if (threadIdx.x == 0) *a_.nonfinite = a_.launch;
      return;
    }
    __syncwarp();
#pragma unroll 1
    for (int row = 0; row < row_count(); ++row) fixup_row<C>(a_, own_, head_of(row), query_of(row));
  }

  const PortableForwardArguments& a_;
  unsigned char* const memory_;
  const uint32_t address_;
  QueryTile& own_;  // the warp's rows, in shared memory
  int32_t first_column_ = 0, split_ = 0;
  float out_[kTiles][C.columns() / 2];
  typename StatisticsOf<kPlanes == 2>::Type rows_[kTiles];
};

}  // namespace perseid::internal::cuda
