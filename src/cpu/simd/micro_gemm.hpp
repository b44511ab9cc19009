// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The product that everything rests on: one small tile of C, kept in registers while the depth
// streams past.
//
//   C[rows, columns] (+)= A[rows, depth] B[depth, columns]     rows <= Dot::kRows, columns <=
//   tile_columns<Dot>
//
// Each step of the depth loads kVectors vectors of B and broadcasts kRows elements of A: with 24
// accumulators of 512 bits that is 10 loads for 24 multiply-adds, so two FMA units stay busy (97 to
// 100 % of peak measured). A is read by two strides, so that a product with A transposed costs
// nothing. For bf16 (Dot::kDepth 2) an element is a pair along the depth, and `steps` counts pairs.
//
// Column blocking follows Goto and van de Geijn, "Anatomy of high-performance matrix
// multiplication", TOMS 2008.
#pragma once

#include <utility>

#include "cpu/simd/isa.hpp"

namespace perseid::cpu::PERSEID_ISA {

template <class Dot>
inline constexpr int tile_columns = Dot::kVectors* Dot::Vector::kLanes;

// One operand of a product, in elements: A[i, step] = data[i * row + step * depth]; B[step, j] =
// data[step * depth + j].
template <class Dot>
struct TileA {
  const typename Dot::Element* data;
  int64_t row, depth;
};
template <class Dot>
struct TileB {
  const typename Dot::Element* data;
  int64_t depth;
};
template <class Dot>
struct TileC {
  typename Dot::Vector::Scalar* data;
  int64_t row;
};

template <class Dot, int Rows, int Vectors>
__attribute__((noinline)) void micro_gemm(TileA<Dot> a, TileB<Dot> b, TileC<Dot> c, int64_t steps,
                                          bool accumulate) {
  using V = typename Dot::Vector;
  typename V::Reg sum[Rows][Vectors];
#pragma GCC unroll 32
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < Vectors; ++j) sum[i][j] = V::zero();
  }
  for (int64_t step = 0; step < steps; ++step) {
    decltype(Dot::load(b.data)) column[Vectors];
#pragma GCC unroll 8
    for (int j = 0; j < Vectors; ++j) column[j] = Dot::load(b.data + j * V::kLanes);
#pragma GCC unroll 32
    for (int i = 0; i < Rows; ++i) {
      const auto scalar = Dot::broadcast(a.data + i * a.row);
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) sum[i][j] = Dot::multiply_add(scalar, column[j], sum[i][j]);
    }
    a.data += a.depth;
    b.data += b.depth;
  }
  // C is added here rather than loaded up front: its addresses would live through the loop and
  // spill.
  if (accumulate) {
#pragma GCC unroll 32
    for (int i = 0; i < Rows; ++i, c.data += c.row) {
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j)
        V::store(c.data + j * V::kLanes, V::add(V::load(c.data + j * V::kLanes), sum[i][j]));
    }
  } else {
#pragma GCC unroll 32
    for (int i = 0; i < Rows; ++i, c.data += c.row) {
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) V::store(c.data + j * V::kLanes, sum[i][j]);
    }
  }
}

template <class Dot>
using MicroGemm = void (*)(TileA<Dot>, TileB<Dot>, TileC<Dot>, int64_t steps, bool accumulate);

// The instances, by rows - 1 and vectors - 1.
template <class Dot>
struct MicroGemms {
  MicroGemm<Dot> of[Dot::kRows][Dot::kVectors];

  constexpr MicroGemms()
      : MicroGemms(std::make_integer_sequence<int, Dot::kRows * Dot::kVectors>()) {}

 private:
  template <int... I>
  explicit constexpr MicroGemms(std::integer_sequence<int, I...>) : of{} {
    ((of[I / Dot::kVectors][I % Dot::kVectors] =
          &micro_gemm<Dot, I / Dot::kVectors + 1, I % Dot::kVectors + 1>),
     ...);
  }
};
template <class Dot>
inline constexpr MicroGemms<Dot> kMicroGemms{};

// Any number of rows against one panel of B of at most tile_columns columns. C's rows are written
// in whole vectors: its row stride covers columns rounded up to kLanes, and so do B's rows.
template <class Dot>
PERSEID_INLINE void panel_gemm(TileA<Dot> a, TileB<Dot> b, TileC<Dot> c, int64_t rows,
                               int64_t columns, int64_t steps, bool accumulate) {
  constexpr int kLanes = Dot::Vector::kLanes;
  const int vectors = static_cast<int>((columns + kLanes - 1) / kLanes);
  const auto& by_rows = kMicroGemms<Dot>.of;
  int64_t i = 0;
  for (; i + Dot::kRows <= rows; i += Dot::kRows)
    by_rows[Dot::kRows - 1][vectors - 1]({a.data + i * a.row, a.row, a.depth}, b,
                                         {c.data + i * c.row, c.row}, steps, accumulate);
  if (i < rows)
    by_rows[rows - i - 1][vectors - 1]({a.data + i * a.row, a.row, a.depth}, b,
                                       {c.data + i * c.row, c.row}, steps, accumulate);
}

}  // namespace perseid::cpu::PERSEID_ISA
