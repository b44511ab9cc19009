// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward: the score matrix is recomputed by tiles (attention_backward_tile.hpp), each
// of which contributes to all three gradients: five products in one pass.
//
//   a task:  for each query head of its kv head:       Q, dO packed; delta, lse
//              for each chunk of keys, at most 8:       dQ of the chunk, [q_len, head_dim]
//                for each block of 192 keys:            K, V packed; dK, dV of it, in the L2 cache
//                  for each block of queries:           a tile
//
// The sums are always taken in this order: a query head's dQ by chunks, a key head's dK and dV by
// query heads. A task is a (batch, kv head) where there are enough of those. Where there are few,
// every query head, and then every chunk, is a task of its own with sums of its own, which a second
// phase adds up in the order above. So the result is the same bit for bit, whatever the size of the
// batch and the number of threads; memory is linear in the sequence's length.
//
// dBias is a pass of its own (attention_backward_bias.hpp).
//
// Algorithm: Dao et al., arXiv:2205.14135 and 2307.08691.
#pragma once

#include "cpu/simd/attention_backward_bias.hpp"
#include "cpu/simd/attention_backward_tile.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

template <class Dot, class T>
class AttentionBackwardKernel {
  using V = typename Dot::Vector;
  using Scalar = typename V::Scalar;
  using Shape = BackwardShape<Dot>;

  static constexpr int64_t kMaxChunks = 8;  // of one sequence
  static constexpr int64_t kEnoughTasks = 16;
  static constexpr int64_t kReducedRows = 128;  // rows of a task of the second phase

  // Scratch of one worker.
  struct Scratch {
    BackwardQueries<Dot, T> queries;
    BackwardKeys<Dot, T> keys;
    BackwardTile<Dot, T> tile;
    Scalar *block_key, *block_value;   // dK and dV of a block of keys
    Scalar *head_query, *chunk_query;  // dQ of a head, and of one of its chunks of keys
    Scalar *group_key, *group_value;   // dK and dV over the group: [kv_len, columns]
  };

  // dK or dV: its sums over a block of keys of one query head, over the group of heads, and of
  // every head where each is a task of its own.
  struct KeyGradient {
    const Tensor& gradient;
    Scalar *block, *group, *split;
    int64_t dim, columns;
    Scalar factor;
    bool accumulates;
  };

  // A (batch, query head) and what the loops below it share.
  struct Head {
    Sequence sequence;
    int64_t batch, head, kv_head;
    ScoreChain<V> chain;
    const Executor& executor;
  };

 public:
  static constexpr int64_t kChunk = 512;  // keys of a chunk, at least

  AttentionBackwardKernel(const AttentionProblem& problem, int32_t workers, std::byte* workspace)
      : problem_(problem), shape_(problem), workspace_(workspace) {
    split_heads_ = problem.group() > 1 && problem.batch * problem.kv_heads < kEnoughTasks;
    split_chunks_ = chunks_of(problem.kv_len) > 1 && problem.batch * problem.heads < kEnoughTasks;
    query_rows_ = problem.ragged ? problem.total_q : problem.batch * problem.q_len;
    key_rows_ = problem.ragged ? problem.total_kv : problem.batch * problem.kv_len;
    Arena arena(workspace);
    if (split_chunks_ && problem.grad_query)
      split_query_ = arena.take<Scalar>(chunks_of(problem.kv_len) * problem.heads * query_rows_ *
                                        shape_.head_columns);
    if (split_heads_ && problem.grad_key)
      split_key_ = arena.take<Scalar>(problem.heads * key_rows_ * shape_.head_columns);
    if (split_heads_ && problem.grad_value)
      split_value_ = arena.take<Scalar>(problem.heads * key_rows_ * shape_.value_columns);
    scratch_begin_ = arena.bytes();
    Arena one(nullptr);
    take_scratch(one);
    scratch_bytes_ = one.bytes();
    bytes_ = scratch_begin_ + scratch_bytes_ * static_cast<size_t>(workers);
  }

  size_t bytes() const { return bytes_; }

