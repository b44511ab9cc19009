// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// From the caller's memory (any dtype, any strides) to the operands of micro_gemm: converted to the
// element type of the product, contiguous, padded with zeros. A matrix X[rows, dim] serves in three
// roles:
//
//   pack_rows      X as A (depth along dim), and, where kDepth is 1, as B with depth along rows
//   pack_depth     X as B with depth along rows; for kDepth 2, rows 2r and 2r + 1 in pairs
//   pack_columns   X^T as B (depth along dim), in panels of tile_columns rows of X
//
// Packing costs one pass over the operand; the products read it many times.
//
// Elements of 8 bits (Float8) are not converted: their bytes become the low bits of float32
// elements. float8.hpp makes numbers of packed ones.
#pragma once

#include <concepts>

#include "cpu/simd/micro_gemm.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

// A byte of either 8-bit type.
struct Float8 {
  uint8_t bits;
};

// X[i, j] = data[i * row + j * column]
template <class T>
struct Strided {
  const T* data;
  int64_t row, column;
};
template <class T>
struct StridedOutput {
  T* data;
  int64_t row, column;
};

// Elements of A or B along a depth of `count` scalars.
template <class Dot>
PERSEID_INLINE constexpr int64_t steps_of(int64_t count) {
  return (count + Dot::kDepth - 1) / Dot::kDepth;
}

// out[0, n) = the bytes in[0], in[stride], ...
PERSEID_INLINE void read_bytes(const Float8* in, int64_t stride, int64_t n, float* out) {
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) out[i] = float_from_bits(in[i].bits);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = float_from_bits(in[i * stride].bits);
  }
}

// out[0, n) = in[0], in[stride], ... converted.
template <class V, class T>
PERSEID_INLINE void read_row(const T* in, int64_t stride, int64_t n, typename V::Scalar* out) {
  int64_t i = 0;
  if constexpr (std::same_as<T, Float8>) {
    read_bytes(in, stride, n, out);
  } else if (stride == 1) {
    for (; i + V::kLanes <= n; i += V::kLanes) V::store(out + i, V::load(in + i));
    if (i < n)
      V::store_partial(out + i, V::load_partial(in + i, static_cast<int>(n - i)),
                       static_cast<int>(n - i));
  } else {
    for (; i < n; ++i) out[i] = convert<typename V::Scalar>(in[i * stride]);
  }
}

// The inverse: out[0], out[stride], ... = in[0, n) * factor, converted.
template <class V, class T>
PERSEID_INLINE void write_row(const typename V::Scalar* in, typename V::Scalar factor, int64_t n,
                              T* out, int64_t stride) {
  int64_t i = 0;
  if (stride == 1) {
    const typename V::Reg f = V::set1(factor);
    for (; i + V::kLanes <= n; i += V::kLanes) V::store(out + i, V::mul(V::load(in + i), f));
    if (i < n) {
      const int rest = static_cast<int>(n - i);
      V::store_partial(out + i, V::mul(V::load_partial(in + i, rest), f), rest);
    }
    return;
  }
  for (; i < n; ++i) out[i * stride] = convert<T>(in[i] * factor);
}

// out[0], out[stride], ... += in[0, n) * factor, rounded once.
template <class V, class T>
PERSEID_INLINE void add_row(const typename V::Scalar* in, typename V::Scalar factor, int64_t n,
                            T* out, int64_t stride) {
  int64_t i = 0;
  if (stride == 1) {
    const typename V::Reg f = V::set1(factor);
    for (; i + V::kLanes <= n; i += V::kLanes)
      V::store(out + i, V::add(V::load(out + i), V::mul(V::load(in + i), f)));
    if (i < n) {
      const int rest = static_cast<int>(n - i);
      const typename V::Reg old = V::load_partial(out + i, rest);
      V::store_partial(out + i, V::add(old, V::mul(V::load_partial(in + i, rest), f)), rest);
    }
    return;
  }
  for (; i < n; ++i)
    out[i * stride] = convert<T>(convert<typename V::Scalar>(out[i * stride]) + in[i] * factor);
}

// out[i * out_row + step], steps_of(dim) of them and zeros up to out_row.
template <class Dot, class T>
void pack_rows(Strided<T> x, int64_t rows, int64_t dim, typename Dot::Element* out,
               int64_t out_row) {
  for (int64_t i = 0; i < rows; ++i, x.data += x.row, out += out_row) {
    if constexpr (Dot::kDepth == 1) {
      read_row<typename Dot::Vector>(x.data, x.column, dim, out);
      for (int64_t j = dim; j < out_row; ++j) out[j] = 0;
    } else {
      T* pairs = reinterpret_cast<T*>(out);
      if (x.column == 1) {
        __builtin_memcpy(pairs, x.data, static_cast<size_t>(dim) * sizeof(T));
      } else {
        for (int64_t j = 0; j < dim; ++j) pairs[j] = x.data[j * x.column];
      }
      for (int64_t j = dim; j < out_row * 2; ++j) pairs[j] = T{};
    }
  }
}

