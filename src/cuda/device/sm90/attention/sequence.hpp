// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Sequences of a batch, and the coordinates of their rows in tensor maps.
#pragma once

#include "cuda/device/ptx/mbarrier.hpp"
#include "cuda/device/ptx/tma.hpp"
#include "cuda/device/sm90/attention/config.hpp"
#include "cuda/device/sm90/pipeline.hpp"
#include "cuda/device/sm90/scheduler.hpp"

namespace perseid::internal::cuda {

// Lengths, where they begin in packed tensors, and what rows see: query q keys [q + left,
// q + right), cut to [0, kv_len). Of keys there are kv_rows in memory.
struct AttentionSequence {
  int32_t batch;
  int32_t q_len, kv_len, q_begin, kv_begin;
  int32_t left, right;
  int32_t kv_rows;
};

__device__ __forceinline__ int32_t read_length(const LengthsInMemory& lengths, int32_t index,
                                               int32_t most) {
  const int64_t at = index * lengths.stride;
  const int64_t value = lengths.wide ? static_cast<const int64_t*>(lengths.data)[at]
                                     : static_cast<const int32_t*>(lengths.data)[at];
  return static_cast<int32_t>(clamp(value, int64_t{0}, int64_t{most}));
}

template <bool kLengths>
__device__ __forceinline__ AttentionSequence find_sequence(const AttentionArguments& a,
                                                           int32_t batch) {
  AttentionSequence found{batch, a.q_len, a.kv_len, 0, 0, a.left, a.right, a.kv_len};
  if constexpr (kLengths) {
    if (a.ragged) {
      found.q_begin = read_length(a.cumulative_q, batch, a.total_q);
      const int32_t q_end = read_length(a.cumulative_q, batch + 1, a.total_q);
      found.q_len = clamp(q_end - found.q_begin, 0, a.q_len);
      found.kv_begin = read_length(a.cumulative_kv, batch, a.total_kv);
      const int32_t kv_end = read_length(a.cumulative_kv, batch + 1, a.total_kv);
      found.kv_len = found.kv_rows = clamp(kv_end - found.kv_begin, 0, a.kv_len);
    }
    if (a.kv_lens.data != nullptr)
      found.kv_len = min(found.kv_len, read_length(a.kv_lens, batch, a.kv_len));
    const int32_t shift = a.bottom_right ? found.kv_len - found.q_len : 0;
    found.left += shift;
    found.right += shift;
  }
  return found;
}

// The batch entry that a sequence has in memory.
template <bool kLengths>
__device__ __forceinline__ int32_t entry_of(const AttentionArguments& a, int32_t batch) {
  return kLengths && a.ragged ? 0 : batch;
}

// The coordinate of the first row of a sequence in a tensor map. A map of a ragged tensor has as
// many rows as the longest sequence, and as many entries as there are rows: row r of entry e is row
// e + r - longest of the tensor. So the last row of a sequence is the last of an entry: TMA reads
// zeros behind it and writes nothing there, and rows of the next sequence stay out. The map begins
// before the tensor, where there may be no memory: a box must begin inside of the map in every
// dimension, since TMA may access memory for one that lies outside.
struct MapCoordinate {
  int32_t row, entry;
};
template <bool kLengths>
__device__ __forceinline__ MapCoordinate query_coordinate(const AttentionArguments& a,
                                                          const AttentionSequence& s) {
  if (kLengths && a.ragged) return {a.q_len - s.q_len, s.q_begin + s.q_len};
  return {0, s.batch};
}
template <bool kLengths>
__device__ __forceinline__ MapCoordinate key_coordinate(const AttentionArguments& a,
                                                        const AttentionSequence& s) {
  if (kLengths && a.ragged) return {a.kv_len - s.kv_rows, s.kv_begin + s.kv_rows};
  return {0, s.batch};
}

// Blocks of `size` rows of ragged sequences get places so that each begins a block: that of a
// sequence's first block follows from where its rows begin, others are empty.
__device__ __forceinline__ int32_t first_padded_block(int32_t begin, int32_t batch, int32_t size) {
  return begin / size + batch;
}
// The sequence that has a place, by the whole warp; -1: none.
__device__ __forceinline__ int32_t sequence_of_block(const LengthsInMemory& cumulative,
                                                     int32_t most, int32_t batch, int32_t size,
                                                     int32_t place) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  int32_t begin = -1, end = batch;  // those from `end` on begin behind the place
  while (end - begin > 1) {
    const int32_t step = (end - begin + 31) / 32;
    const int32_t own = begin + step * (lane + 1);
    const bool before =
        own < end && first_padded_block(read_length(cumulative, own, most), own, size) <= place;
    const int32_t passed = __popc(__ballot_sync(0xffffffffu, before));
    end = min(end, begin + step * (passed + 1));
    begin += step * passed;
  }
  return begin;
}

template <class Element>
__device__ __forceinline__ Element* row_at(const RowsInMemory& rows, int64_t entry, int64_t head,
                                           int64_t row) {
  return static_cast<Element*>(rows.data) + entry * rows.stride[0] + head * rows.stride[1] +
         row * rows.stride[2];
}

// Rows of one head, kChunks * 64 columns, to tiles [chunk][row][64]. kOnce: nobody reads them
// again.
template <int kChunks, bool kOnce = false>
__device__ __forceinline__ void load_rows(uint32_t to, int rows, const TensorMap& map,
                                          uint32_t barrier, int row, int head, int entry) {
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk)
    ptx::tma_load<kOnce>(to + chunk * rows * 128, map, barrier,
                         {chunk * kChunk, 0, row, head, entry});
}

}  // namespace perseid::internal::cuda
