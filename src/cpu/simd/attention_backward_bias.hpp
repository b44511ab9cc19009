// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The gradient of attention's bias: dS, summed over the dimensions along which the bias is
// broadcast. Those dimensions may cross all tasks of the other gradients, so this is a pass of its
// own over the output: a task owns some rows of dBias, makes every dS that enters them (two of the
// five products) and adds them up in a fixed order. Nothing larger than those rows is stored.
#pragma once

#include "cpu/simd/attention_backward_tile.hpp"

namespace perseid::cpu::PERSEID_ISA {

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
    Scalar* sum;  // [rows of a task, sum_columns_]
  };

 public:
  AttentionBackwardBias(const AttentionProblem& problem, int32_t workers, std::byte* workspace)
      : problem_(problem), shape_(problem), workspace_(workspace) {
    sum_columns_ = round_up(problem.kv_len, V::kLanes);
    Arena arena(nullptr);
    take_scratch(arena);
    scratch_bytes_ = arena.bytes();
    bytes_ = scratch_bytes_ * static_cast<size_t>(workers);
  }

  size_t bytes() const { return bytes_; }

  void run(const AttentionBackward& arguments, Executor& executor) const {
    const int64_t* shape = problem_.bias_shape;
    const int64_t blocks = ceil_div(shape[2], Shape::kQueries);
    for_each_task(executor, shape[0] * shape[1] * blocks, [&](int64_t task, int32_t worker) {
      Arena arena(workspace_ + static_cast<size_t>(worker) * scratch_bytes_);
      Scratch scratch = take_scratch(arena);
      const int64_t head = task / blocks;
      visit(arguments, scratch, head / shape[1], head % shape[1], task % blocks * Shape::kQueries);
    });
  }

 private:
  Scratch take_scratch(Arena& arena) const {
    const int64_t rows = problem_.bias_shape[2] == 1 ? 1 : min(Shape::kQueries, problem_.q_len);
    return {BackwardQueries<Dot, T>(shape_, min(Shape::kQueries, problem_.q_len), arena),
            BackwardKeys<Dot, T>(shape_, arena), BackwardTile<Dot, T>(arena),
            arena.take<Scalar>(rows * sum_columns_)};
  }

  // Rows [row, row + kQueries) of dBias of a (batch, head) of its own shape.
  void visit(const AttentionBackward& arguments, Scratch& scratch, int64_t bias_batch,
             int64_t bias_head, int64_t row) const {
    const int64_t* shape = problem_.bias_shape;
    const int64_t rows = min(Shape::kQueries, shape[2] - row);
    for (int64_t i = 0; i < rows * sum_columns_; i += V::kLanes)
      V::store(scratch.sum + i, V::zero());
    const KeyRange batches =
        shape[0] == 1 ? KeyRange{0, problem_.batch} : KeyRange{bias_batch, bias_batch + 1};
    const KeyRange heads =
        shape[1] == 1 ? KeyRange{0, problem_.heads} : KeyRange{bias_head, bias_head + 1};
    for (int64_t batch = batches.begin; batch < batches.end; ++batch) {
      const Sequence sequence = sequence_of(problem_, arguments, batch);
      const int64_t row_end = shape[2] == 1 ? sequence.q_len : min(row + rows, sequence.q_len);
      for (int64_t head = heads.begin; head < heads.end; ++head)
        for (int64_t i = row; i < row_end; i += Shape::kQueries)
          add_queries(arguments, scratch, sequence, batch, head, i,
                      min(Shape::kQueries, row_end - i));
    }
    for (int64_t i = 0; i < rows; ++i)
      write(arguments.grad_bias, bias_batch, bias_head, row + i, scratch.sum + i * sum_columns_);
  }

  // dS of some queries of one head against all keys.
  void add_queries(const AttentionBackward& arguments, Scratch& scratch, Sequence sequence,
                   int64_t batch, int64_t head, int64_t row, int64_t rows) const {
    const ScoreModifier<V> modifier{problem_,
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
      if (!scratch.tile.score(shape_, modifier, arguments.dropout, scratch.queries, keys, 0, true))
        continue;
      for (int64_t band = 0; band < Shape::kBands; ++band) add_band(scratch, band);
    }
  }

  void add_band(const Scratch& scratch, int64_t band) const {
    const int64_t column = band * Shape::kBand;
    const int64_t columns = min(Shape::kBand, scratch.keys.count - column);
    const auto meeting = scratch.tile.rows_of(band);
    for (int64_t i = meeting.begin; i < meeting.end; ++i) {
      const Scalar* from = scratch.tile.grad_score(i, column);
      Scalar* to = scratch.sum + (problem_.bias_shape[2] == 1 ? 0 : i * sum_columns_) +
                   scratch.keys.begin + column;
      int64_t j = 0;
      for (; j + V::kLanes <= columns; j += V::kLanes)
        V::store(to + j, V::add(V::load(to + j), V::load(from + j)));
      for (; j < columns; ++j) to[j] += from[j];
    }
  }

  void write(const Tensor& gradient, int64_t batch, int64_t head, int64_t row, Scalar* sum) const {
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
      write_row<V>(sum, Scalar{1}, count, gradient.as<double>() + offset, gradient.stride[3]);
    } else {
      switch (gradient.dtype) {
        case DType::kF16:
          return write_row<V>(sum, Scalar{1}, count, gradient.as<f16>() + offset,
                              gradient.stride[3]);
        case DType::kBF16:
          return write_row<V>(sum, Scalar{1}, count, gradient.as<bf16>() + offset,
                              gradient.stride[3]);
        default:
          return write_row<V>(sum, Scalar{1}, count, gradient.as<float>() + offset,
                              gradient.stride[3]);
      }
    }
  }

  const AttentionProblem& problem_;
  Shape shape_;
  std::byte* workspace_;
  int64_t sum_columns_ = 0;
  size_t scratch_bytes_ = 0, bytes_ = 0;
};

}  // namespace perseid::cpu::PERSEID_ISA
