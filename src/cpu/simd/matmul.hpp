// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul: C = alpha A B + beta C0 + bias, over any strides.
//
// A task is a block of C. Its sums, the part of A that belongs to one block of the depth, and a
// panel of B lie in the L2 cache:
//
//   for each block of the depth:
//     for each panel of B, [depth, tile_columns]:
//       for each chunk of rows:       sums += A B         micro_gemm
//         after the last depth:       alpha, beta, bias, rounding, into C
//
// Operands are packed into the order in which they are read. Where C has many blocks, each operand
// serves several of them: both are packed ahead, by all workers, one entry of the batch after the
// other. Where it has few, each task packs what it needs. Rows of A that are elements of the
// product already are read where they are; 8-bit elements always become float32 panels
// (float8.hpp). Operands that arrive in chunks while the product runs are added by
// matmul_chunks.hpp.
//
// The problem is turned into its transpose, C^T = B^T A^T, where C's columns are contiguous, or
// where C has few columns: few rows have a way of their own (matmul_rows.hpp). Blocks depend on the
// problem alone, so results do not depend on the number of threads. In canonical order blocks of
// the depth do not cross its leaves, each leaf has sums of its own, and few rows are no exception.
//
// Blocking follows Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", TOMS
// 2008.
#pragma once

#include "cpu/executor.hpp"
#include "cpu/simd/float8.hpp"
#include "cpu/simd/matmul_output.hpp"
#include "cpu/simd/matmul_rows.hpp"
#include "math/leaf_tree.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

template <class Dot, class T>
class MatmulKernel {
 protected:
  using V = typename Dot::Vector;
  using Scalar = typename V::Scalar;
  using Element = typename Dot::Element;
  using Few = FewRows<V, T>;
  static constexpr bool kFloat8 = std::same_as<T, Float8>;

  static constexpr int64_t kPanel = tile_columns<Dot>;
  static constexpr int64_t kMostRows = 32 * Dot::kRows;  // of a block
  static constexpr int64_t kMostColumns = max(kPanel, int64_t{1024 / sizeof(Scalar)});
  static constexpr int64_t kMostSteps = 128;
  static constexpr int64_t kChunk = 2 * Dot::kRows;  // rows between calls for data ahead
  // Blocks are split further, for the sake of many workers, until they are this small.
  static constexpr int64_t kFewestTasks = 32;
  static constexpr int64_t kSmallBlock = int64_t{1} << 21;  // multiply-adds
  static constexpr int64_t kManyBlocks = 6;
  static constexpr int64_t kSlice = 8;  // rows along the depth that are packed together

  // How C is cut: C[m, n], or its transpose.
  struct Blocking {
    bool few_rows;
    bool ahead = false;                  // operands are packed ahead
    int64_t rows, columns;               // of a block of C
    int64_t down, across;                // blocks of C
    int64_t leaves, leaf;                // of the depth, and scalars of each
    int64_t leaf_depths = 1, depth = 0;  // blocks of a leaf, and scalars of each
    int64_t entries;                     // of the batch that are packed at the same time

    Blocking(const MatmulProblem& problem, int64_t m, int64_t n)
        : few_rows(!kFloat8 && m <= kFewRows && problem.leaves == 0),
          leaves(max(int64_t{1}, problem.leaves)),
          leaf(problem.k / leaves),
          entries(problem.async() ? problem.batch : 1) {
      if (few_rows) {
        rows = m;
        columns = Few::kStrip;
      } else {
        const int64_t steps = steps_of<Dot>(leaf);
        leaf_depths = max(int64_t{1}, ceil_div(steps, kMostSteps));
        depth = round_up(ceil_div(steps, leaf_depths), 2 * kSlice) * Dot::kDepth;
        rows = equal_parts(m, kMostRows, Dot::kRows);
        columns = equal_parts(n, kMostColumns, kPanel);
        while (problem.batch * ceil_div(m, rows) * ceil_div(n, columns) < kFewestTasks &&
               rows > 4 * kChunk && rows * columns > kSmallBlock / max(problem.k, int64_t{1}))
          rows = equal_parts(m, rows / 2, Dot::kRows);
      }
      down = ceil_div(m, max(rows, int64_t{1}));
      across = ceil_div(n, columns);
      ahead = m > kFewRows && down * across >= kManyBlocks;
    }

    // The size of equal parts: a multiple of `unit`, about `most` at most.
    static int64_t equal_parts(int64_t size, int64_t most, int64_t unit) {
      return max(unit, round_up(ceil_div(size, max(int64_t{1}, ceil_div(size, most))), unit));
    }

