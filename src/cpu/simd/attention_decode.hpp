// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward for few queries, as in decoding: every key and value is used once or a few
// times, so reading them bounds the speed. Nothing is packed.
//
//   phase 1   every (batch, kv head, chunk of 512 keys), for all queries that read that kv head,
//             in blocks of 64 keys:
//               S = scale q k^T,  m' = max(m, S),  O = O exp2(m - m') + exp2(S - m') V
//             stores the chunk's m, l and O in the workspace
//   phase 2   every query row merges its chunks in order:
//               out = sum_c exp2(m_c - m) O_c / sum_c exp2(m_c - m) l_c
//
// If the heads of a key are contiguous, a task takes all of them, key by key: it then reads one
// long range, which the hardware prefetches, instead of a piece of every page.
//
// Chunks depend on the problem alone, so results are the same for any number of threads. Where keys
// and values arrive in chunks (those of the plan, which may be any), a task waits for the keys that
// it reads. Tasks are taken in the order of visits, all sequences and heads together; they are
// merged as ever, so that results are those of the plan without chunks for any pivot.
//
// Algorithm: Flash-Decoding (Dao, Haziza, Massa, Sizov, 2023).
#pragma once

#include <atomic>

#include "cpu/executor.hpp"
#include "cpu/simd/attention_common.hpp"
#include "cpu/waits.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

template <class V, class T>
class AttentionDecodeKernel {
  using Scalar = typename V::Scalar;

  static constexpr int64_t kChunk = 512;
  static constexpr int64_t kBlock = 64;
  static constexpr int64_t kTogether = 4;  // keys whose values are added at once
  // Prefetch distance of keys, in bytes: more than the loads in flight. Values are prefetched while
  // the scores of their keys are computed, so that both streams are read at once; head by head,
  // since all heads of a key exceed the loads in flight.
  static constexpr int64_t kAheadBytes = 8192;

  // The partial result of a row over one chunk.
  struct Partial {
    Scalar* max;  // in units of log2
    Scalar* sum;
    Scalar* out;  // [value_columns]
  };
  // Sparse: some keys of the block have weight 0, and then a masked value may hold NaN.
  enum class Weights : uint8_t { kDense, kSparse, kAbsent };
  struct Scratch {
    Scalar* query;     // [kv_heads, rows, head_columns]
    Scalar* score;     // [kv_heads, rows, kBlock]
    Weights* weights;  // [kv_heads, rows], of the block
    uint8_t* keep;     // [rows of a dropout tile, kBlock]
  };
  // Keys [key, key + keys) of a chunk, for some kv heads. No query sees the first `hidden`.
  struct KeyBlock {
    int64_t batch, head, heads, chunk, key, keys, hidden = 0;
  };

  // Rows of keys or of values, for several heads, and their prefetch.
  struct Stream {
    Strided<T> rows;
    int64_t head, heads, dim;

    int64_t ahead() const {
      const int64_t bytes = heads * dim * static_cast<int64_t>(sizeof(T));
      return clamp(kAheadBytes / max(bytes, int64_t{1}), int64_t{1}, kBlock / 2);
    }
    void fetch(int64_t row, int64_t h) const {
      constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
      for (int64_t d = 0; d < dim; d += kLine)
        __builtin_prefetch(rows.data + row * rows.row + h * head + d * rows.column);
    }
  };

 public:
  AttentionDecodeKernel(const AttentionProblem& problem, int32_t workers, std::byte* workspace)
      : problem_(problem),
        rows_(problem.group() * problem.q_len),
        chunk_(chunk_of(problem)),
        chunks_(ceil_div(problem.kv_len, chunk_)),
        head_columns_(round_up(problem.head_dim, V::kLanes)),
        value_columns_(round_up(problem.value_dim, V::kLanes)),
        workspace_(workspace) {
    Arena arena(workspace);
    const int64_t partials = problem.batch * problem.kv_heads * most_chunks(problem) * rows_;
    max_ = arena.take<Scalar>(partials);
    sum_ = arena.take<Scalar>(partials);
    out_ = arena.take<Scalar>(partials * value_columns_);
    scratch_begin_ = arena.bytes();
    take_scratch(arena);
    scratch_bytes_ = arena.bytes() - scratch_begin_;
    bytes_ = scratch_begin_ + scratch_bytes_ * static_cast<size_t>(workers);
  }

  size_t bytes() const { return bytes_; }

  // `waits`: null where all keys are present.
  void run(const AttentionForward& arguments, Executor& executor, Waits* waits) const {
    if (arguments.out.empty() && arguments.lse.empty()) return;
    const int64_t heads = heads_of_task(arguments);
    const int64_t teams = problem_.kv_heads / heads, tasks = problem_.batch * teams;
    std::atomic<int64_t> next{0};
    for_each_task(executor, tasks * chunks_, [&](int64_t task, int32_t worker) {
      int64_t team = task / chunks_, chunk = task % chunks_;
      if (waits != nullptr) {
        const int64_t drawn = next.fetch_add(1, std::memory_order_relaxed);
        team = drawn % tasks;
        chunk = await_chunk(arguments, team / teams, drawn / tasks, *waits);
        if (chunk < 0) return;
      }
      attend(arguments, {team / teams, team % teams * heads, heads, chunk, 0, 0}, worker);
      if (waits != nullptr) waits->rest();
    });
    if (waits != nullptr && waits->ended()) return;
    for_each_task(executor, problem_.batch * problem_.kv_heads, [&](int64_t task, int32_t) {
      for (int64_t r = 0; r < rows_; ++r)
        merge(arguments, task / problem_.kv_heads, task % problem_.kv_heads, r);
    });
  }

