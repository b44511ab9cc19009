// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Sequences of a batch, and rows of tensors.
#pragma once

#include "cuda/device/attention/arguments.hpp"

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

// Whether queries of ragged batches are pieces of sequences that ranks have. C: a configuration of
// attention.
template <auto C>
constexpr bool has_rank_pieces() {
  if constexpr (requires { C.rank_pieces; }) return C.rank_pieces;
  return false;
}
// The sequence of keys, and the number of the piece, of a sequence of queries; see two_pieces.
template <bool kPieces>
__device__ __forceinline__ int32_t key_sequence(const AttentionArguments& a, int32_t batch) {
  return kPieces && a.two_pieces ? batch / 2 : batch;
}
template <bool kPieces>
__device__ __forceinline__ int32_t piece_of(const AttentionArguments& a, int32_t batch) {
  return kPieces && a.two_pieces && batch % 2 != 0 ? a.pieces - 1 - a.piece : a.piece;
}

template <bool kLengths, bool kPieces = false>
__device__ __forceinline__ AttentionSequence find_sequence(const AttentionArguments& a,
                                                           int32_t batch) {
  AttentionSequence found{batch, a.q_len, a.kv_len, 0, 0, a.left, a.right, a.kv_len};
  if constexpr (kLengths) {
    if (a.ragged) {
      found.q_begin = read_length(a.cumulative_q, batch, a.total_q);
      const int32_t q_end = read_length(a.cumulative_q, batch + 1, a.total_q);
      found.q_len = clamp(q_end - found.q_begin, 0, a.q_len);
      const int32_t keys = key_sequence<kPieces>(a, batch);
      found.kv_begin = read_length(a.cumulative_kv, keys, a.total_kv);
      const int32_t kv_end =
          a.kv_starts ? a.total_kv : read_length(a.cumulative_kv, keys + 1, a.total_kv);
      found.kv_len = found.kv_rows = clamp(kv_end - found.kv_begin, 0, a.kv_len);
    }
    if (a.q_lens.data != nullptr)
      found.q_len = min(found.q_len, read_length(a.q_lens, batch, a.q_len));
    if (a.kv_lens.data != nullptr)
      found.kv_len =
          min(found.kv_len, read_length(a.kv_lens, key_sequence<kPieces>(a, batch), a.kv_len));
    const int32_t shift = piece_of<kPieces>(a, batch) * found.q_len +
                          (a.bottom_right ? found.kv_len - a.pieces * found.q_len : 0);
    found.left += shift;
    found.right += shift;
  }
  return found;
}

// Pieces of longer sequences, see AttentionArguments. C: a configuration of attention.
template <auto C>
__device__ __forceinline__ int32_t gap_before(const AttentionArguments& a, int32_t query) {
  if constexpr (!C.sharded) return 0;
  return query >= a.second_piece ? a.gap : 0;
}
// The row of the whole sequence.
template <auto C>
__device__ __forceinline__ int32_t whole_row(const AttentionArguments& a,
                                             const AttentionSequence& sequence, int32_t query) {
  if constexpr (!C.sharded) return query;
  const int32_t first = C.lengths && a.ragged ? a.piece * sequence.q_len : a.first_row;
  return first + query + gap_before<C>(a, query);
}
// The row of bias and visible.
template <auto C>
__device__ __forceinline__ int32_t score_row_of(const AttentionArguments& a,
                                                const AttentionSequence& sequence, int32_t query) {
  return C.sharded && C.lengths ? query + a.pieces_before * sequence.q_len : query;
}
// The first query that stands at `row` or behind it, both counted from the first query's.
template <auto C>
__device__ __forceinline__ int32_t query_from(const AttentionArguments& a, int32_t row) {
  if (!C.sharded || row <= a.second_piece) return row;
  return max(row - a.gap, a.second_piece);
}

// The batch entry that a sequence has in memory.
template <bool kLengths>
__device__ __forceinline__ int32_t entry_of(const AttentionArguments& a, int32_t batch) {
  return kLengths && a.ragged ? 0 : batch;
}

// That of key and value.
template <bool kLengths>
__device__ __forceinline__ int32_t key_entry_of(const AttentionArguments& a, int32_t batch) {
  if (kLengths && a.kv_index.data != nullptr) return read_length(a.kv_index, batch, a.kv_batch - 1);
  return entry_of<kLengths>(a, batch);
}

// Blocks of `size` rows of ragged sequences get padded positions, so that each begins a block: the
// position of a sequence's first block follows from where its rows begin; some are empty.
__device__ __forceinline__ int32_t first_padded_block(int32_t begin, int32_t batch, int32_t size) {
  return begin / size + batch;
}
// The sequence at a padded position, by the whole warp; -1: none.
__device__ __forceinline__ int32_t sequence_of_block(const LengthsInMemory& cumulative,
                                                     int32_t most, int32_t batch, int32_t size,
                                                     int32_t position) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  int32_t begin = -1, end = batch;  // those from `end` on begin behind the position
  while (end - begin > 1) {
    const int32_t step = (end - begin + 31) / 32;
    const int32_t own = begin + step * (lane + 1);
    const bool before =
        own < end && first_padded_block(read_length(cumulative, own, most), own, size) <= position;
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
// Where the lse of query `query` goes, if there is one. C: a configuration of attention forward.
template <auto C>
__device__ __forceinline__ auto* lse_of(const typename decltype(C)::Arguments& a,
                                        const AttentionSequence& sequence, int64_t head,
                                        int32_t query) {
  return a.lse + entry_of<C.lengths>(a, sequence.batch) * a.lse_stride[0] + head * a.lse_stride[1] +
         int64_t{sequence.q_begin + query} * a.lse_stride[2];
}
// Between elements of a row. C: a configuration of attention.
template <auto C>
__device__ __forceinline__ int64_t element_stride(const RowsInMemory& rows) {
  return C.unit_strides() ? 1 : rows.stride[3];
}

}  // namespace perseid::internal::cuda
