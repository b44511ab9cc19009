// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward for few queries, as in decoding: every key and value is used once or a few
// times, so the time is that of reading them. Nothing is packed; keys are read where they lie.
//
//   phase 1   every (batch, kv head, chunk of 512 keys), for all the queries that read that kv
//   head:
//               in blocks of 64 keys: S = scale q k^T, m' = max(m, S), O = O exp2(m - m') + exp2(S
//               - m') V
//             leaves the chunk's m, l and O in the workspace
//   phase 2   every query row merges its chunks in order: out = sum_c exp2(m_c - m) O_c / sum_c
//   exp2(m_c - m) l_c
//
// Chunks depend on the problem alone, so results are the same for any number of threads.
//
// Algorithm: Flash-Decoding (Dao, Haziza, Massa, Sizov, 2023).
#pragma once

#include "cpu/executor.hpp"
#include "cpu/simd/attention_common.hpp"

namespace perseid::cpu::PERSEID_ISA {

template <class V, class T>
class AttentionDecodeKernel {
  using Scalar = typename V::Scalar;

  static constexpr int64_t kChunk = 512;
  static constexpr int64_t kBlock = 64;
  // Rows of a block whose memory is asked for ahead of its use.
  static constexpr int64_t kAhead = 4;

  // What one chunk found out about one row.
  struct Partial {
    Scalar* max;  // in units of log2
    Scalar* sum;
    Scalar* out;  // [value_columns]
  };
  struct Scratch {
    Scalar* query;  // [rows, head_columns]
    Scalar* score;  // [rows, kBlock]
    uint8_t* keep;  // [rows of a dropout tile, kBlock]
  };

 public:
  AttentionDecodeKernel(const AttentionProblem& problem, int32_t workers, std::byte* workspace)
      : problem_(problem),
        rows_(problem.group() * problem.q_len),
        chunks_(ceil_div(problem.kv_len, kChunk)),
        head_columns_(round_up(problem.head_dim, V::kLanes)),
        value_columns_(round_up(problem.value_dim, V::kLanes)),
        workspace_(workspace) {
    Arena arena(workspace);
    const int64_t partials = problem.batch * problem.kv_heads * chunks_ * rows_;
    max_ = arena.take<Scalar>(partials);
    sum_ = arena.take<Scalar>(partials);
    out_ = arena.take<Scalar>(partials * value_columns_);
    scratch_begin_ = arena.bytes();
    take_scratch(arena);
    scratch_bytes_ = arena.bytes() - scratch_begin_;
    bytes_ = scratch_begin_ + scratch_bytes_ * static_cast<size_t>(workers);
  }

  size_t bytes() const { return bytes_; }

  void run(const AttentionForward& arguments, Executor& executor) const {
    for_each_task(executor, problem_.batch * problem_.kv_heads * chunks_,
                  [&](int64_t task, int32_t worker) {
                    const int64_t head = task / chunks_;
                    attend(arguments, head / problem_.kv_heads, head % problem_.kv_heads,
                           task % chunks_, worker);
                  });
    for_each_task(executor, problem_.batch * problem_.kv_heads, [&](int64_t task, int32_t) {
      for (int64_t r = 0; r < rows_; ++r)
        merge(arguments, task / problem_.kv_heads, task % problem_.kv_heads, r);
    });
  }

 private:
  Scratch take_scratch(Arena& arena) const {
    Scratch scratch;
    scratch.query = arena.take<Scalar>(rows_ * head_columns_);
    scratch.score = arena.take<Scalar>(rows_ * kBlock);
    scratch.keep = problem_.dropout > 0
                       ? arena.take<uint8_t>(round_up(problem_.q_len, kDropoutTileRows) * kBlock)
                       : nullptr;
    return scratch;
  }

  Partial partial(int64_t batch, int64_t kv_head, int64_t chunk, int64_t r) const {
    const int64_t index = ((batch * problem_.kv_heads + kv_head) * chunks_ + chunk) * rows_ + r;
    return {max_ + index, sum_ + index, out_ + index * value_columns_};
  }

