// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Products of few rows, C[rows, n] = A[rows, k] B[k, n] with rows <= kFewRows: a matrix times one
// vector or several. B is most of the memory and is read once, where it lies, by vectors: along n
// where its rows are contiguous, along k where its columns are. Columns that are neither are
// gathered, a few at a time.
#pragma once

#include "cpu/simd/pack.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

inline constexpr int64_t kFewRows = 8;

template <class V, class T>
class FewRows {
  using Scalar = typename V::Scalar;
  using Reg = typename V::Reg;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kColumns = 4;

 public:
  // Columns of a strip, whose sums stay in the L1 cache, and the depth of A that is converted at a
  // time.
  static constexpr int64_t kStrip = 512;
  static constexpr int64_t kDepth = 2048 / sizeof(Scalar);

  // Scalars of scratch that multiply() works with.
  static constexpr int64_t scratch(int64_t rows) { return (rows + kColumns) * kDepth; }

  // sum[i * kStrip + j] = A[i, :] B[:, j] for j < columns <= kStrip. provide(depth, count) makes a
  // part of the depth readable; where it cannot, multiply() is false and the sums are unfinished.
  template <class Provide>
  static bool multiply(Strided<T> a, Strided<T> b, int64_t rows, int64_t columns, int64_t k,
                       Scalar* scratch, Scalar* sum, const Provide& provide) {
    for (int64_t i = 0; i < rows * kStrip; ++i) sum[i] = 0;
    for (int64_t depth = 0; depth < k; depth += kDepth) {
      const int64_t count = min(kDepth, k - depth);
      if (!provide(depth, count)) return false;
      for (int64_t i = 0; i < rows; ++i)
        read_row<V>(a.data + i * a.row + depth * a.column, a.column, count, scratch + i * kDepth);
      const T* part = b.data + depth * b.row;
      if (b.column == 1) {
        along_columns(scratch, part, b.row, rows, columns, count, sum);
      } else {
        along_depth(scratch, {part, b.row, b.column}, rows, columns, count, scratch + rows * kDepth,
                    sum);
      }
    }
    return true;
  }

 private:
  // Rows of B are contiguous: kTogether of them are added to the sums at a time.
  static void along_columns(const Scalar* a, const T* b, int64_t b_row, int64_t rows,
                            int64_t columns, int64_t count, Scalar* sum) {
    constexpr int kTogether = 8;
    int64_t depth = 0;
    for (; depth + kTogether <= count; depth += kTogether)
      add_rows<kTogether>(a + depth, b + depth * b_row, b_row, rows, columns, sum);
    for (; depth < count; ++depth)
      add_rows<1>(a + depth, b + depth * b_row, b_row, rows, columns, sum);
  }

  template <int Together>
  static void add_rows(const Scalar* a, const T* b, int64_t b_row, int64_t rows, int64_t columns,
                       Scalar* sum) {
    const auto add = [&](int64_t j, const auto& load) {
      Reg row[Together];
#pragma GCC unroll 8
      for (int u = 0; u < Together; ++u) row[u] = load(b + u * b_row + j);
      for (int64_t i = 0; i < rows; ++i) {
        Scalar* at = sum + i * kStrip + j;
        Reg value = V::load(at);
#pragma GCC unroll 8
        for (int u = 0; u < Together; ++u)
          value = V::fma(V::set1(a[i * kDepth + u]), row[u], value);
        V::store(at, value);
      }
    };
    int64_t j = 0;
    for (; j + kLanes <= columns; j += kLanes) add(j, [](const T* p) { return V::load(p); });
    const int rest = static_cast<int>(columns - j);
    if (rest > 0) add(j, [&](const T* p) { return V::load_partial(p, rest); });
  }

  // Dot products of kColumns columns of B with up to 4 rows of A.
  static void along_depth(const Scalar* a, Strided<T> b, int64_t rows, int64_t columns,
                          int64_t count, Scalar* gathered, Scalar* sum) {
    for (int64_t j = 0; j < columns; j += kColumns) {
      // Past the last column the last one stands in; what comes of it is not kept.
      const T* column[kColumns];
      for (int64_t c = 0; c < kColumns; ++c)
        column[c] = b.data + min(j + c, columns - 1) * b.column;
      const int64_t width = min(int64_t{kColumns}, columns - j);
      if (b.row == 1) {
        add_columns(a, column, rows, width, count, sum + j);
      } else {
        const Scalar* contiguous[kColumns];
        for (int64_t c = 0; c < kColumns; ++c) {
          read_row<V>(column[c], b.row, count, gathered + c * kDepth);
          contiguous[c] = gathered + c * kDepth;
        }
        add_columns(a, contiguous, rows, width, count, sum + j);
      }
    }
  }

  template <class From>
  static void add_columns(const Scalar* a, const From* const (&column)[kColumns], int64_t rows,
                          int64_t width, int64_t count, Scalar* sum) {
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4)
      add_dots<4>(a + i * kDepth, column, count, width, sum + i * kStrip);
    for (; i < rows; ++i) add_dots<1>(a + i * kDepth, column, count, width, sum + i * kStrip);
  }

  template <int Rows, class From>
  static void add_dots(const Scalar* a, const From* const (&column)[kColumns], int64_t count,
                       int64_t width, Scalar* sum) {
    Reg dot[Rows][kColumns];
#pragma GCC unroll 4
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) dot[i][c] = V::zero();
    }
    const auto add = [&](int64_t depth, const auto& load) {
      Reg part[kColumns];
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) part[c] = load(column[c] + depth);
#pragma GCC unroll 4
      for (int i = 0; i < Rows; ++i) {
        const Reg row = load(a + i * kDepth + depth);
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; ++c) dot[i][c] = V::fma(row, part[c], dot[i][c]);
      }
    };
    int64_t depth = 0;
    for (; depth + kLanes <= count; depth += kLanes)
      add(depth, [](const auto* p) { return V::load(p); });
    const int rest = static_cast<int>(count - depth);
    if (rest > 0) add(depth, [&](const auto* p) { return V::load_partial(p, rest); });
    for (int i = 0; i < Rows; ++i)
      for (int64_t c = 0; c < width; ++c) sum[i * kStrip + c] += V::reduce_add(dot[i][c]);
  }
};

}  // namespace perseid::internal::cpu::PERSEID_ISA
