// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The operands of attention backward: the queries and the keys of a tile
// (attention_backward_tile.hpp), packed for its five products.
#pragma once

#include "cpu/executor.hpp"
#include "cpu/simd/attention_common.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

// Sizes of a tile, and the strides of its operands in elements.
template <class Dot>
struct BackwardShape {
  using V = typename Dot::Vector;
  static constexpr int64_t kPanel = tile_columns<Dot>;
  static constexpr int64_t kBand = max(int64_t{64}, kPanel);
  static constexpr int64_t kBands = 3;
  static constexpr int64_t kKeys = kBands * kBand;
  static constexpr int64_t kQueries = 96 * Dot::kDepth;
  static constexpr int64_t kGroup = 24;
  static_assert(kBand % kPanel == 0 && kPanel % (V::kLanes * Dot::kDepth) == 0);
  static_assert(kBand % kDropoutTileColumns == 0 && kQueries % kDropoutTileRows == 0);
  static_assert(kGroup % Dot::kRows == 0 && Dot::kRows % Dot::kDepth == 0);

  int64_t head_dim, value_dim;
  int64_t head_steps, value_steps;  // depth of S and dP
  int64_t head_columns,
      value_columns;            // row stride of operands with their depth along rows, and of sums
  int64_t head_row, value_row;  // row stride of operands with their depth along the dimension

  explicit BackwardShape(const AttentionProblem& problem)
      : head_dim(problem.head_dim),
        value_dim(problem.value_dim),
        head_steps(steps_of<Dot>(head_dim)),
        value_steps(steps_of<Dot>(value_dim)),
        head_columns(odd_vectors(head_dim)),
        value_columns(odd_vectors(value_dim)),
        head_row(Dot::kDepth == 1 ? head_columns : head_steps),
        value_row(Dot::kDepth == 1 ? value_columns : value_steps) {}

  // A row stride of a power of two would map rows to a few sets of the L1 cache.
  static constexpr int64_t odd_vectors(int64_t count) {
    return (ceil_div(count, V::kLanes) | 1) * V::kLanes;
  }
};

// The queries of one head, as operands.
template <class Dot, class T>
struct BackwardQueries {
  using V = typename Dot::Vector;
  using Scalar = typename V::Scalar;
  using Element = typename Dot::Element;
  Element *query, *grad_out;              // A of S and dP: [rows, head_row], [rows, value_row]
  Element *query_depth, *grad_out_depth;  // B of dK and dV: [steps_of(rows), columns]
  Scalar *lse, *delta;  // [rows, and a silent one where that is odd]; lse in units of log2
  uint8_t *nonfinite_query, *nonfinite_grad_out;
  Strided<T> raw_query, raw_grad_out;
  int64_t begin = 0, rows = 0;  // within the sequence
  bool nonfinite = false;       // of any row

  BackwardQueries(const BackwardShape<Dot>& shape, int64_t max_rows, Arena& arena) {
    const int64_t padded = round_up(max_rows, Dot::kDepth);
    query = arena.take<Element>(padded * shape.head_row);
    grad_out = arena.take<Element>(padded * shape.value_row);
    query_depth =
        Dot::kDepth == 1 ? query : arena.take<Element>(padded / Dot::kDepth * shape.head_columns);
    grad_out_depth = Dot::kDepth == 1
                         ? grad_out
                         : arena.take<Element>(padded / Dot::kDepth * shape.value_columns);
    lse = arena.take<Scalar>(padded);
    delta = arena.take<Scalar>(padded);
    nonfinite_query = arena.take<uint8_t>(padded);
    nonfinite_grad_out = arena.take<uint8_t>(padded);
  }