  // Row r of a kv head: which query head, which query.
  int64_t head_of(int64_t kv_head, int64_t r) const {
    return kv_head * problem_.group() + r / problem_.q_len;
  }
  int64_t query_of(int64_t r) const { return r % problem_.q_len; }

  void attend(const AttentionForward& arguments, int64_t batch, int64_t kv_head, int64_t chunk,
              int32_t worker) const {
    const Sequence sequence = sequence_of(problem_, arguments, batch);
    Arena arena(workspace_ + scratch_begin_ + static_cast<size_t>(worker) * scratch_bytes_);
    const Scratch scratch = take_scratch(arena);
    for (int64_t r = 0; r < rows_; ++r) {
      const Partial part = partial(batch, kv_head, chunk, r);
      *part.max = -kInfinity;
      *part.sum = 0;
      for (int64_t d = 0; d < value_columns_; d += V::kLanes) V::store(part.out + d, V::zero());
      if (query_of(r) >= sequence.q_len) continue;
      const Strided<T> query = head_view<T>(arguments.query, problem_.ragged, batch,
                                            head_of(kv_head, r), sequence.q_begin + query_of(r));
      Scalar* row = scratch.query + r * head_columns_;
      read_row<V>(query.data, query.column, problem_.head_dim, row);
      for (int64_t d = problem_.head_dim; d < head_columns_; ++d) row[d] = 0;
    }
    const int64_t end = min((chunk + 1) * kChunk, sequence.kv_len);
    for (int64_t key = chunk * kChunk; key < end; key += kBlock)
      visit(arguments, sequence, scratch, {batch, kv_head, chunk, key, min(kBlock, end - key)});
  }

  struct Place {
    int64_t batch, kv_head, chunk, key, keys;
  };

  void visit(const AttentionForward& arguments, const Sequence& sequence, const Scratch& scratch,
             const Place& at) const {
    if (sequence.q_len == 0) return;
    const int64_t first = visible_keys(problem_, 0, sequence.q_len, sequence.kv_len).begin;
    const int64_t last =
        visible_keys(problem_, sequence.q_len - 1, sequence.q_len, sequence.kv_len).end;
    if (at.key + at.keys <= first || at.key >= last) return;
    const Strided<T> key = head_view<T>(arguments.key, problem_.ragged, at.batch, at.kv_head,
                                        sequence.kv_begin + at.key);
    const Strided<T> value = head_view<T>(arguments.value, problem_.ragged, at.batch, at.kv_head,
                                          sequence.kv_begin + at.key);
    for (int64_t j = 0; j < at.keys; ++j) {
      prefetch(key, j + kAhead, at.keys, problem_.head_dim);
      prefetch(value, j, at.keys, problem_.value_dim);
      for (int64_t r = 0; r < rows_; ++r)
        scratch.score[r * kBlock + j] =
            dot(scratch.query + r * head_columns_, key.data + j * key.row, key.column);
    }
    for (int64_t r = 0; r < rows_; ++r) {
      if (query_of(r) >= sequence.q_len) continue;
      const int64_t head = head_of(at.kv_head, r);
      const ScoreModifier<V> modifier{problem_,
                                      sequence,
                                      arguments.bias,
                                      arguments.visible,
                                      at.batch,
                                      head,
                                      static_cast<Scalar>(problem_.scale * kLog2E)};
      Scalar* score = scratch.score + r * kBlock;
      for (int64_t j = at.keys; j < kBlock; ++j) score[j] = 0;
      const bool plain = modifier.plain(query_of(r), 1, at.key, at.key + kBlock);
      if (!plain) modifier.apply(query_of(r), at.key, kBlock, score);
      const Partial part = partial(at.batch, at.kv_head, at.chunk, r);
      online_softmax(score, plain ? modifier.scale : Scalar{1}, part);
      if (scratch.keep != nullptr) drop(arguments.dropout, at, head, query_of(r), scratch);
      add_values(score, value, at.keys, !plain || scratch.keep != nullptr, part.out);
    }
  }

  static PERSEID_INLINE void prefetch(Strided<T> x, int64_t row, int64_t rows, int64_t dim) {
    if (row >= rows) return;
    constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
    for (int64_t d = 0; d < dim; d += kLine)
      __builtin_prefetch(x.data + row * x.row + d * x.column);
  }

