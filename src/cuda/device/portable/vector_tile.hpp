// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Tiles of 16-bit elements in shared memory for ldmatrix. Host and device share it, so that tests
// check the layout without a GPU.
//
// A tile is lines of kLength elements. Vectors of 16 bytes are permuted in each line: vector v of
// line l is at v ^ (l mod 8), so that neither copies of a line nor ldmatrix, which reads the same
// vector of eight lines, access a bank twice.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal::cuda {

inline constexpr int kVector = 8;        // elements in 16 bytes
inline constexpr int kFloat64Units = 4;  // elements that one of float64 takes

// Elements of a line that holds `dim` of them.
PERSEID_INLINE constexpr int line_length(int dim) { return (dim + 63) / 64 * 64; }

// Offset of a vector in a tile, in bytes. kLength: elements of a line, a multiple of 64.
template <int kLength>
PERSEID_INLINE constexpr int vector_offset(int line, int vector) {
  return line * kLength * 2 + ((vector ^ (line & 7)) << 4);
}

// The 16 bytes that a lane names for ldmatrix in blocks of 16 lines x 16 elements. Of each block
// the lane has a line and one of its two vectors, the `half`. The tile begins at a multiple of 128
// bytes, so that blocks along a line differ in two bits of the address, which repeat every 64
// elements; the rest is a constant.
template <int kLength>
class LaneVectors {
 public:
  PERSEID_INLINE LaneVectors(uint32_t tile, int line, int half)
      : first_(tile + static_cast<uint32_t>(vector_offset<kLength>(line, half))) {}
  // The address of the block of lines from 16 * down and elements from 16 * along.
  PERSEID_INLINE uint32_t at(int down, int along) const {
    return (first_ ^ static_cast<uint32_t>(along % 4 << 5)) +
           static_cast<uint32_t>(down * 16 * kLength * 2 + along / 4 * 128);
  }

 private:
  uint32_t first_;
};

// The line and half of a lane for a left operand with rows as lines, and for a right one with rows
// of depth as lines (transposed by ldmatrix); and for a right operand with columns as lines.
struct LaneVector {
  int line, half;
};
PERSEID_INLINE constexpr LaneVector lane_vector_of_rows(int lane) { return {lane % 16, lane / 16}; }
PERSEID_INLINE constexpr LaneVector lane_vector_of_columns(int lane) {
  return {lane % 8 + lane / 16 * 8, lane / 8 % 2};
}

}  // namespace perseid::internal::cuda
