// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The gradient of attention's bias: dS, summed over the dimensions along which the bias is
// broadcast. Those dimensions may cross all tasks of the other gradients, so this is a pass of its
// own over the output: a block is some rows of dBias, and every dS that enters them is recomputed
// for it (two of the five products).
//
//   a block:  for each part, at most 16 (4 where a block has many rows):     a sum of its own
//               for each unit of the part, a (batch, head, 96 queries):      dS, added
//             the parts' sums, added in order
//
// A task is a block where there are enough of those. Where there are few, as where one row of bias
// serves all queries, every part is a task, and a second phase adds the sums up in the same order.
// So the result is the same bit for bit, whatever the number of threads; nothing is stored but the
// parts' sums.
#pragma once

#include "cpu/simd/attention_backward_tile.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

template <class Dot, class T>
class AttentionBackwardBias {
  using V = typename Dot::Vector;
  using Scalar = typename V::Scalar;
  using Shape = BackwardShape<Dot>;
  static_assert(Dot::kDepth == 1);

  struct Scratch {
    BackwardQueries<Dot, T> queries;
    BackwardKeys<Dot, T> keys;
    BackwardTile<Dot, T> tile;
    Scalar *sum, *part;  // of the block and of one of its parts: [rows_, sum_columns_]
  };

  // Some rows of dBias, of a (batch, head) of its own shape.
  struct Block {
    int64_t batch, head, row, rows;
  };

 public:
  static constexpr int64_t kEnoughTasks = 16;
  static constexpr int64_t kBlockQueries = Shape::kQueries;

  AttentionBackwardBias(const AttentionProblem& problem, int32_t workers, std::byte* workspace)
      : problem_(problem), shape_(problem), workspace_(workspace) {
    const int64_t* shape = problem.bias_shape;
    sum_columns_ = round_up(max(problem.kv_len, int64_t{1}), V::kLanes);  // a total, if no more
    rows_ = min(Shape::kQueries, shape[2]);
    row_blocks_ = ceil_div(shape[2], Shape::kQueries);
    blocks_ = shape[0] * shape[1] * row_blocks_;
    sums_batch_ = shape[0] == 1 && problem.batch != 1;
    max_parts_ = clamp(units_of(problem.q_len), int64_t{1}, int64_t{shape[2] == 1 ? 16 : 4});
    split_ = blocks_ < kEnoughTasks && max_parts_ > 1;
    Arena arena(workspace);
    if (split_) split_sum_ = arena.take<Scalar>(blocks_ * max_parts_ * sum_size());
    scratch_begin_ = arena.bytes();
    Arena one(nullptr);
    take_scratch(one);
    scratch_bytes_ = one.bytes();
    bytes_ = scratch_begin_ + scratch_bytes_ * static_cast<size_t>(workers);
  }

  size_t bytes() const { return bytes_; }

  void run(const AttentionBackward& arguments, Executor& executor) const {
    if (!split_) {
      for_each_task(executor, blocks_, [&](int64_t task, int32_t worker) {
        Scratch scratch = scratch_of(worker);
        const Block block = block_at(task);
        const int64_t units = units_of(arguments, block);
        add_part(arguments, scratch, executor, block, units, 0, scratch.sum);
        for (int64_t part = 1; part < parts_of(units); ++part) {
          add_part(arguments, scratch, executor, block, units, part, scratch.part);
          add(scratch.part, block.rows, scratch.sum);
        }
        write(arguments.grad_bias, block, scratch.sum);
      });
      return;
    }
    for_each_task(executor, blocks_ * max_parts_, [&](int64_t task, int32_t worker) {
      const Block block = block_at(task % blocks_);
      const int64_t part = task / blocks_, units = units_of(arguments, block);
      if (part >= max(parts_of(units), int64_t{1})) return;
      Scratch scratch = scratch_of(worker);
      add_part(arguments, scratch, executor, block, units, part, split_sum(task % blocks_, part));
    });
    for_each_task(executor, blocks_, [&](int64_t task, int32_t) {
      const Block block = block_at(task);
      Scalar* sum = split_sum(task, 0);
      for (int64_t part = 1; part < parts_of(units_of(arguments, block)); ++part)
        add(split_sum(task, part), block.rows, sum);
      write(arguments.grad_bias, block, sum);
    });
  }