  Scalar dot(const Scalar* query, const T* key, int64_t stride) const {
    const int64_t dim = problem_.head_dim;
    if (stride != 1) {
      Scalar sum = 0;
      for (int64_t d = 0; d < dim; ++d) sum += query[d] * convert<Scalar>(key[d * stride]);
      return sum;
    }
    typename V::Reg sum[2] = {V::zero(), V::zero()};
    int64_t d = 0;
    for (; d + 2 * V::kLanes <= dim; d += 2 * V::kLanes) {
      sum[0] = V::fma(V::load(query + d), V::load(key + d), sum[0]);
      sum[1] = V::fma(V::load(query + d + V::kLanes), V::load(key + d + V::kLanes), sum[1]);
    }
    for (; d + V::kLanes <= dim; d += V::kLanes)
      sum[0] = V::fma(V::load(query + d), V::load(key + d), sum[0]);
    if (d < dim)
      sum[1] =
          V::fma(V::load(query + d), V::load_partial(key + d, static_cast<int>(dim - d)), sum[1]);
    return V::reduce_add(V::add(sum[0], sum[1]));
  }

  // Scores become P; max, sum and out follow the running maximum.
  void online_softmax(Scalar* score, Scalar scale, const Partial& part) const {
    typename V::Reg top = V::load(score);
    for (int64_t j = V::kLanes; j < kBlock; j += V::kLanes) top = V::max(top, V::load(score + j));
    const Scalar raised = perseid::max(*part.max, V::reduce_max(top) * scale);
    // With nothing visible yet the maximum is -inf; any finite stand-in gives exp2(-inf - 0) = 0.
    const Scalar shift = raised == -kInfinity ? Scalar{0} : raised;
    const typename V::Reg factor = V::set1(scale), minus = V::set1(shift);
    typename V::Reg sum = V::zero();
    for (int64_t j = 0; j < kBlock; j += V::kLanes) {
      const typename V::Reg p = exp2<V>(V::fms(V::load(score + j), factor, minus));
      V::store(score + j, p);
      sum = V::add(sum, p);
    }
    if (raised != *part.max) {
      const typename V::Reg shrink = exp2<V>(V::set1(*part.max - shift));
      *part.sum *= V::reduce_max(shrink);
      for (int64_t d = 0; d < value_columns_; d += V::kLanes)
        V::store(part.out + d, V::mul(V::load(part.out + d), shrink));
    }
    *part.max = raised;
    *part.sum += V::reduce_add(sum);
  }

  // P is 0 where dropped; the rescaling of what is kept waits for the end.
  void drop(const Dropout& dropout, const Place& at, int64_t head, int64_t query,
            const Scratch& scratch) const {
    const int64_t tile = query / kDropoutTileRows * kDropoutTileRows;
    dropout_block(dropout, at.batch * problem_.heads + head, tile, kDropoutTileRows, at.key, kBlock,
                  scratch.keep, kBlock);
    const int64_t r = (head - at.kv_head * problem_.group()) * problem_.q_len + query;
    const uint8_t* keep = scratch.keep + (query - tile) * kBlock;
    Scalar* score = scratch.score + r * kBlock;
    for (int64_t j = 0; j < kBlock; ++j) score[j] = keep[j] != 0 ? score[j] : Scalar{0};
  }

  // out += p V. With `sparse`, keys of weight 0 are passed over: a masked value may hold NaN.
  void add_values(const Scalar* p, Strided<T> value, int64_t keys, bool sparse, Scalar* out) const {
    int64_t j = 0;
    if (!sparse && value.column == 1) {
      for (; j + 4 <= keys; j += 4) add_four(p + j, value.data + j * value.row, value.row, out);
    }
    for (; j < keys; ++j) {
      if (sparse && p[j] == 0) continue;
      add_one(p[j], value.data + j * value.row, value.column, out);
    }
  }