  void run(const AttentionBackward& arguments, Executor& executor) const {
    if (arguments.grad_query.empty() && arguments.grad_key.empty() && arguments.grad_value.empty())
      return;
    const int64_t heads_each = split_heads_ ? problem_.heads : problem_.kv_heads;
    const int64_t heads = problem_.batch * heads_each;
    const int64_t chunks = split_chunks_ ? chunks_of(problem_.kv_len) : 1;
    // All heads' first chunks go first: under a causal mask they meet the most queries.
    for_each_task(executor, heads * chunks, [&](int64_t task, int32_t worker) {
      Arena arena(workspace_ + scratch_begin_ + static_cast<size_t>(worker) * scratch_bytes_);
      Scratch scratch = take_scratch(arena);
      const int64_t chunk = split_chunks_ ? task / heads : -1;
      const int64_t batch = task % heads / heads_each, head = task % heads_each;
      if (split_heads_) {
        visit_head(arguments, scratch, executor, batch, head, chunk);
      } else {
        for (int64_t i = 0; i < problem_.group(); ++i)
          visit_head(arguments, scratch, executor, batch, head * problem_.group() + i, chunk);
      }
    });
    if (split_chunks_ && arguments.grad_query.present()) reduce_chunks(arguments, executor);
    if (split_heads_) {
      reduce_heads(arguments, executor, key_gradient(arguments, nullptr, nullptr));
      reduce_heads(arguments, executor, value_gradient(arguments, nullptr, nullptr));
    }
  }

 private:
  Scratch take_scratch(Arena& arena) const {
    const bool own_heads = problem_.group() > 1 && !split_heads_;
    return {
        BackwardQueries<Dot, T>(shape_, problem_.q_len, arena),
        BackwardKeys<Dot, T>(shape_, arena),
        BackwardTile<Dot, T>(problem_.modifier.kind != ScoreModifierKind::kNone, arena),
        take(arena, problem_.grad_key, Shape::kKeys * shape_.head_columns),
        take(arena, problem_.grad_value, Shape::kKeys * shape_.value_columns),
        take(arena, problem_.grad_query && !split_chunks_, problem_.q_len * shape_.head_columns),
        take(arena, problem_.grad_query && !split_chunks_ && chunks_of(problem_.kv_len) > 1,
             problem_.q_len * shape_.head_columns),
        take(arena, problem_.grad_key && own_heads, problem_.kv_len * shape_.head_columns),
        take(arena, problem_.grad_value && own_heads, problem_.kv_len * shape_.value_columns)};
  }
  static Scalar* take(Arena& arena, bool wanted, int64_t count) {
    return wanted ? arena.take<Scalar>(count) : nullptr;
  }

  // By the sequence's own length alone, so that its bits do not depend on the batch.
  static int64_t chunks_of(int64_t kv_len) {
    return clamp(ceil_div(kv_len, kChunk), int64_t{1}, kMaxChunks);
  }
  static int64_t chunk_length(int64_t kv_len) {
    return max(round_up(ceil_div(kv_len, chunks_of(kv_len)), Shape::kBand), Shape::kBand);
  }

  // The first row of a sequence in a tensor of all sequences' rows.
  int64_t first_query(const Sequence& sequence, int64_t batch) const {
    return problem_.ragged ? sequence.q_begin : batch * problem_.q_len;
  }
  int64_t first_key(const Sequence& sequence, int64_t batch) const {
    return problem_.ragged ? sequence.kv_begin : batch * problem_.kv_len;
  }
  Scalar* split_query(const Head& head, int64_t chunk) const {
    return split_query_ + ((chunk * problem_.heads + head.head) * query_rows_ +
                           first_query(head.sequence, head.batch)) *
                              shape_.head_columns;
  }

  // The factor by which dQ and dK are multiplied when they are written.
  Scalar score_factor() const { return static_cast<Scalar>(problem_.scale); }
  KeyGradient key_gradient(const AttentionBackward& arguments, Scalar* block, Scalar* group) const {
    return {arguments.grad_key,
            block,
            group,
            split_key_,
            shape_.head_dim,
            shape_.head_columns,
            score_factor(),
            problem_.accumulate_key};
  }
  KeyGradient value_gradient(const AttentionBackward& arguments, Scalar* block,
                             Scalar* group) const {
    return {arguments.grad_value,
            block,
            group,
            split_value_,
            shape_.value_dim,
            shape_.value_columns,
            static_cast<Scalar>(arguments.dropout.rescale()),
            problem_.accumulate_value};
  }

