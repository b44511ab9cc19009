// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul: C = alpha A B + beta C0 + bias, over any strides.
//
// A task is a block of C of one batch entry, and works alone:
//
//   for each block of the depth:            sums: [block rows, block columns], of the whole block
//     A's part, packed                      [block rows, depth], in the L2 cache
//     for each panel of tile_columns:
//       B's part, packed                    [depth, tile_columns], in the L1 or L2 cache
//       for each chunk of rows:             sums += A B       micro_gemm
//         after the last depth:             alpha, beta, bias, rounding, into C
//
// Packing a panel of B costs as much as a few rows of its products, and is repeated for every block
// of rows; that is cheaper than packing all of B ahead, which would go through memory twice.
//
// The problem is turned into its transpose, C^T = B^T A^T, where C's columns are contiguous, or
// where C has few columns: few rows have a way of their own (matmul_rows.hpp). Blocks depend on the
// problem alone, so results do not depend on the number of threads.
//
// Blocking follows Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", TOMS
// 2008.
#pragma once

#include "cpu/executor.hpp"
#include "cpu/simd/matmul_rows.hpp"
#include "math/matmul_problem.hpp"

namespace perseid::cpu::PERSEID_ISA {

template <class Dot, class T>
class MatmulKernel {
  using V = typename Dot::Vector;
  using Scalar = typename V::Scalar;
  using Element = typename Dot::Element;
  using Few = FewRows<V, T>;

  static constexpr int64_t kPanel = tile_columns<Dot>;
  static constexpr int64_t kMostRows = 64 * Dot::kRows;  // of a block
  static constexpr int64_t kMostColumns = max(kPanel, int64_t{1024 / sizeof(Scalar)});
  static constexpr int64_t kMostSteps = 320;
  static constexpr int64_t kChunk = 8 * Dot::kRows;  // rows whose sums are finished in the L1 cache
  // Blocks are split further, for the sake of many workers, until they are this small.
  static constexpr int64_t kFewestTasks = 32;
  static constexpr int64_t kSmallBlock = int64_t{1} << 21;  // multiply-adds

  // How C is cut: C[m, n], or its transpose.
  struct Blocking {
    int64_t rows = 0, columns = 0;  // of a block of C
    int64_t depths = 1, depth = 0;  // blocks of the depth, and scalars of each
    bool few_rows = false;

    Blocking(const MatmulProblem& problem, int64_t m, int64_t n) : few_rows(m <= kFewRows) {
      if (few_rows) {
        rows = m;
        columns = Few::kStrip;
        return;
      }
      const int64_t steps = steps_of<Dot>(problem.k);
      depths = max(int64_t{1}, ceil_div(steps, kMostSteps));
      depth = round_up(ceil_div(steps, depths), V::kLanes) * Dot::kDepth;
      columns = equal_parts(n, kMostColumns, kPanel);
      rows = equal_parts(m, kMostRows, Dot::kRows);
      while (problem.batch * ceil_div(m, rows) * ceil_div(n, columns) < kFewestTasks &&
             rows > kChunk && rows * columns > kSmallBlock / max(problem.k, int64_t{1}))
        rows = equal_parts(m, rows / 2, Dot::kRows);
    }

    // The size of equal parts: a multiple of `unit`, about `most` at most.
    static int64_t equal_parts(int64_t size, int64_t most, int64_t unit) {
      return max(unit, round_up(ceil_div(size, max(int64_t{1}, ceil_div(size, most))), unit));
    }
  };

  struct Scratch {
    Element* a = nullptr;    // [rows, depth], or [depth, rows] in whole vectors
    Element* b = nullptr;    // [depth, kPanel]
    Scalar* few = nullptr;   // what FewRows works with
    Scalar* sums = nullptr;  // [rows, columns]; with one block of the depth [kChunk, kPanel]
    Scalar* bias = nullptr;  // [columns], or [rows] where C is transposed

    Scratch(const Blocking& blocking, Arena& arena) {
      if (blocking.few_rows) {
        few = arena.take<Scalar>(Few::scratch(blocking.rows));
        sums = arena.take<Scalar>(blocking.rows * Few::kStrip);
      } else {
        const int64_t steps = steps_of<Dot>(blocking.depth);
        a = arena.take<Element>(round_up(blocking.rows, V::kLanes) * steps);
        b = arena.take<Element>(steps * kPanel);
        sums = arena.take<Scalar>(blocking.depths == 1 ? kChunk * kPanel
                                                       : blocking.rows * blocking.columns);
      }
      bias = arena.take<Scalar>(max(blocking.rows, blocking.columns));
    }
    static size_t bytes(const Blocking& blocking) {
      Arena arena(nullptr);
      Scratch(blocking, arena);
      return arena.bytes();
    }
  };