    // Blocks of the depth.
    int64_t depths() const { return leaves * leaf_depths; }
    // The first scalar of block d, and how many it has.
    int64_t k_of(int64_t d) const { return leaf_of(d) * leaf + in_leaf(d) * depth; }
    int64_t depth_of(int64_t d) const { return min(depth, leaf - in_leaf(d) * depth); }
    int64_t leaf_of(int64_t d) const { return leaves == 1 ? 0 : d / leaf_depths; }
    int64_t in_leaf(int64_t d) const { return leaves == 1 ? d : d % leaf_depths; }
    // Sums of a block of C.
    int64_t buffer() const { return rows * columns; }
    int64_t buffers() const { return buffers_of_leaves(leaves); }

    int64_t steps() const { return steps_of<Dot>(depth); }
    // Rows of A along which a packed block of A may lie.
    int64_t a_width() const { return round_up(rows, V::kLanes); }
    int64_t a_elements() const { return a_width() * steps(); }
    int64_t b_elements() const { return kPanel * steps(); }
    int64_t panels() const { return across * (columns / kPanel); }
  };

  // Packed operands of all blocks: A [entries, down, depths, a_elements],
  // B [entries, panels, depths, b_elements].
  struct Ahead {
    Element* a = nullptr;
    Element* b = nullptr;

    Ahead(const Blocking& blocking, Arena& arena) {
      if (!blocking.ahead) return;
      a = arena.take<Element>(blocking.entries * a_entry(blocking));
      b = arena.take<Element>(blocking.entries * b_entry(blocking));
    }
    // Elements of one entry of the batch.
    static int64_t a_entry(const Blocking& blocking) {
      return blocking.down * blocking.depths() * blocking.a_elements();
    }
    static int64_t b_entry(const Blocking& blocking) {
      return blocking.panels() * blocking.depths() * blocking.b_elements();
    }
  };

  // What one worker needs.
  struct Scratch {
    Element* a = nullptr;    // [a_elements]
    Element* b = nullptr;    // [b_elements]
    Scalar* few = nullptr;   // what FewRows works with
    Scalar* sums = nullptr;  // [buffers, rows, columns]; of one block of the depth [kChunk, kPanel]
    Scalar* bias = nullptr;  // [columns], or [rows] where C is transposed

    Scratch(const Blocking& blocking, Arena& arena) {
      if (blocking.few_rows) {
        few = arena.take<Scalar>(Few::scratch(blocking.rows));
        sums = arena.take<Scalar>(blocking.rows * Few::kStrip);
      } else {
        if (!blocking.ahead) {
          a = arena.take<Element>(blocking.a_elements());
          b = arena.take<Element>(blocking.b_elements());
        }
        sums = arena.take<Scalar>(blocking.depths() == 1 ? kChunk * kPanel
                                                         : blocking.buffers() * blocking.buffer());
      }
      bias = arena.take<Scalar>(max(blocking.rows, blocking.columns));
    }
  };

  template <class Part>
  static size_t bytes_of(const Blocking& blocking) {
    Arena arena(nullptr);
    Part(blocking, arena);
    return arena.bytes();
  }

 public:
  // Enough whichever way the problem is turned. shared(blocking): bytes that all workers share.
  template <class Shared>
  static size_t workspace(const MatmulProblem& problem, int32_t workers, const Shared& shared) {
    const auto bytes = [&](int64_t m, int64_t n) {
      const Blocking blocking(problem, m, n);
      return shared(blocking) + bytes_of<Scratch>(blocking) * static_cast<size_t>(workers);
    };
    const int64_t few = min(problem.m, problem.n), many = max(problem.m, problem.n);
    return few <= kFewRows ? bytes(few, many) : max(bytes(few, many), bytes(many, few));
  }
  static size_t workspace(const MatmulProblem& problem, int32_t workers) {
    return workspace(problem, workers,
                     [](const Blocking& blocking) { return bytes_of<Ahead>(blocking); });
  }