  // One query head: all of its chunks, or the one that is the task's.
  void visit_head(const AttentionBackward& arguments, Scratch& scratch, const Executor& executor,
                  int64_t batch, int64_t query_head, int64_t chunk) const {
    const Sequence sequence = sequence_of(problem_, arguments, batch);
    const Head head{sequence,
                    batch,
                    query_head,
                    query_head / problem_.group(),
                    {problem_, sequence, arguments.bias, arguments.visible, batch, query_head,
                     static_cast<Scalar>(problem_.scale * kLog2E)},
                    executor};
    if (chunk <= 0 && query_head % problem_.group() == 0) clear_unused_keys(arguments, head);
    const int64_t length = chunk_length(sequence.kv_len);
    if (chunk > 0 && chunk * length >= sequence.kv_len) return;
    scratch.queries.rows = sequence.q_len;
    const int64_t begin = max(chunk, int64_t{0}) * length;
    const int64_t end = chunk < 0 ? sequence.kv_len : min(begin + length, sequence.kv_len);
    if (sees(head, begin, end))
      scratch.queries.pack(shape_, problem_, arguments, batch, query_head, sequence.q_begin);
    if (chunk >= 0) {
      visit_chunk(arguments, scratch, head, begin, end,
                  arguments.grad_query.present() ? split_query(head, chunk) : nullptr, nullptr);
      return;
    }
    const bool wanted = arguments.grad_query.present();
    visit_chunk(arguments, scratch, head, 0, min(length, sequence.kv_len),
                wanted ? scratch.head_query : nullptr, nullptr);
    for (int64_t key = length; key < sequence.kv_len; key += length)
      visit_chunk(arguments, scratch, head, key, min(key + length, sequence.kv_len),
                  wanted ? scratch.chunk_query : nullptr, scratch.head_query);
    if (wanted)
      write(arguments.grad_query, batch, query_head, sequence.q_begin, sequence.q_len,
            scratch.head_query, shape_.head_dim, shape_.head_columns, score_factor(),
            problem_.accumulate_query);
  }

  // Whether some query may see keys [begin, end). Where queries are one piece of a sequence, they
  // may see few.
  bool sees(const Head& head, int64_t begin, int64_t end) const {
    const KeyRange seen = seen_keys(problem_, head.sequence.q_len, head.sequence.kv_len);
    return begin < seen.end && seen.begin < end;
  }

  // dQ of keys [begin, end) into grad_query, and that onto `total` if there is one; their dK and dV
  // to where this head's belong.
  void visit_chunk(const AttentionBackward& arguments, Scratch& scratch, const Head& head,
                   int64_t begin, int64_t end, Scalar* grad_query, Scalar* total) const {
    const KeyGradient key = key_gradient(arguments, scratch.block_key, scratch.group_key);
    const KeyGradient value = value_gradient(arguments, scratch.block_value, scratch.group_value);
    const BackwardSums<Scalar> sums{grad_query, key.gradient.present() ? key.block : nullptr,
                                    value.gradient.present() ? value.block : nullptr};
    if (begin >= end && grad_query != nullptr)
      clear(grad_query, head.sequence.q_len * shape_.head_columns);
    BackwardKeys<Dot, T>& keys = scratch.keys;
    for (keys.begin = begin; keys.begin < end; keys.begin += Shape::kKeys) {
      keys.count = min(Shape::kKeys, end - keys.begin);
      const bool is_seen = sees(head, keys.begin, keys.begin + keys.count);
      if (is_seen)
        keys.pack(shape_, problem_, arguments, head.batch, head.kv_head, head.sequence.kv_begin);
      if (sums.key != nullptr) clear(sums.key, keys.count * key.columns);
      if (sums.value != nullptr) clear(sums.value, keys.count * value.columns);
      for (int64_t row = 0; row < scratch.queries.rows; row += Shape::kQueries) {
        if (head.executor.stopped()) return;
        // dQ is long: clear it and add it to the total while a tile has it in the cache.
        const int64_t offset = row * shape_.head_columns;
        const int64_t count =
            min(Shape::kQueries, scratch.queries.rows - row) * shape_.head_columns;
        if (grad_query != nullptr && keys.begin == begin) clear(grad_query + offset, count);
        if (scratch.tile.score(shape_, head.chain, arguments.dropout, scratch.queries, keys, row,
                               sums.query != nullptr || sums.key != nullptr))
          scratch.tile.accumulate(shape_, scratch.queries, keys, sums);
        if (grad_query != nullptr && total != nullptr && keys.begin + keys.count == end)
          add(grad_query + offset, count, total + offset);
      }
      const auto finish = [&](const KeyGradient& gradient) {
        // Zeros are not added.
        if (is_seen || split_heads_ || !gradient.accumulates) finish_keys(gradient, head, keys);
      };
      if (sums.key != nullptr) finish(key);
      if (sums.value != nullptr) finish(value);
    }
  }

