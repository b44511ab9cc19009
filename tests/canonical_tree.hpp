// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The tree of canonical order by its definition, on matrices of the host: eight leaves, added in
// pairs of neighbours.
#pragma once

#include <array>

#include "collective_tools.hpp"

namespace canonical_tree {

using collective_tools::bytes_of;
using collective_tools::Matrix;
using perseid::DType;

inline constexpr int64_t kLeafCount = 8;

// Of partial sums: float32, float64 of f64.
inline DType sums_of(DType dtype) { return dtype == perseid::f64 ? perseid::f64 : perseid::f32; }

template <class Sum>
void add(Matrix& sums, const Matrix& more, size_t period) {
  for (size_t i = 0; i < sums.bytes.size() / sizeof(Sum); ++i) {
    Sum sum = 0, addend = 0;
    std::memcpy(&sum, sums.at(i), sizeof sum);
    std::memcpy(&addend, more.bytes.data() + i % period * sizeof addend, sizeof addend);
    sum += addend;
    std::memcpy(sums.at(i), &sum, sizeof sum);
  }
}

// A row on the right is added to every row of the left.
inline Matrix plus(Matrix left, const Matrix& right) {
  const size_t period = right.bytes.size() / static_cast<size_t>(bytes_of(right.dtype));
  right.dtype == perseid::f64 ? add<double>(left, right, period) : add<float>(left, right, period);
  return left;
}

// leaf(i): its sums.
template <class Leaf>
Matrix sum_of_leaves(const Leaf& leaf) {
  std::array<Matrix, kLeafCount> of = {leaf(0), leaf(1), leaf(2), leaf(3),
                                       leaf(4), leaf(5), leaf(6), leaf(7)};
  return plus(plus(plus(of[0], of[1]), plus(of[2], of[3])),
              plus(plus(of[4], of[5]), plus(of[6], of[7])));
}

// A bf16 matrix in float32; others as they are.
inline Matrix widened(const Matrix& matrix) {
  if (matrix.dtype != perseid::bf16) return matrix;
  Matrix wide(matrix.shape, perseid::f32);
  for (size_t i = 0; i < matrix.bytes.size() / 2; ++i) {
    uint16_t half = 0;
    std::memcpy(&half, matrix.bytes.data() + 2 * i, sizeof half);
    const uint32_t bits = uint32_t{half} << 16;
    std::memcpy(wide.at(i), &bits, sizeof bits);
  }
  return wide;
}

// Sums as bf16; other types are theirs.
inline Matrix rounded(const Matrix& sums, DType dtype) {
  if (dtype != perseid::bf16) return sums;
  Matrix out(sums.shape, dtype);
  for (size_t i = 0; i < out.bytes.size() / 2; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, sums.bytes.data() + 4 * i, sizeof bits);
    const auto half = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    std::memcpy(out.at(i), &half, sizeof half);
  }
  return out;
}

}  // namespace canonical_tree
