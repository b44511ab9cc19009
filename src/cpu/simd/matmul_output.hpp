// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// From sums of products to C: alpha sums + beta C0 + bias, rounded once.
#pragma once

#include "cpu/simd/pack.hpp"
#include "math/matmul_problem.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

// A part of C: `rows` by `columns` from (i, j) on, of one batch entry.
struct MatmulPart {
  int64_t batch, i, j, rows, columns;
};

// C and C0 as the kernel sees them, which may be transposed; then the bias belongs to the rows.
template <class V, class T>
class MatmulOutput {
  using Scalar = typename V::Scalar;

 public:
  MatmulOutput(const MatmulProblem& problem, Tensor c, Tensor c0, Tensor bias, bool transposed)
      : problem_(problem), c_(c), c0_(c0), bias_(bias), transposed_(transposed) {}

  // The bias of the block's columns, or of its rows; zeros where there is none.
  void read_bias(const MatmulPart& block, Scalar* bias) const {
    const int64_t first = transposed_ ? block.i : block.j;
    const int64_t count = transposed_ ? block.rows : block.columns;
    const int64_t stride = bias_.stride[0];
    if (!problem_.bias) {
      for (int64_t j = 0; j < count; ++j) bias[j] = 0;
    } else if (bias_.dtype == problem_.dtype) {
      read_row<V>(bias_.as<T>() + first * stride, stride, count, bias);
    } else {
      // A 16-bit product with results of float32.
      for (int64_t j = 0; j < count; ++j)
        bias[j] = static_cast<Scalar>(bias_.as<float>()[(first + j) * stride]);
    }
  }

  // Writes a part of the block. bias: what read_bias() made for the block.
  void write(const MatmulPart& block, const MatmulPart& part, const Scalar* sums, int64_t sums_row,
             const Scalar* bias) const {
    if (problem_.out_dtype == problem_.dtype) {
      write_as<T>(block, part, sums, sums_row, bias);
    } else {
      if constexpr (sizeof(T) == 2) write_as<float>(block, part, sums, sums_row, bias);
    }
  }

 private:
  template <class Out>
  struct Row {
    const Scalar* sums;
    const Scalar* bias;  // of the columns, or null
    Scalar shift;        // bias of the row
    const Out* c0;       // null where beta is 0
    Out* c;
  };

  template <class Out>
  void write_as(const MatmulPart& block, const MatmulPart& part, const Scalar* sums,
                int64_t sums_row, const Scalar* bias) const {
    const auto offset = [&](const Tensor& tensor, int64_t i) {
      return part.batch * tensor.stride[0] + (part.i + i) * tensor.stride[1] +
             part.j * tensor.stride[2];
    };
    const bool contiguous = c_.stride[2] == 1 && (problem_.beta == 0 || c0_.stride[2] == 1);
    for (int64_t i = 0; i < part.rows; ++i) {
      const Row<Out> row{sums + i * sums_row, transposed_ ? nullptr : bias + (part.j - block.j),
                         transposed_ ? bias[part.i - block.i + i] : Scalar{0},
                         problem_.beta != 0 ? c0_.as<Out>() + offset(c0_, i) : nullptr,
                         c_.as<Out>() + offset(c_, i)};
      if (contiguous) {
        write_vectors(row, part.columns);
      } else {
        write_scalars(row, part.columns);
      }
    }
  }

  template <class Out>
  void write_vectors(const Row<Out>& row, int64_t columns) const {
    const typename V::Reg alpha = V::set1(static_cast<Scalar>(problem_.alpha));
    const typename V::Reg beta = V::set1(static_cast<Scalar>(problem_.beta));
    const auto value = [&](int64_t j, const auto& load) {
      const typename V::Reg bias = row.bias != nullptr ? load(row.bias + j) : V::set1(row.shift);
      const typename V::Reg result = V::fma(load(row.sums + j), alpha, bias);
      return row.c0 != nullptr ? V::fma(load(row.c0 + j), beta, result) : result;
    };
    int64_t j = 0;
    for (; j + V::kLanes <= columns; j += V::kLanes)
      V::store(row.c + j, value(j, [](const auto* p) { return V::load(p); }));
    const int rest = static_cast<int>(columns - j);
    if (rest > 0)
      V::store_partial(row.c + j, value(j, [&](const auto* p) { return V::load_partial(p, rest); }),
                       rest);
  }

  template <class Out>
  void write_scalars(const Row<Out>& row, int64_t columns) const {
    const Scalar alpha = static_cast<Scalar>(problem_.alpha);
    const Scalar beta = static_cast<Scalar>(problem_.beta);
    for (int64_t j = 0; j < columns; ++j) {
      Scalar value = alpha * row.sums[j] + (row.bias != nullptr ? row.bias[j] : row.shift);
      if (row.c0 != nullptr) value += beta * convert<Scalar>(row.c0[j * c0_.stride[2]]);
      row.c[j * c_.stride[2]] = convert<Out>(value);
    }
  }

  const MatmulProblem& problem_;
  Tensor c_, c0_, bias_;
  bool transposed_;
};

}  // namespace perseid::internal::cpu::PERSEID_ISA
