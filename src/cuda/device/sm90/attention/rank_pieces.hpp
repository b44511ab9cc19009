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

// A sequence, as far as the raster order knows it.
struct RasterPiece {
  int32_t batch;
  bool second;
};
template <AttentionForwardConfig C>
__device__ __forceinline__ int32_t raster_pieces(const AttentionForwardArguments& a) {
  return C.rank_pieces && a.two_pieces ? 2 : 1;
}
// Number i of the raster order.
template <AttentionForwardConfig C>
__device__ __forceinline__ RasterPiece raster_piece(const AttentionForwardArguments& a, int32_t i) {
  if (!C.rank_pieces || !a.two_pieces) return {i, false};
  return {i / 2, i % 2 == 0};
}

// The sequence that begins with the piece; positions of its queries are those in the whole one.
template <AttentionForwardConfig C>
__device__ __forceinline__ AttentionSequence find_piece(const AttentionForwardArguments& a,
                                                        const RasterPiece& piece) {
  AttentionSequence found = find_sequence<C.lengths>(a, piece.batch);
  if (!C.rank_pieces || !a.two_pieces) return found;  // find_sequence() knows a single piece
  found.q_len /= 2;
  if (piece.second) found.q_begin += found.q_len;
  const int32_t position = (piece.second ? 2 * a.pieces - 1 - a.rank : a.rank) * found.q_len;
  found.left += position;
  found.right += position;
  return found;
}

// ---- Keys, as the ranks bring them ----

// Sets of ranks have a bit for each, and ones behind them, so that the set of all is all ones.
__device__ __forceinline__ uint64_t no_ranks(const AttentionForwardArguments& a) {
  return a.pieces < 64 ? ~uint64_t{0} << a.pieces : 0;
}

// Of a sequence, in the piece of a rank, or in each of two.
__device__ __forceinline__ int32_t keys_of_piece(const AttentionForwardArguments& a,
                                                 const AttentionSequence& sequence) {
  return sequence.kv_rows / (a.two_pieces ? 2 * a.pieces : a.pieces);
}
// The ranks that keys [from, to) of a sequence are of, at least one key: their bits alone.
__device__ __forceinline__ uint64_t owners_of_keys(const AttentionForwardArguments& a,
                                                   int32_t keys_of_piece, int32_t from,
                                                   int32_t to) {
  uint64_t owners = 0;
  for (int32_t piece = from / keys_of_piece; piece * keys_of_piece < to; ++piece)
    owners |= uint64_t{1} << (piece < a.pieces ? piece : 2 * a.pieces - 1 - piece);
  return owners;
}

}  // namespace perseid::internal::cuda
