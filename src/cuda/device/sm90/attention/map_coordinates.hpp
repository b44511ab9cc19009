// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Coordinates of the rows of sequences in tensor maps.
#pragma once

#include "cuda/device/attention/sequence.hpp"
#include "cuda/device/ptx/tma.hpp"
#include "cuda/device/sm90/attention/config.hpp"

namespace perseid::internal::cuda {

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