  // A block's dK or dV of one query head: added to those of the group, and written after the last.
  void finish_keys(const KeyGradient& to, const Head& head,
                   const BackwardKeys<Dot, T>& keys) const {
    const int64_t count = keys.count * to.columns;
    if (split_heads_) {
      const int64_t row = head.head * key_rows_ + first_key(head.sequence, head.batch) + keys.begin;
      __builtin_memcpy(to.split + row * to.columns, to.block,
                       static_cast<size_t>(count) * sizeof(Scalar));
      return;
    }
    const int64_t member = head.head % problem_.group();
    const Scalar* sum = to.block;
    if (problem_.group() > 1) {
      Scalar* group = to.group + keys.begin * to.columns;
      if (member == 0) {
        __builtin_memcpy(group, to.block, static_cast<size_t>(count) * sizeof(Scalar));
      } else {
        add(to.block, count, group);
      }
      sum = group;
    }
    if (member == problem_.group() - 1)
      write(to.gradient, head.batch, head.kv_head, head.sequence.kv_begin + keys.begin, keys.count,
            sum, to.dim, to.columns, to.factor, to.accumulates);
  }

  void reduce_chunks(const AttentionBackward& arguments, Executor& executor) const {
    const int64_t blocks = ceil_div(problem_.q_len, kReducedRows);
    for_each_task(executor, problem_.batch * problem_.heads * blocks, [&](int64_t task, int32_t) {
      const int64_t batch = task / blocks / problem_.heads,
                    query_head = task / blocks % problem_.heads;
      const Sequence sequence = sequence_of(problem_, arguments, batch);
      const int64_t row = task % blocks * kReducedRows;
      const int64_t rows = min(kReducedRows, sequence.q_len - row);
      if (rows <= 0) return;
      const int64_t row_begin = first_query(sequence, batch) + row;
      Scalar* sum = split_query_ + (query_head * query_rows_ + row_begin) * shape_.head_columns;
      const int64_t length = chunk_length(sequence.kv_len);
      const Scalar* other = sum;
      for (int64_t key = length; key < sequence.kv_len; key += length) {
        other += problem_.heads * query_rows_ * shape_.head_columns;
        add(other, rows * shape_.head_columns, sum);
      }
      write(arguments.grad_query, batch, query_head, sequence.q_begin + row, rows, sum,
            shape_.head_dim, shape_.head_columns, score_factor(), problem_.accumulate_query);
    });
  }

  void reduce_heads(const AttentionBackward& arguments, Executor& executor,
                    const KeyGradient& to) const {
    if (!to.gradient.present()) return;
    const int64_t blocks = ceil_div(problem_.kv_len, kReducedRows);
    for_each_task(
        executor, problem_.batch * problem_.kv_heads * blocks, [&](int64_t task, int32_t) {
          const int64_t batch = task / blocks / problem_.kv_heads,
                        kv_head = task / blocks % problem_.kv_heads;
          const Sequence sequence = sequence_of(problem_, arguments, batch);
          const int64_t key = task % blocks * kReducedRows;
          const int64_t rows = min(kReducedRows, sequence.kv_len - key);
          if (rows <= 0) return;
          const int64_t head = kv_head * problem_.group();
          Scalar* sum =
              to.split + (head * key_rows_ + first_key(sequence, batch) + key) * to.columns;
          for (int64_t i = 1; i < problem_.group(); ++i)
            add(sum + i * key_rows_ * to.columns, rows * to.columns, sum);
          write(to.gradient, batch, kv_head, sequence.kv_begin + key, rows, sum, to.dim, to.columns,
                to.factor, to.accumulates);
        });
  }

  // kv_lens may mask keys that a sequence owns: their gradients are 0.
  void clear_unused_keys(const AttentionBackward& arguments, const Head& head) const {
    if (!problem_.kv_lens) return;
    const int64_t owned = problem_.ragged ? read_length(arguments.cu_seqlens_kv, head.batch + 1) -
                                                head.sequence.kv_begin
                                          : problem_.kv_len;
    const auto clear_rows = [&](const Tensor& gradient, int64_t dim, bool accumulates) {
      if (!gradient.present() || accumulates) return;
      with_output(gradient, [&]<class Out>(Out) {
        const StridedOutput<Out> to = output_view<Out>(gradient, problem_.ragged, head.batch,
                                                       head.kv_head, head.sequence.kv_begin);
        for (int64_t i = head.sequence.kv_len; i < owned; ++i)
          for (int64_t j = 0; j < dim; ++j) to.data[i * to.row + j * to.column] = Out{};
      });
    };
    clear_rows(arguments.grad_key, shape_.head_dim, problem_.accumulate_key);
    clear_rows(arguments.grad_value, shape_.value_dim, problem_.accumulate_value);
  }