// out[j] = {low[j], high[j]}, low in the low half. `column` is a constant where this is called, so
// that the loop of contiguous rows is made of vectors.
template <class T>
PERSEID_INLINE void interleave(const T* low, const T* high, int64_t column, int64_t dim,
                               uint32_t* out) {
  for (int64_t j = 0; j < dim; ++j)
    out[j] = uint32_t{low[j * column].bits} | uint32_t{high[j * column].bits} << 16;
}

// out[step * out_row + j] for steps_of(rows) steps; columns dim..out_row and the last pair's
// missing row are zeros.
template <class Dot, class T>
void pack_depth(Strided<T> x, int64_t rows, int64_t dim, typename Dot::Element* out,
                int64_t out_row) {
  if constexpr (Dot::kDepth == 1) {
    pack_rows<Dot>(x, rows, dim, out, out_row);
  } else {
    for (; rows >= 2; rows -= 2, x.data += 2 * x.row, out += out_row) {
      if (x.column == 1) {
        interleave(x.data, x.data + x.row, 1, dim, out);
      } else {
        interleave(x.data, x.data + x.row, x.column, dim, out);
      }
      for (int64_t j = dim; j < out_row; ++j) out[j] = 0;
    }
    if (rows == 1) {
      for (int64_t j = 0; j < dim; ++j) out[j] = x.data[j * x.column].bits;
      for (int64_t j = dim; j < out_row; ++j) out[j] = 0;
    }
  }
}

// kLanes elements of a contiguous row.
template <class Dot, class T>
PERSEID_INLINE typename Dot::Vector::Reg load_elements(const T* p) {
  if constexpr (std::same_as<T, Float8>) {
    alignas(64) float element[Dot::Vector::kLanes];
    read_bytes(p, 1, Dot::Vector::kLanes, element);
    return Dot::Vector::load(element);
  } else if constexpr (Dot::kDepth == 1) {
    return Dot::Vector::load(p);
  } else {
    typename Dot::Vector::Reg bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return bits;
  }
}

// Panel p holds rows [p * tile_columns, ...) of x: out[(p * steps + step) * tile_columns + i]. Rows
// past the last are zeros.
template <class Dot, class T>
void pack_columns(Strided<T> x, int64_t rows, int64_t dim, typename Dot::Element* out) {
  using V = typename Dot::Vector;
  constexpr int kLanes = V::kLanes;
  const int64_t steps = steps_of<Dot>(dim);
  // The transposition moves bits: an element of any Dot is as wide as a lane.
  static_assert(sizeof(typename Dot::Element) == sizeof(typename V::Scalar));
  for (int64_t i = 0; i < round_up(rows, tile_columns<Dot>); i += kLanes) {
    typename Dot::Element* panel =
        out + (i / tile_columns<Dot>)*steps * tile_columns<Dot> + i % tile_columns<Dot>;
    const int64_t here = clamp(rows - i, int64_t{0}, int64_t{kLanes});
    for (int64_t step = 0; step < steps; step += kLanes) {
      const int64_t width = min(int64_t{kLanes}, steps - step);
      const int64_t first = step * Dot::kDepth;
      const T* corner = x.data + i * x.row + first * x.column;
      typename V::Reg row[kLanes];
      if (x.column == 1 && here == kLanes && dim - first >= kLanes * Dot::kDepth) {
#pragma GCC unroll 16
        for (int j = 0; j < kLanes; ++j) row[j] = load_elements<Dot>(corner + j * x.row);
      } else {
        alignas(64) typename Dot::Element block[kLanes * kLanes];
        pack_rows<Dot>(Strided<T>{corner, x.row, x.column}, here,
                       min(dim - first, int64_t{kLanes * Dot::kDepth}), block, kLanes);
        for (int64_t j = here * kLanes; j < kLanes * kLanes; ++j) block[j] = 0;
        for (int j = 0; j < kLanes; ++j)
          row[j] = V::load(reinterpret_cast<const typename V::Scalar*>(block + j * kLanes));
      }
      V::transpose(row);
      for (int64_t j = 0; j < width; ++j)
        V::store(reinterpret_cast<typename V::Scalar*>(panel + (step + j) * tile_columns<Dot>),
                 row[j]);
    }
  }
}

}  // namespace perseid::internal::cpu::PERSEID_ISA
