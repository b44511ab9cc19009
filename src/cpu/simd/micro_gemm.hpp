// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The microkernel of every product: one small tile of C in registers, while the operands are read
// along the depth.
//
//   C[rows, columns] (+)= A[rows, depth] B[depth, columns]
//   rows <= Dot::kRows, columns <= tile_columns<Dot>
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

namespace perseid::internal::cpu::PERSEID_ISA {

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

// `tiles` tiles of Rows rows, one below the other.
//
// The arguments are words, not structs: a struct of three words goes through memory, written as a
// vector and read as words, which no CPU forwards; each call would wait for the stores of C before
// it.
template <class Dot, int Rows, int Vectors>
__attribute__((noinline)) void micro_gemm(const typename Dot::Element* a, int64_t a_row,
                                          int64_t a_depth, const typename Dot::Element* b,
                                          int64_t b_depth, typename Dot::Vector::Scalar* c,
                                          int64_t c_row, int64_t tiles, int64_t steps,
                                          bool accumulate) {
  using V = typename Dot::Vector;
  for (; tiles > 0; --tiles, a += Rows * a_row, c += Rows * c_row) {
    typename V::Reg sum[Rows][Vectors];
#pragma GCC unroll 32
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) sum[i][j] = V::zero();
    }
    const typename Dot::Element *row = a, *column = b;
    for (int64_t step = 0; step < steps; ++step, row += a_depth, column += b_depth) {
      decltype(Dot::load(b)) vector[Vectors];
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) vector[j] = Dot::load(column + j * V::kLanes);
#pragma GCC unroll 32
      for (int i = 0; i < Rows; ++i) {
        const auto scalar = Dot::broadcast(row + i * a_row);
#pragma GCC unroll 8
        for (int j = 0; j < Vectors; ++j)
          sum[i][j] = Dot::multiply_add(scalar, vector[j], sum[i][j]);
      }
    }
    // C is added here rather than loaded up front: its addresses would live through the loop and
    // spill.
    if (accumulate) {
#pragma GCC unroll 32
      for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < Vectors; ++j) {
          typename V::Scalar* at = c + i * c_row + j * V::kLanes;
          V::store(at, V::add(V::load(at), sum[i][j]));
        }
      }
    } else {
#pragma GCC unroll 32
      for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < Vectors; ++j) V::store(c + i * c_row + j * V::kLanes, sum[i][j]);
      }
    }
  }
}

template <class Dot>
using MicroGemm = decltype(&micro_gemm<Dot, 1, 1>);

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
  const int64_t tiles = rows / Dot::kRows, rest = rows % Dot::kRows;
  if (tiles > 0)
    by_rows[Dot::kRows - 1][vectors - 1](a.data, a.row, a.depth, b.data, b.depth, c.data, c.row,
                                         tiles, steps, accumulate);
  if (rest > 0)
    by_rows[rest - 1][vectors - 1](a.data + (rows - rest) * a.row, a.row, a.depth, b.data, b.depth,
                                   c.data + (rows - rest) * c.row, c.row, 1, steps, accumulate);
}

// Calls body.operator()<Dot, T>() with the product and the storage type of a dtype.
template <class Body>
PERSEID_INLINE void with_dot(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF16:
      return body.template operator()<F32Dot, f16>();
    case DType::kBF16:
      return body.template operator()<DotOfBf16, bf16>();
    case DType::kF32:
      return body.template operator()<F32Dot, float>();
    default:
      return body.template operator()<F64Dot, double>();
  }
}

}  // namespace perseid::internal::cpu::PERSEID_ISA