  void write(const Tensor& gradient, int64_t batch, int64_t head, int64_t row, int64_t rows,
             const Scalar* sums, int64_t dim, int64_t columns, Scalar factor,
             bool accumulates) const {
    with_output(gradient, [&]<class Out>(Out) {
      const StridedOutput<Out> to = output_view<Out>(gradient, problem_.ragged, batch, head, row);
      for (int64_t i = 0; i < rows; ++i) {
        const Scalar* from = sums + i * columns;
        if (accumulates) {
          add_row<V>(from, factor, dim, to.data + i * to.row, to.column);
        } else {
          write_row<V>(from, factor, dim, to.data + i * to.row, to.column);
        }
      }
    });
  }
  // The gradient's type is T, or f32 where the problem says so.
  template <class Body>
  static void with_output(const Tensor& gradient, const Body& body) {
    if constexpr (sizeof(T) < sizeof(Scalar)) {
      if (gradient.dtype == DType::kF32) return body(Scalar{});
    }
    body(T{});
  }

  static void add(const Scalar* from, int64_t count, Scalar* to) {
    for (int64_t i = 0; i < count; i += V::kLanes)
      V::store(to + i, V::add(V::load(to + i), V::load(from + i)));
  }
  static void clear(Scalar* values, int64_t count) {
    for (int64_t i = 0; i < count; i += V::kLanes) V::store(values + i, V::zero());
  }

  const AttentionProblem& problem_;
  Shape shape_;
  std::byte* workspace_;
  bool split_heads_, split_chunks_;  // every query head, every chunk of keys is a task of its own
  int64_t query_rows_, key_rows_;    // of a head over the whole batch
  Scalar* split_query_ = nullptr;    // [chunks, heads, query_rows_, head_columns]
  Scalar* split_key_ = nullptr;      // [heads, key_rows_, head_columns]
  Scalar* split_value_ = nullptr;    // [heads, key_rows_, value_columns]
  size_t scratch_begin_ = 0, scratch_bytes_ = 0, bytes_ = 0;
};

// visitor.template operator()<Dot, ExactDot, T>() for the products of a dtype; ExactDot rounds no
// operand.
template <class Visitor>
auto visit_backward_types(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DType::kF16:
      return visitor.template operator()<F32Dot, F32Dot, f16>();
    case DType::kBF16:
      return visitor.template operator()<DotOfBf16, F32Dot, bf16>();
    case DType::kF32:
      return visitor.template operator()<F32Dot, F32Dot, float>();
    default:
      return visitor.template operator()<F64Dot, F64Dot, double>();
  }
}

inline size_t attention_backward_workspace(const AttentionProblem& problem, int32_t workers) {
  return visit_backward_types(problem.dtype, [&]<class Dot, class ExactDot, class T>() {
    using Products = AttentionBackwardKernel<Dot, T>;
    using Bias = AttentionBackwardBias<ExactDot, T>;
    const bool products = problem.grad_query || problem.grad_key || problem.grad_value;
    const auto bytes_of = [&](const AttentionProblem& p) {
      return max(products ? Products(p, workers, nullptr).bytes() : size_t{0},
                 p.grad_bias ? Bias(p, workers, nullptr).bytes() : size_t{0});
    };
    size_t most = bytes_of(problem);
    // Fewer keys are not split, and few blocks of queries are, which may need more.
    for (int64_t blocks = 1; problem.max_lengths && blocks <= Bias::kEnoughTasks; ++blocks)
      for (const int64_t keys : {Products::kChunk, problem.kv_len})
        most = max(most,
                   bytes_of(with_lengths(
                       problem, {min(problem.q_len, blocks * Bias::kBlockQueries),
                                 min(problem.kv_len, keys), problem.total_q, problem.total_kv})));
    return most;
  });
}

inline void attention_backward(const AttentionProblem& problem, const AttentionBackward& arguments,
                               const Execution& execution) {
  visit_backward_types(problem.dtype, [&]<class Dot, class ExactDot, class T>() {
    const int32_t workers = execution.executor.workers();
    if (arguments.grad_query.present() || arguments.grad_key.present() ||
        arguments.grad_value.present())
      AttentionBackwardKernel<Dot, T>(problem, workers, execution.workspace)
          .run(arguments, execution.executor);
    if (arguments.grad_bias.present())
      AttentionBackwardBias<ExactDot, T>(problem, workers, execution.workspace)
          .run(arguments, execution.executor);
  });
}

}  // namespace perseid::internal::cpu::PERSEID_ISA