  MatmulKernel(const MatmulProblem& problem, const MatmulArguments& arguments, std::byte* workspace)
      : problem_(problem),
        transposed_(min(problem.m, problem.n) <= kFewRows
                        ? problem.n < problem.m
                        : arguments.c.stride[1] == 1 && arguments.c.stride[2] != 1),
        m_(transposed_ ? problem.n : problem.m),
        n_(transposed_ ? problem.m : problem.n),
        blocking_(problem, m_, n_),
        a_(transposed_ ? transpose(arguments.b) : arguments.a),
        b_(transposed_ ? transpose(arguments.a) : arguments.b),
        panel_a_(transposed_ ? panel_of_b(problem, arguments) : panel_of_a(problem, arguments)),
        panel_b_(transposed_ ? panel_of_a(problem, arguments) : panel_of_b(problem, arguments)),
        output_(problem, arguments, transposed_ ? transpose(arguments.c) : arguments.c,
                transposed_ ? transpose(arguments.c0) : arguments.c0, transposed_),
        workspace_(workspace),
        shared_bytes_(bytes_of<Ahead>(blocking_)),
        direct_a_(is_direct_a()) {}

  void run(Executor& executor) const {
    const int64_t blocks = blocking_.down * blocking_.across;
    if (!blocking_.ahead) {
      for_each_task(executor, problem_.batch * blocks, [&](int64_t task, int32_t worker) {
        compute(task / blocks, task % blocks, executor, worker);
      });
      return;
    }
    for (int64_t batch = 0; batch < problem_.batch; ++batch) {
      // An operand that serves the whole batch is packed once.
      pack_ahead(executor, batch, 1, !direct_a_ && (batch == 0 || !one_a()),
                 batch == 0 || !one_b());
      for_each_task(executor, blocks,
                    [&](int64_t task, int32_t worker) { compute(batch, task, executor, worker); });
    }
  }

 protected:
  static Float8Panel panel_of_a(const MatmulProblem& problem, const MatmulArguments& arguments) {
    return {problem.dtype, {arguments.scale_a, 1}};
  }
  static Float8Panel panel_of_b(const MatmulProblem& problem, const MatmulArguments& arguments) {
    const int64_t lines = problem.scaling == Scaling::kBlock ? kScaledBlock : 1;
    return {problem.type_of_b(), {arguments.scale_b, lines}};
  }