 public:
  static size_t workspace(const MatmulProblem& problem, int32_t workers) {
    return scratch_bytes(problem) * static_cast<size_t>(workers);
  }

  MatmulKernel(const MatmulProblem& problem, const MatmulArguments& arguments)
      : problem_(problem),
        transposed_(min(problem.m, problem.n) <= kFewRows
                        ? problem.n < problem.m
                        : arguments.c.stride[1] == 1 && arguments.c.stride[2] != 1),
        m_(transposed_ ? problem.n : problem.m),
        n_(transposed_ ? problem.m : problem.n),
        blocking_(problem, m_, n_),
        a_(transposed_ ? transpose(arguments.b) : arguments.a),
        b_(transposed_ ? transpose(arguments.a) : arguments.b),
        c0_(transposed_ ? transpose(arguments.c0) : arguments.c0),
        c_(transposed_ ? transpose(arguments.c) : arguments.c),
        bias_(arguments.bias) {}

  void run(const Execution& execution) const {
    const int64_t down = ceil_div(m_, max(blocking_.rows, int64_t{1}));
    const int64_t across = ceil_div(n_, blocking_.columns);
    const size_t bytes = scratch_bytes(problem_);
    for_each_task(
        execution.executor, problem_.batch * down * across, [&](int64_t task, int32_t worker) {
          Arena arena(execution.workspace + static_cast<size_t>(worker) * bytes);
          const Scratch scratch(blocking_, arena);
          const int64_t i = task / across % down * blocking_.rows;
          const int64_t j = task % across * blocking_.columns;
          const Block block{task / across / down, i, j, min(blocking_.rows, m_ - i),
                            min(blocking_.columns, n_ - j)};
          read_bias(block, scratch.bias);
          if (blocking_.few_rows) {
            Few::multiply(matrix(a_, block.batch, i, 0), matrix(b_, block.batch, 0, j), block.rows,
                          block.columns, problem_.k, scratch.few, scratch.sums);
            finish(block, block, scratch.sums, Few::kStrip, scratch.bias);
          } else {
            multiply(block, scratch);
          }
        });
  }

 private:
  struct Block {
    int64_t batch, i, j, rows, columns;
  };

  // A worker's part of the workspace: enough whichever way the problem is turned.
  static size_t scratch_bytes(const MatmulProblem& problem) {
    const int64_t few = min(problem.m, problem.n), many = max(problem.m, problem.n);
    if (few <= kFewRows) return Scratch::bytes(Blocking(problem, few, many));
    return max(Scratch::bytes(Blocking(problem, problem.m, problem.n)),
               Scratch::bytes(Blocking(problem, problem.n, problem.m)));
  }

  static Tensor transpose(Tensor tensor) {
    const int64_t stride = tensor.stride[1];
    tensor.stride[1] = tensor.stride[2];
    tensor.stride[2] = stride;
    return tensor;
  }

  static Strided<T> matrix(const Tensor& tensor, int64_t batch, int64_t i, int64_t j) {
    if (tensor.data == nullptr) return {nullptr, 0, 0};  // a depth of 0
    const int64_t* stride = tensor.stride;
    return {tensor.as<T>() + batch * stride[0] + i * stride[1] + j * stride[2], stride[1],
            stride[2]};
  }

  void multiply(const Block& block, const Scratch& scratch) const {
    const bool whole = blocking_.depths == 1;
    const int64_t sums_row = whole ? kPanel : blocking_.columns;
    for (int64_t d = 0; d < blocking_.depths; ++d) {
      const int64_t depth = d * blocking_.depth;
      const int64_t count = min(blocking_.depth, problem_.k - depth);
      const TileA<Dot> a =
          pack_a(matrix(a_, block.batch, block.i, depth), block.rows, count, scratch.a);
      for (int64_t j = 0; j < block.columns; j += kPanel) {
        const int64_t columns = min(kPanel, block.columns - j);
        pack_b(matrix(b_, block.batch, depth, block.j + j), count, columns, scratch.b);
        for (int64_t i = 0; i < block.rows; i += kChunk) {
          const int64_t rows = min(kChunk, block.rows - i);
          Scalar* sums = whole ? scratch.sums : scratch.sums + i * sums_row + j;
          panel_gemm<Dot>({a.data + i * a.row, a.row, a.depth}, {scratch.b, kPanel},
                          {sums, sums_row}, rows, columns, steps_of<Dot>(count), d > 0);
          if (d + 1 == blocking_.depths)
            finish(block, {block.batch, block.i + i, block.j + j, rows, columns}, sums, sums_row,
                   scratch.bias);
        }
      }
    }
  }