 private:
  Scratch scratch_of(int32_t worker) const {
    Arena arena(workspace_ + scratch_begin_ + static_cast<size_t>(worker) * scratch_bytes_);
    return take_scratch(arena);
  }
  Scratch take_scratch(Arena& arena) const {
    return {BackwardQueries<Dot, T>(shape_, min(Shape::kQueries, problem_.q_len), arena),
            BackwardKeys<Dot, T>(shape_, arena), BackwardTile<Dot, T>(false, arena),
            split_ ? nullptr : arena.take<Scalar>(sum_size()),
            split_ || max_parts_ == 1 ? nullptr : arena.take<Scalar>(sum_size())};
  }
  int64_t sum_size() const { return rows_ * sum_columns_; }
  Scalar* split_sum(int64_t block, int64_t part) const {
    return split_sum_ + (block * max_parts_ + part) * sum_size();
  }

  Block block_at(int64_t index) const {
    const int64_t* shape = problem_.bias_shape;
    const int64_t head = index / row_blocks_, row = index % row_blocks_ * Shape::kQueries;
    return {head / shape[1], head % shape[1], row, min(Shape::kQueries, shape[2] - row)};
  }

  // What a block sums over, in this order: batch entries, heads, blocks of queries.
  int64_t query_blocks(int64_t q_len) const {
    return problem_.bias_shape[2] == 1 ? ceil_div(q_len, Shape::kQueries) : 1;
  }
  int64_t heads_each() const { return problem_.bias_shape[1] == 1 ? problem_.heads : 1; }
  int64_t units_of(int64_t q_len) const {
    return (sums_batch_ ? problem_.batch : 1) * heads_each() * query_blocks(q_len);
  }
  // A sum within one sequence is split by its own length, not by those of other sequences.
  int64_t length_of(const AttentionBackward& arguments, const Block& block) const {
    return sums_batch_ ? problem_.q_len : sequence_of(problem_, arguments, block.batch).q_len;
  }
  int64_t units_of(const AttentionBackward& arguments, const Block& block) const {
    return units_of(length_of(arguments, block));
  }
  int64_t parts_of(int64_t units) const { return min(units, max_parts_); }

  // sum = the units of one part.
  void add_part(const AttentionBackward& arguments, Scratch& scratch, const Executor& executor,
                const Block& block, int64_t units, int64_t part, Scalar* sum) const {
    for (int64_t i = 0; i < block.rows * sum_columns_; i += V::kLanes) V::store(sum + i, V::zero());
    if (units == 0 || problem_.kv_len == 0) return;
    const int64_t parts = parts_of(units), blocks = query_blocks(length_of(arguments, block));
    for (int64_t unit = part * units / parts; unit < (part + 1) * units / parts; ++unit) {
      if (executor.stopped()) return;
      const int64_t head =
          problem_.bias_shape[1] == 1 ? unit / blocks % problem_.heads : block.head;
      const int64_t batch = sums_batch_ ? unit / blocks / heads_each() : block.batch;
      const Sequence sequence = sequence_of(problem_, arguments, batch);
      const int64_t row = block.row + unit % blocks * Shape::kQueries;
      const int64_t rows =
          problem_.bias_shape[2] == 1 ? Shape::kQueries : block.rows;  // of this unit, at most
      if (row < sequence.q_len)
        add_queries(arguments, scratch, sequence, batch, head, row, min(rows, sequence.q_len - row),
                    sum);
    }
  }

  void add(const Scalar* from, int64_t rows, Scalar* to) const {
    for (int64_t i = 0; i < rows * sum_columns_; i += V::kLanes)
      V::store(to + i, V::add(V::load(to + i), V::load(from + i)));
  }