  // Packs operands of `entries` entries of the batch from `first` on.
  void pack_ahead(Executor& executor, int64_t first, int64_t entries, bool a, bool b) const {
    const int64_t a_tasks = a ? pack_a_tasks() : 0, b_tasks = b ? pack_b_tasks() : 0;
    for_each_task(executor, entries * (a_tasks + b_tasks), [&](int64_t task, int32_t) {
      const int64_t batch = first + task / (a_tasks + b_tasks);
      task %= a_tasks + b_tasks;
      if (task < a_tasks) {
        pack_a_ahead(batch, task);
      } else {
        pack_b_ahead(batch, task - a_tasks);
      }
    });
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

  // Whether neighbours lie along the other side of the product than the depth: then the operand is
  // packed along that side too.
  bool a_along_rows() const { return a_.stride[1] == 1 && a_.stride[2] != 1; }
  bool b_along_columns() const { return b_.stride[1] != 1 || b_.stride[2] == 1; }

  // Whether A's rows are elements of the product as they lie.
  bool is_direct_a() const {
    constexpr bool kSame = Dot::kDepth > 1 || sizeof(T) == sizeof(Element);
    const auto whole_elements = [](int64_t x) { return x % Dot::kDepth == 0; };
    return kSame && a_.stride[2] == 1 && whole_elements(blocking_.leaf) &&
           whole_elements(a_.stride[0]) && whole_elements(a_.stride[1]) &&
           reinterpret_cast<uintptr_t>(a_.data) % alignof(Element) == 0;
  }

  // A's rows [i, ...) and block d of the depth, as packed at `packed`.
  TileA<Dot> packed_a(const Element* packed) const {
    if (a_along_rows()) return {packed, 1, blocking_.a_width()};
    return {packed, blocking_.steps(), 1};
  }

  // Whether the packed operand serves the whole batch.
  bool one_a() const { return a_.stride[0] == 0 && panel_a_.of_whole_batch(); }
  bool one_b() const { return b_.stride[0] == 0 && panel_b_.of_whole_batch(); }

  // Which of the entries that are packed at the same time a block reads.
  int64_t a_entry(int64_t batch) const { return blocking_.entries == 1 || one_a() ? 0 : batch; }
  int64_t b_entry(int64_t batch) const { return blocking_.entries == 1 || one_b() ? 0 : batch; }
  // Where the operands of a block lie packed.
  Element* ahead_a(const Ahead& ahead, const MatmulPart& block, int64_t d) const {
    return ahead.a + a_entry(block.batch) * Ahead::a_entry(blocking_) +
           (block.i / blocking_.rows * blocking_.depths() + d) * blocking_.a_elements();
  }
  Element* ahead_b(const Ahead& ahead, const MatmulPart& block, int64_t j, int64_t d) const {
    return ahead.b + b_entry(block.batch) * Ahead::b_entry(blocking_) +
           ((block.j + j) / kPanel * blocking_.depths() + d) * blocking_.b_elements();
  }

  TileA<Dot> operand_a(const Ahead& ahead, const Scratch& scratch, const MatmulPart& block,
                       int64_t d) const {
    if (direct_a_) {
      const Strided<T> a = matrix(a_, block.batch, block.i, blocking_.k_of(d));
      return {reinterpret_cast<const Element*>(a.data), a.row / Dot::kDepth, 1};
    }
    if (blocking_.ahead) return packed_a(ahead_a(ahead, block, d));
    pack_a(block, d, scratch.a);
    return packed_a(scratch.a);
  }

  // The block's rows of A at block d of the depth.
  void pack_a(const MatmulPart& block, int64_t d, Element* out) const {
    const int64_t k = blocking_.k_of(d), depth = blocking_.depth_of(d);
    const Strided<T> a = matrix(a_, block.batch, block.i, k);
    if (a_along_rows()) {
      pack_depth<Dot>(Strided<T>{a.data, a.column, a.row}, depth, block.rows, out,
                      blocking_.a_width());
      if constexpr (kFloat8)
        panel_a_.decode_depth(block.batch, block.i, block.rows, k, depth, out, blocking_.a_width());
    } else {
      pack_rows<Dot>(a, block.rows, depth, out, blocking_.steps());
      if constexpr (kFloat8)
        panel_a_.decode_rows(block.batch, block.i, block.rows, k, depth, out, blocking_.steps());
    }
  }

  const Element* operand_b(const Ahead& ahead, const Scratch& scratch, const MatmulPart& block,
                           int64_t j, int64_t d) const {
    if (blocking_.ahead) return ahead_b(ahead, block, j, d);
    pack_b(block, j, d, scratch.b);
    return scratch.b;
  }

  // The panel of B from the block's column j on, at block d of the depth.
  void pack_b(const MatmulPart& block, int64_t j, int64_t d, Element* out) const {
    pack_panel(block.batch, block.j + j, min(kPanel, block.columns - j), d, out);
  }

  // `columns` columns of B from `first` on.
  void pack_panel(int64_t batch, int64_t first, int64_t columns, int64_t d, Element* out) const {
    const int64_t k = blocking_.k_of(d), depth = blocking_.depth_of(d);
    const Strided<T> b = matrix(b_, batch, k, first);
    if (b_along_columns()) {
      pack_depth<Dot>(b, depth, columns, out, kPanel);
    } else {
      pack_columns<Dot>(Strided<T>{b.data, b.column, b.row}, columns, depth, out);
    }
    if constexpr (kFloat8) panel_b_.decode_depth(batch, first, columns, k, depth, out, kPanel);
  }

  // Packing ahead goes through memory in the order of addresses, as far as the layout lets it.
  int64_t pack_a_tasks() const { return a_along_rows() ? slice_tasks() : blocking_.down; }
  int64_t pack_b_tasks() const { return b_along_columns() ? slice_tasks() : blocking_.panels(); }
  static constexpr int64_t kSliceTask = 8 * kSlice;
  int64_t slice_tasks_of_leaf() const { return ceil_div(blocking_.leaf, kSliceTask); }
  int64_t slice_tasks() const { return blocking_.leaves * slice_tasks_of_leaf(); }

  void pack_a_ahead(int64_t batch, int64_t task) const {
    Arena arena(workspace_);
    const Ahead ahead(blocking_, arena);
    if (a_along_rows()) {
      const Strided<T> a = matrix(a_, batch, 0, 0);
      pack_slices({a.data, a.column, a.row}, panel_a_, batch, task, m_, blocking_.rows,
                  blocking_.a_width(), ahead.a + a_entry(batch) * Ahead::a_entry(blocking_));
      return;
    }
    Element* out = ahead.a + a_entry(batch) * Ahead::a_entry(blocking_) +
                   task * blocking_.depths() * blocking_.a_elements();
    const int64_t first = task * blocking_.rows;
    for (int64_t i = 0; i < min(blocking_.rows, m_ - first); ++i) {
      for (int64_t d = 0; d < blocking_.depths(); ++d) {
        const int64_t k = blocking_.k_of(d), depth = blocking_.depth_of(d);
        Element* row = out + d * blocking_.a_elements() + i * blocking_.steps();
        pack_rows<Dot>(matrix(a_, batch, first + i, k), 1, depth, row, blocking_.steps());
        if constexpr (kFloat8)
          panel_a_.decode_rows(batch, first + i, 1, k, depth, row, blocking_.steps());
      }
    }
  }

  void pack_b_ahead(int64_t batch, int64_t task) const {
    Arena arena(workspace_);
    const Ahead ahead(blocking_, arena);
    if (b_along_columns()) {
      pack_slices(matrix(b_, batch, 0, 0), panel_b_, batch, task, n_, kPanel, kPanel,
                  ahead.b + b_entry(batch) * Ahead::b_entry(blocking_));
      return;
    }
    Element* out = ahead.b + b_entry(batch) * Ahead::b_entry(blocking_) +
                   task * blocking_.depths() * blocking_.b_elements();
    const int64_t first = task * kPanel;
    for (int64_t d = 0; d < blocking_.depths(); ++d)
      pack_panel(batch, first, clamp(n_ - first, int64_t{0}, kPanel), d,
                 out + d * blocking_.b_elements());
  }

  // A task's rows of x[k, size], at most kSliceTask of one leaf, cut into parts of `part` columns;
  // a packed row of a part is `width` wide.
  void pack_slices(Strided<T> x, const Float8Panel& panel, int64_t batch, int64_t task,
                   int64_t size, int64_t part, int64_t width, Element* out) const {
    const int64_t leaf = task / slice_tasks_of_leaf(), first = task % slice_tasks_of_leaf();
    const int64_t end = min(blocking_.leaf, (first + 1) * kSliceTask);
    for (int64_t row = first * kSliceTask; row < end; row += kSlice) {
      const int64_t k = leaf * blocking_.leaf + row, depth = min(kSlice, end - row);
      const int64_t d = leaf * blocking_.leaf_depths + row / blocking_.depth,
                    step = row % blocking_.depth / Dot::kDepth;
      for (int64_t j = 0; j < size; j += part) {
        const int64_t lines = min(part, size - j);
        Element* to =
            out + ((j / part * blocking_.depths() + d) * blocking_.steps() + step) * width;
        pack_depth<Dot>(Strided<T>{x.data + k * x.row + j * x.column, x.row, x.column}, depth,
                        lines, to, width);
        if constexpr (kFloat8) panel.decode_depth(batch, j, lines, k, depth, to, width);
      }
    }
  }

  Scratch scratch_of(int32_t worker) const {
    Arena own(workspace_ + shared_bytes_ +
              static_cast<size_t>(worker) * bytes_of<Scratch>(blocking_));
    return Scratch(blocking_, own);
  }

  MatmulPart block_at(int64_t batch, int64_t row, int64_t column) const {
    const int64_t i = row * blocking_.rows, j = column * blocking_.columns;
    return {batch, i, j, min(blocking_.rows, m_ - i), min(blocking_.columns, n_ - j)};
  }

  void compute(int64_t batch, int64_t task, const Executor& executor, int32_t worker) const {
    Arena arena(workspace_);
    const Ahead ahead(blocking_, arena);
    const Scratch scratch = scratch_of(worker);
    // Neighbours in time share the columns of B, which a cache of several cores may hold.
    const MatmulPart block = block_at(batch, task % blocking_.down, task / blocking_.down);
    output_.read_bias(block, scratch.bias);
    if constexpr (!kFloat8) {
      if (blocking_.few_rows) {
        multiply_few(block, scratch, [&](int64_t, int64_t) { return !executor.stopped(); });
        return;
      }
    }
    multiply(block, ahead, scratch, 0, [&](int64_t) { return !executor.stopped(); });
  }

  // provide(depth, count): as in FewRows. False: the block is unfinished.
  template <class Provide>
  bool multiply_few(const MatmulPart& block, const Scratch& scratch, const Provide& provide) const {
    if (!Few::multiply(matrix(a_, block.batch, block.i, 0), matrix(b_, block.batch, 0, block.j),
                       block.rows, block.columns, problem_.k, scratch.few, scratch.sums, provide))
      return false;
    output_.write(block, block, scratch.sums, Few::kStrip, scratch.bias);
    return true;
  }

  // From block d of the depth on, where the sums of those before it are in the scratch memory.
  // provide(d) makes a block of the depth readable; multiply() returns the first one that it
  // cannot, or the number of all: then C is written.
  template <class Provide>
  int64_t multiply(const MatmulPart& block, const Ahead& ahead, const Scratch& scratch, int64_t d,
                   const Provide& provide) const {
    const int64_t depths = blocking_.depths();
    const bool whole = depths == 1;
    const int64_t sums_row = whole ? kPanel : blocking_.columns;
    for (; d < depths; ++d) {
      if (!provide(d)) return d;
      const int64_t steps = steps_of<Dot>(blocking_.depth_of(d));
      const int64_t leaf = blocking_.leaf_of(d), in_leaf = blocking_.in_leaf(d);
      Scalar* const sums_of_leaf = scratch.sums + buffer_of_leaf(leaf) * blocking_.buffer();
      const int64_t pairs = in_leaf + 1 == blocking_.leaf_depths ? pairs_after_leaf(leaf) : 0;
      const TileA<Dot> a = operand_a(ahead, scratch, block, d);
      for (int64_t j = 0; j < block.columns; j += kPanel) {
        const int64_t columns = min(kPanel, block.columns - j);
        const Element* b = operand_b(ahead, scratch, block, j, d);
        for (int64_t i = 0; i < block.rows; i += kChunk) {
          const int64_t rows = min(kChunk, block.rows - i);
          Scalar* sums = whole ? scratch.sums : sums_of_leaf + i * sums_row + j;
          prefetch_next_b(block, ahead, d, j, i, rows);
          panel_gemm<Dot>({a.data + i * a.row, a.row, a.depth}, {b, kPanel}, {sums, sums_row}, rows,
                          columns, steps, in_leaf > 0);
          sums = add_pairs(sums, pairs, rows, columns);
          if (d + 1 == depths)
            output_.write(block, {block.batch, block.i + i, block.j + j, rows, columns}, sums,
                          sums_row, scratch.bias);
        }
      }
    }
    return d;
  }

  // Adds sums to those a buffer before, `pairs` times. Where they are then.
  Scalar* add_pairs(Scalar* sums, int64_t pairs, int64_t rows, int64_t columns) const {
    for (; pairs > 0; --pairs) {
      Scalar* const earlier = sums - blocking_.buffer();
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; j += V::kLanes) {
          Scalar* const at = earlier + i * blocking_.columns + j;
          V::store(at, V::add(V::load(at), V::load(sums + i * blocking_.columns + j)));
        }
      sums = earlier;
    }
    return sums;
  }