 private:
  // Keys of a chunk, in whole blocks.
  static int64_t chunk_of(const AttentionProblem& problem) {
    if (problem.num_splits == 0) return kChunk;
    return max(kChunk, round_up(ceil_div(problem.kv_len, problem.num_splits), kBlock));
  }

  // At least as many chunks as these and any fewer keys have: an execution of a plan with
  // max_lengths may have more chunks than the plan's lengths, as chunk_of() rounds.
  static int64_t most_chunks(const AttentionProblem& problem) {
    const int64_t most = ceil_div(problem.kv_len, kChunk);
    return problem.num_splits == 0 ? most : min(most, problem.num_splits);
  }

  Scratch take_scratch(Arena& arena) const {
    Scratch scratch;
    const int64_t rows = problem_.kv_heads * rows_;
    scratch.query = arena.take<Scalar>(rows * head_columns_);
    scratch.score = arena.take<Scalar>(rows * kBlock);
    scratch.weights = arena.take<Weights>(rows);
    scratch.keep = problem_.dropout > 0
                       ? arena.take<uint8_t>(round_up(problem_.q_len, kDropoutTileRows) * kBlock)
                       : nullptr;
    return scratch;
  }

  // All kv heads of a key, if they are contiguous; else one.
  int64_t heads_of_task(const AttentionForward& arguments) const {
    const int64_t* stride = arguments.key.stride + (problem_.ragged ? 0 : 1);
    return stride[0] == problem_.head_dim && stride[1] == problem_.kv_heads * problem_.head_dim
               ? problem_.kv_heads
               : 1;
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

  // Waits for the keys of a sequence's chunk number `visit`, and returns it; -1: drain.
  int64_t await_chunk(const AttentionForward& arguments, int64_t batch, int64_t visit,
                      Waits& waits) const {
    const Sequence sequence = sequence_of(problem_, arguments, batch);
    const ChunkTable<int64_t> arriving = waits.chunks(0, ChunkDim::kKv);
    const int64_t chunk =
        CyclicTiles<int64_t>::from(0, chunks_, arriving.begin[arriving.first] - sequence.kv_begin,
                                   chunk_)
            .at(visit);
    const KeyRange seen = seen_keys(problem_, sequence.q_len, sequence.kv_len);
    const int64_t begin = max(chunk * chunk_, seen.begin),
                  end = min((chunk + 1) * chunk_, seen.end);
    const auto needed = arriving.covering(sequence.kv_begin + begin, sequence.kv_begin + end);
    return waits.await(0, needed) ? chunk : -1;
  }

  void attend(const AttentionForward& arguments, KeyBlock at, int32_t worker) const {
    const Sequence sequence = sequence_of(problem_, arguments, at.batch);
    Arena arena(workspace_ + scratch_begin_ + static_cast<size_t>(worker) * scratch_bytes_);
    const Scratch scratch = take_scratch(arena);
    for (int64_t i = 0; i < at.heads * rows_; ++i) {
      const int64_t kv_head = at.head + i / rows_, r = i % rows_;
      const Partial part = partial(at.batch, kv_head, at.chunk, r);
      *part.max = -kInfinity;
      *part.sum = 0;
      for (int64_t d = 0; d < value_columns_; d += V::kLanes) V::store(part.out + d, V::zero());
      if (query_of(r) >= sequence.q_len) continue;
      const Strided<T> query = head_view<T>(arguments.query, problem_.ragged, at.batch,
                                            head_of(kv_head, r), sequence.q_begin + query_of(r));
      Scalar* row = scratch.query + i * head_columns_;
      read_row<V>(query.data, query.column, problem_.head_dim, row);
      for (int64_t d = problem_.head_dim; d < head_columns_; ++d) row[d] = 0;
    }
    if (sequence.q_len == 0) return;
    const KeyRange seen = seen_keys(problem_, sequence.q_len, sequence.kv_len);
    const int64_t end = min((at.chunk + 1) * chunk_, seen.end);
    for (at.key = at.chunk * chunk_; at.key < end; at.key += kBlock) {
      at.hidden = clamp(seen.begin - at.key, int64_t{0}, kBlock);
      at.keys = min(kBlock, end - at.key);
      if (at.hidden < at.keys) visit(arguments, sequence, scratch, at);
    }
  }

  void visit(const AttentionForward& arguments, const Sequence& sequence, const Scratch& scratch,
             const KeyBlock& at) const {
    const bool ragged = problem_.ragged;
    const int64_t row = sequence.kv_begin + at.key;
    const Strided<T> key = head_view<T>(arguments.key, ragged, sequence.kv_entry, at.head, row);
    const Strided<T> value = head_view<T>(arguments.value, ragged, sequence.kv_entry, at.head, row);
    const int64_t key_head = arguments.key.stride[ragged ? 0 : 1];
    const int64_t value_head = arguments.value.stride[ragged ? 0 : 1];
    const int64_t left = sequence.kv_len - at.key;  // keys from here to the sequence's end
    for (int64_t r = 0; at.hidden > 0 && r < at.heads * rows_; ++r)
      for (int64_t j = 0; j < at.hidden; ++j) scratch.score[r * kBlock + j] = 0;
    const Stream keys{key, key_head, at.heads, problem_.head_dim};
    const Stream values{value, value_head, at.heads, problem_.value_dim};

    for (int64_t j = at.hidden; j < at.keys; ++j) {
      for (int64_t h = 0; h < at.heads; ++h) {
        if (j + keys.ahead() < left) keys.fetch(j + keys.ahead(), h);
        values.fetch(j, h);
        for (int64_t r = 0; r < rows_; ++r)
          scratch.score[(h * rows_ + r) * kBlock + j] =
              dot(scratch.query + (h * rows_ + r) * head_columns_,
                  key.data + j * key.row + h * key_head, key.column);
      }
    }
    for (int64_t h = 0; h < at.heads; ++h)
      for (int64_t r = 0; r < rows_; ++r)
        scratch.weights[h * rows_ + r] = online_softmax(arguments, sequence, scratch, at, h, r);
    for (int64_t j = 0; j < at.keys; j += kTogether) {
      for (int64_t h = 0; h < at.heads; ++h) {
        const Partial part = partial(at.batch, at.head + h, at.chunk, 0);
        for (int64_t r = 0; r < rows_; ++r)
          add_values(scratch.score + (h * rows_ + r) * kBlock + j,
                     {value.data + j * value.row + h * value_head, value.row, value.column},
                     min(kTogether, at.keys - j), scratch.weights[h * rows_ + r],
                     part.out + r * value_columns_);
      }
    }
  }

  // Scores of row r of the h-th head become P; rescales its sum and out by the running maximum.
  Weights online_softmax(const AttentionForward& arguments, const Sequence& sequence,
                         const Scratch& scratch, const KeyBlock& at, int64_t h, int64_t r) const {
    const int64_t query = query_of(r), head = head_of(at.head + h, r);
    if (query >= sequence.q_len) return Weights::kAbsent;
    const ScoreChain<V> chain{problem_,
                              sequence,
                              arguments.bias,
                              arguments.visible,
                              at.batch,
                              head,
                              static_cast<Scalar>(problem_.scale * kLog2E)};
    Scalar* score = scratch.score + (h * rows_ + r) * kBlock;
    for (int64_t j = at.keys; j < kBlock; ++j) score[j] = 0;
    const bool plain = chain.plain(query, 1, at.key, at.key + kBlock);
    if (!plain) chain.apply(query, at.key, kBlock, score);
    online_softmax(score, plain ? chain.scale : Scalar{1},
                   partial(at.batch, at.head + h, at.chunk, r));
    if (scratch.keep != nullptr) drop(arguments.dropout, at, head, query, scratch.keep, score);
    return plain && scratch.keep == nullptr ? Weights::kDense : Weights::kSparse;
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
    const Scalar raised = perseid::internal::max(*part.max, V::reduce_max(top) * scale);
    // With nothing visible yet, any finite stand-in gives exp2(-inf - 0) = 0.
    const Scalar shift = raised <= kNoScore<Scalar> ? Scalar{0} : raised;
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
  void drop(const Dropout& dropout, const KeyBlock& at, int64_t head, int64_t query, uint8_t* keep,
            Scalar* score) const {
    const int64_t tile = query / kDropoutTileRows * kDropoutTileRows;
    dropout_block(dropout, at.batch * problem_.heads + head, tile, kDropoutTileRows, at.key, kBlock,
                  keep, kBlock);
    const uint8_t* row = keep + (query - tile) * kBlock;
    for (int64_t j = 0; j < kBlock; ++j) score[j] = row[j] != 0 ? score[j] : Scalar{0};
  }

  // out += p V for up to kTogether keys.
  void add_values(const Scalar* p, Strided<T> value, int64_t keys, Weights weights,
                  Scalar* out) const {
    if (weights == Weights::kDense && keys == kTogether && value.column == 1)
      return add_four(p, value.data, value.row, out);
    if (weights == Weights::kAbsent) return;
    for (int64_t j = 0; j < keys; ++j) {
      if (weights == Weights::kSparse && p[j] == 0) continue;
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
      max = perseid::internal::max(max, *partial(batch, kv_head, c, r).max);
    const Scalar shift = max <= kNoScore<Scalar> ? Scalar{0} : max;
    const StridedOutput<T> out =
        output_view<T>(arguments.out, problem_.ragged, batch, head, sequence.q_begin + query);
    // The chunks are summed into the first one; without keys there is none.
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
  int64_t chunk_, chunks_;
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
        .run(arguments, execution.executor, execution.waits);
  });
}

}  // namespace perseid::internal::cpu::PERSEID_ISA