  // dS of some queries of one head against all keys.
  void add_queries(const AttentionBackward& arguments, Scratch& scratch, Sequence sequence,
                   int64_t batch, int64_t head, int64_t row, int64_t rows, Scalar* sum) const {
    const ScoreChain<V> chain{problem_,
                              sequence,
                              arguments.bias,
                              arguments.visible,
                              batch,
                              head,
                              static_cast<Scalar>(problem_.scale * kLog2E)};
    const int64_t begin = visible_keys(problem_, row, sequence.q_len, sequence.kv_len).begin;
    const int64_t end = visible_keys(problem_, row + rows - 1, sequence.q_len, sequence.kv_len).end;
    if (begin >= end) return;
    scratch.queries.begin = row;
    scratch.queries.rows = rows;
    scratch.queries.pack(shape_, problem_, arguments, batch, head, sequence.q_begin);
    BackwardKeys<Dot, T>& keys = scratch.keys;
    for (keys.begin = begin / Shape::kKeys * Shape::kKeys; keys.begin < end;
         keys.begin += Shape::kKeys) {
      keys.count = min(Shape::kKeys, sequence.kv_len - keys.begin);
      keys.pack(shape_, problem_, arguments, batch, head / problem_.group(), sequence.kv_begin);
      if (!scratch.tile.score(shape_, chain, arguments.dropout, scratch.queries, keys, 0, true))
        continue;
      for (int64_t band = 0; band < Shape::kBands; ++band) add_band(scratch, band, sum);
    }
  }

  void add_band(const Scratch& scratch, int64_t band, Scalar* sum) const {
    const int64_t column = band * Shape::kBand;
    const int64_t columns = min(Shape::kBand, scratch.keys.count - column);
    const auto meeting = scratch.tile.rows_of(band);
    for (int64_t i = meeting.begin; i < meeting.end; ++i) {
      const Scalar* from = scratch.tile.grad_score(i, column);
      Scalar* to =
          sum + (problem_.bias_shape[2] == 1 ? 0 : i * sum_columns_) + scratch.keys.begin + column;
      int64_t j = 0;
      for (; j + V::kLanes <= columns; j += V::kLanes)
        V::store(to + j, V::add(V::load(to + j), V::load(from + j)));
      for (; j < columns; ++j) to[j] += from[j];
    }
  }

  void write(const Tensor& gradient, const Block& block, Scalar* sum) const {
    for (int64_t i = 0; i < block.rows; ++i)
      write_row_of(gradient, block.batch, block.head, block.row + i, sum + i * sum_columns_);
  }
  void write_row_of(const Tensor& gradient, int64_t batch, int64_t head, int64_t row,
                    Scalar* sum) const {
    int64_t count = problem_.kv_len;
    if (problem_.bias_shape[3] == 1) {
      Scalar total = 0;
      for (int64_t j = 0; j < count; ++j) total += sum[j];
      sum[0] = total;
      count = 1;
    }
    const int64_t offset =
        batch * gradient.stride[0] + head * gradient.stride[1] + row * gradient.stride[2];
    if constexpr (sizeof(Scalar) == 8) {
      put_row(sum, count, gradient.as<double>() + offset, gradient.stride[3]);
    } else {
      switch (gradient.dtype) {
        case DType::kF16:
          return put_row(sum, count, gradient.as<f16>() + offset, gradient.stride[3]);
        case DType::kBF16:
          return put_row(sum, count, gradient.as<bf16>() + offset, gradient.stride[3]);
        default:
          return put_row(sum, count, gradient.as<float>() + offset, gradient.stride[3]);
      }
    }
  }
  template <class To>
  void put_row(const Scalar* sum, int64_t count, To* to, int64_t stride) const {
    if (problem_.accumulate_bias) {
      add_row<V>(sum, Scalar{1}, count, to, stride);
    } else {
      write_row<V>(sum, Scalar{1}, count, to, stride);
    }
  }

  const AttentionProblem& problem_;
  Shape shape_;
  std::byte* workspace_;
  int64_t sum_columns_ = 0, rows_ = 0;   // of a block's sum
  int64_t row_blocks_ = 0, blocks_ = 0;  // of a (batch, head) of dBias, and of all
  int64_t max_parts_ = 0;                // of a block
  bool sums_batch_ = false;              // over batch entries
  bool split_ = false;                   // every part of a block is a task of its own
  Scalar* split_sum_ = nullptr;          // [blocks_, max_parts_, rows_, sum_columns_]
  size_t scratch_begin_ = 0, scratch_bytes_ = 0, bytes_ = 0;
};

}  // namespace perseid::internal::cpu::PERSEID_ISA