  // The next panel of B is called for while the products of this one run, rows [i, i + size) of the
  // block their share. Inlined, or the compiler finds that it has no effect.
  PERSEID_INLINE void prefetch_next_b(const MatmulPart& block, const Ahead& ahead, int64_t d,
                                      int64_t j, int64_t i, int64_t size) const {
    j += kPanel;
    if (j >= block.columns) j = 0, ++d;
    if (d == blocking_.depths()) return;
    const int64_t columns = min(kPanel, block.columns - j);
    if (blocking_.ahead) {
      prefetch(ahead_b(ahead, block, j, d), steps_of<Dot>(blocking_.depth_of(d)), kPanel, kPanel, i,
               size, block.rows);
      return;
    }
    const int64_t depth = blocking_.depth_of(d);
    const Strided<T> b = matrix(b_, block.batch, blocking_.k_of(d), block.j + j);
    if (b_along_columns()) {
      prefetch(b.data, depth, columns, b.row, i, size, block.rows);
    } else {
      prefetch(b.data, columns, depth, b.column, i, size, block.rows);
    }
  }

  // The share of [first, first + size) in [0, whole) of `rows` rows.
  template <class U>
  static PERSEID_INLINE void prefetch(const U* data, int64_t rows, int64_t length, int64_t row,
                                      int64_t first, int64_t size, int64_t whole) {
    constexpr int64_t kLine = 64 / sizeof(U);
    for (int64_t i = rows * first / whole; i < rows * (first + size) / whole; ++i)
      for (int64_t j = 0; j < length; j += kLine) __builtin_prefetch(data + i * row + j);
  }

  const MatmulProblem& problem_;
  bool transposed_;
  int64_t m_, n_;
  Blocking blocking_;
  Tensor a_, b_;
  Float8Panel panel_a_, panel_b_;
  MatmulOutput<V> output_;
  std::byte* workspace_;
  size_t shared_bytes_;  // of the workspace, before the workers' scratch memory
  bool direct_a_;
};

}  // namespace perseid::internal::cpu::PERSEID_ISA
