// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ragged batches over ranks, in attention forward: each rank has one piece of every sequence, or
// two in zigzag placement. Of P ranks rank r has, of a sequence that is cut into equal pieces,
//
//   a.two_pieces   r and 2 P - 1 - r of 2 P
//   otherwise      r of P
//
// Keys are whole. A piece of queries is a sequence of its own to the raster order, which begins
// with the second one, whose rows see more keys.
#pragma once

#include "cuda/device/attention/sequence.hpp"
#include "cuda/device/sm90/attention/config.hpp"

namespace perseid::internal::cuda {

// ---- Queries ----

template <AttentionForwardConfig C>
__device__ __forceinline__ int32_t raster_sequences(const AttentionForwardArguments& a) {
  return C.rank_pieces && a.two_pieces ? 2 * a.batch : a.batch;
}
// Number i of the raster order.
template <AttentionForwardConfig C>
__device__ __forceinline__ int32_t raster_sequence(const AttentionForwardArguments& a, int32_t i) {
  return C.rank_pieces && a.two_pieces ? i ^ 1 : i;
}

// ---- Keys, as the ranks bring them ----

// Sets of ranks have a bit for each, and ones behind them, so that the set of all is all ones.
__device__ __forceinline__ uint64_t no_ranks(const AttentionForwardArguments& a) {
  const int32_t ranks = a.two_pieces ? a.pieces / 2 : a.pieces;
  return ranks < 64 ? ~uint64_t{0} << ranks : 0;
}
// Keys of a sequence in a piece.
__device__ __forceinline__ int32_t keys_of_piece(const AttentionForwardArguments& a,
                                                 const AttentionSequence& sequence) {
  return sequence.kv_rows / a.pieces;
}
// The owners of keys [from, to) of a sequence, not an empty range, a bit each.
__device__ __forceinline__ uint64_t owners_of_keys(const AttentionForwardArguments& a,
                                                   int32_t keys_of_piece, int32_t from,
                                                   int32_t to) {
  uint64_t owners = 0;
  for (int32_t piece = from / keys_of_piece; piece * keys_of_piece < to; ++piece)
    owners |= uint64_t{1} << (a.two_pieces ? min(piece, a.pieces - 1 - piece) : piece);
  return owners;
}

}  // namespace perseid::internal::cuda