  // Rows [begin, begin + rows) of a head.
  void pack(const BackwardShape<Dot>& shape, const AttentionProblem& problem,
            const AttentionBackward& arguments, int64_t batch, int64_t head,
            int64_t sequence_begin) {
    const int64_t row = sequence_begin + begin;
    raw_query = head_view<T>(arguments.query, problem.ragged, batch, head, row);
    raw_grad_out = head_view<T>(arguments.grad_out, problem.ragged, batch, head, row);
    pack_operands(raw_query, shape.head_dim, query, shape.head_row, query_depth, shape.head_columns,
                  nonfinite_query);
    pack_operands(raw_grad_out, shape.value_dim, grad_out, shape.value_row, grad_out_depth,
                  shape.value_columns, nonfinite_grad_out);
    const Strided<T> out = head_view<T>(arguments.out, problem.ragged, batch, head, row);
    const Scalar infinity = static_cast<Scalar>(__builtin_inf());
    nonfinite = false;
    for (int64_t i = 0; i < rows; ++i) {
      const Scalar natural = *lse_row<Scalar>(arguments.lse, problem.ragged, batch, head, row + i);
      // A row with nothing to see: any score less infinity is -inf, which is probability 0.
      lse[i] = natural == -infinity ? infinity
                                    : static_cast<Scalar>(static_cast<double>(natural) * kLog2E);
      delta[i] = dot_rows(raw_grad_out.data + i * raw_grad_out.row, raw_grad_out.column,
                          out.data + i * out.row, out.column, shape.value_dim);
      if (arguments.grad_lse.present())
        delta[i] -= *lse_row<Scalar>(arguments.grad_lse, problem.ragged, batch, head, row + i);
      // dP is computed from finite elements of dO alone, so delta carries the others into dS.
      if (nonfinite_grad_out[i] != 0) delta[i] = static_cast<Scalar>(__builtin_nan(""));
      nonfinite = nonfinite || nonfinite_query[i] != 0 || nonfinite_grad_out[i] != 0;
    }
    for (int64_t i = rows; i < round_up(rows, Dot::kDepth); ++i) {
      lse[i] = infinity;
      delta[i] = 0;
    }
  }

 private:
  void pack_operands(Strided<T> x, int64_t dim, Element* along_rows, int64_t row,
                     Element* along_depth, int64_t columns, uint8_t* nonfinite_rows) const {
    pack_rows<Dot>(x, rows, dim, along_rows, row);
    if constexpr (Dot::kDepth != 1) pack_depth<Dot>(x, rows, dim, along_depth, columns);
    clear_nonfinite<Dot>(x, rows, dim, along_depth, columns, nonfinite_rows);
  }

  static Scalar dot_rows(const T* a, int64_t a_stride, const T* b, int64_t b_stride,
                         int64_t count) {
    Scalar total = 0;
    int64_t j = 0;
    if (a_stride == 1 && b_stride == 1) {
      typename V::Reg sum = V::zero();
      for (; j + V::kLanes <= count; j += V::kLanes)
        sum = V::fma(V::load(a + j), V::load(b + j), sum);
      if (j < count) {
        const int rest = static_cast<int>(count - j);
        sum = V::fma(V::load_partial(a + j, rest), V::load_partial(b + j, rest), sum);
      }
      return V::reduce_add(sum);
    }
    for (; j < count; ++j)
      total += convert<Scalar>(a[j * a_stride]) * convert<Scalar>(b[j * b_stride]);
    return total;
  }
};

// A block of at most kKeys keys of one head, as operands.
template <class Dot, class T>
struct BackwardKeys {
  using Element = typename Dot::Element;
  using Shape = BackwardShape<Dot>;
  Element *key, *value;  // B of S and dP, by columns
  Element* key_depth;    // B of dQ: [steps_of(count), head_columns]
  uint8_t* nonfinite_key;
  Strided<T> raw_key;
  int64_t begin = 0, count = 0;  // within the sequence
  bool nonfinite = false;

  BackwardKeys(const Shape& shape, Arena& arena) {
    key = arena.take<Element>(Shape::kKeys * shape.head_steps);
    value = arena.take<Element>(Shape::kKeys * shape.value_steps);
    key_depth = arena.take<Element>(Shape::kKeys / Dot::kDepth * shape.head_columns);
    nonfinite_key = arena.take<uint8_t>(Shape::kKeys);
  }

  void pack(const Shape& shape, const AttentionProblem& problem, const AttentionBackward& arguments,
            int64_t batch, int64_t kv_head, int64_t sequence_begin) {
    const int64_t row = sequence_begin + begin;
    raw_key = head_view<T>(arguments.key, problem.ragged, batch, kv_head, row);
    pack_columns<Dot>(raw_key, count, shape.head_dim, key);
    pack_columns<Dot>(head_view<T>(arguments.value, problem.ragged, batch, kv_head, row), count,
                      shape.value_dim, value);
    pack_depth<Dot>(raw_key, count, shape.head_dim, key_depth, shape.head_columns);
    clear_nonfinite<Dot>(raw_key, count, shape.head_dim, key_depth, shape.head_columns,
                         nonfinite_key);
    nonfinite = false;
    for (int64_t j = 0; j < count; ++j) nonfinite = nonfinite || nonfinite_key[j] != 0;
  }
};

}  // namespace perseid::internal::cpu::PERSEID_ISA