  // Where neighbours lie along the rows, A is packed along them too: micro_gemm reads it by any
  // strides.
  TileA<Dot> pack_a(Strided<T> a, int64_t rows, int64_t count, Element* packed) const {
    if (a.row == 1 && a.column != 1) {
      const int64_t row = round_up(blocking_.rows, V::kLanes);
      pack_depth<Dot>(Strided<T>{a.data, a.column, a.row}, count, rows, packed, row);
      return {packed, 1, row};
    }
    const int64_t steps = steps_of<Dot>(blocking_.depth);
    pack_rows<Dot>(a, rows, count, packed, steps);
    return {packed, steps, 1};
  }

  static void pack_b(Strided<T> b, int64_t count, int64_t columns, Element* packed) {
    if (b.row == 1 && b.column != 1) {
      pack_columns<Dot>(Strided<T>{b.data, b.column, b.row}, columns, count, packed);
    } else {
      pack_depth<Dot>(b, count, columns, packed, kPanel);
    }
  }

  // The bias of the block's columns, or of its rows where C is transposed; zeros where there is
  // none.
  void read_bias(const Block& block, Scalar* bias) const {
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

  // C of a part of the block, from its sums.
  void finish(const Block& block, const Block& part, const Scalar* sums, int64_t sums_row,
              const Scalar* bias) const {
    if (problem_.out_dtype == problem_.dtype) {
      finish_as<T>(block, part, sums, sums_row, bias);
    } else {
      if constexpr (sizeof(T) == 2) finish_as<float>(block, part, sums, sums_row, bias);
    }
  }

  template <class Out>
  void finish_as(const Block& block, const Block& part, const Scalar* sums, int64_t sums_row,
                 const Scalar* bias) const {
    const auto offset = [&](const Tensor& tensor, int64_t i) {
      return part.batch * tensor.stride[0] + (part.i + i) * tensor.stride[1] +
             part.j * tensor.stride[2];
    };
    for (int64_t i = 0; i < part.rows; ++i) {
      Row<Out> row{sums + i * sums_row, transposed_ ? nullptr : bias + (part.j - block.j),
                   transposed_ ? bias[part.i - block.i + i] : Scalar{0},
                   problem_.beta != 0 ? c0_.as<Out>() + offset(c0_, i) : nullptr,
                   c_.as<Out>() + offset(c_, i)};
      finish_row(row, part.columns);
    }
  }

  template <class Out>
  struct Row {
    const Scalar* sums;
    const Scalar* bias;  // of the columns, or null
    Scalar shift;        // bias of the row
    const Out* c0;       // null where beta is 0
    Out* c;
  };

  template <class Out>
  void finish_row(const Row<Out>& row, int64_t columns) const {
    const Scalar alpha = static_cast<Scalar>(problem_.alpha);
    const Scalar beta = static_cast<Scalar>(problem_.beta);
    int64_t j = 0;
    if (c_.stride[2] == 1 && (row.c0 == nullptr || c0_.stride[2] == 1)) {
      const auto value = [&](const auto& load) {
        typename V::Reg result = V::set1(row.shift);
        if (row.bias != nullptr) result = load(row.bias + j);
        result = V::fma(load(row.sums + j), V::set1(alpha), result);
        if (row.c0 != nullptr) result = V::fma(load(row.c0 + j), V::set1(beta), result);
        return result;
      };
      for (; j + V::kLanes <= columns; j += V::kLanes)
        V::store(row.c + j, value([](const auto* p) { return V::load(p); }));
      if (j < columns) {
        const int rest = static_cast<int>(columns - j);
        V::store_partial(row.c + j, value([&](const auto* p) { return V::load_partial(p, rest); }),
                         rest);
      }
      return;
    }
    for (; j < columns; ++j) {
      Scalar value = alpha * row.sums[j] + (row.bias != nullptr ? row.bias[j] : row.shift);
      if (row.c0 != nullptr) value += beta * convert<Scalar>(row.c0[j * c0_.stride[2]]);
      row.c[j * c_.stride[2]] = convert<Out>(value);
    }
  }

  const MatmulProblem& problem_;
  bool transposed_;
  int64_t m_, n_;
  Blocking blocking_;
  Tensor a_, b_, c0_, c_, bias_;
};

size_t matmul_workspace(const MatmulProblem& problem, int32_t workers) {
  size_t bytes = 0;
  with_dot(problem.dtype, [&]<class Dot, class T>() {
    bytes = MatmulKernel<Dot, T>::workspace(problem, workers);
  });
  return bytes;
}

void matmul(const MatmulProblem& problem, const MatmulArguments& arguments,
            const Execution& execution) {
  with_dot(problem.dtype,
           [&]<class Dot, class T>() { MatmulKernel<Dot, T>(problem, arguments).run(execution); });
}

}  // namespace perseid::cpu::PERSEID_ISA