  void add_four(const Scalar* p, const T* value, int64_t row, Scalar* out) const {
    const int64_t dim = problem_.value_dim;
    const typename V::Reg weight[4] = {V::set1(p[0]), V::set1(p[1]), V::set1(p[2]), V::set1(p[3])};
    int64_t d = 0;
    for (; d + V::kLanes <= dim; d += V::kLanes) {
      typename V::Reg sum = V::load(out + d);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) sum = V::fma(weight[i], V::load(value + i * row + d), sum);
      V::store(out + d, sum);
    }
    if (d == dim) return;
    typename V::Reg sum = V::load(out + d);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      sum = V::fma(weight[i], V::load_partial(value + i * row + d, static_cast<int>(dim - d)), sum);
    V::store(out + d, sum);
  }

  void add_one(Scalar p, const T* value, int64_t stride, Scalar* out) const {
    const int64_t dim = problem_.value_dim;
    int64_t d = 0;
    if (stride == 1) {
      const typename V::Reg weight = V::set1(p);
      for (; d + V::kLanes <= dim; d += V::kLanes)
        V::store(out + d, V::fma(weight, V::load(value + d), V::load(out + d)));
    }
    for (; d < dim; ++d) out[d] += p * convert<Scalar>(value[d * stride]);
  }

  void merge(const AttentionForward& arguments, int64_t batch, int64_t kv_head, int64_t r) const {
    const Sequence sequence = sequence_of(problem_, arguments, batch);
    const int64_t head = head_of(kv_head, r), query = query_of(r);
    if (query >= sequence.q_len) return;
    Scalar max = -kInfinity, sum = 0;
    for (int64_t c = 0; c < chunks_; ++c)
      max = perseid::max(max, *partial(batch, kv_head, c, r).max);
    const Scalar shift = max == -kInfinity ? Scalar{0} : max;
    const StridedOutput<T> out =
        output_view<T>(arguments.out, problem_.ragged, batch, head, sequence.q_begin + query);
    // The sum gathers in the first chunk's place, or in nothing where there are no keys at all.
    Scalar* total = chunks_ > 0 ? partial(batch, kv_head, 0, r).out : nullptr;
    for (int64_t c = 0; c < chunks_; ++c) {
      const Partial part = partial(batch, kv_head, c, r);
      const typename V::Reg factor = exp2<V>(V::set1(*part.max - shift));
      sum += *part.sum * V::reduce_max(factor);
      for (int64_t d = 0; d < value_columns_; d += V::kLanes) {
        const typename V::Reg scaled = V::mul(V::load(part.out + d), factor);
        V::store(total + d, c == 0 ? scaled : V::add(V::load(total + d), scaled));
      }
    }
    if (sum == 0) {
      for (int64_t d = 0; d < problem_.value_dim; ++d) out.data[d * out.column] = T{};
    } else {
      write_row<V>(total, static_cast<Scalar>(256.0 / arguments.dropout.threshold) / sum,
                   problem_.value_dim, out.data, out.column);
    }
    if (arguments.lse.present())
      *lse_row<Scalar>(arguments.lse, problem_.ragged, batch, head, sequence.q_begin + query) =
          natural_lse(max, sum);
  }

  static constexpr Scalar kInfinity = static_cast<Scalar>(__builtin_inf());

  const AttentionProblem& problem_;
  int64_t rows_;  // queries that read one kv head
  int64_t chunks_;
  int64_t head_columns_, value_columns_;  // in whole vectors
  std::byte* workspace_;
  Scalar* max_ = nullptr;
  Scalar* sum_ = nullptr;
  Scalar* out_ = nullptr;
  size_t scratch_begin_ = 0, scratch_bytes_ = 0, bytes_ = 0;
};

inline size_t attention_decode_workspace(const AttentionProblem& problem, int32_t workers) {
  size_t bytes = 0;
  with_dot(problem.dtype, [&]<class Dot, class T>() {
    bytes = AttentionDecodeKernel<typename Dot::Vector, T>(problem, workers, nullptr).bytes();
  });
  return bytes;
}

inline void attention_decode(const AttentionProblem& problem, const AttentionForward& arguments,
                             const Execution& execution) {
  with_dot(problem.dtype, [&]<class Dot, class T>() {
    AttentionDecodeKernel<typename Dot::Vector, T>(problem, execution.executor.workers(),
                                                   execution.workspace)
        .run(arguments, execution.executor);
  });
}

}  // namespace perseid::cpu::PERSEID_ISA
