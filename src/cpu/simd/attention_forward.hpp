// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward by tiles: O = softmax(scale Q K^T + bias, masked) V with an online softmax.
//
//   phase 1   every (batch, kv head): K packed by columns, V by depth,
//             once, for all the query heads that read them
//   phase 2   every (batch, head, block of 96 queries), independent of all others:
//               for each block of 256 keys:
//                 for each group of 24 queries:            S: [24, 256], stays in the L1 cache
//                   S = Q K^T                              micro_gemm, depth head_dim
//                   m' = m or max(m, rowmax S); P = exp2(S - m'); l, O *= exp2(m - m');
//                   l += rowsum P
//                   O += P V                               micro_gemm, depth 256
//               out = O / l,  lse = ln 2 * (m + log2 l)
//
// m need not be the row's maximum, since it cancels in O / l: it follows when the maximum exceeds
// it by more than the row's lag. With bf16 dot products the lag also bounds the error. They round P
// to bf16, but l sums P unrounded, so that lse is exact. The maximum's own weight is 1 where m is
// the maximum, which rounding leaves alone; where m lags, it is rounded like any other. So m lags
// only while the maximum's weight is a small share of l (2^-kShare at most): then the rounding
// errors of many weights average out.
//
// Masked keys are -inf in S and exactly 0 in P; groups skip the panels of keys that none of their
// queries sees, and touch mask code only where some key of a block is masked for some query. A
// row's result depends on nothing but its own scores, so it is the same in any batch, beside any
// other rows and for any number of threads. Keys and values that arrive in chunks are added by
// attention_chunks.hpp.
//
// Algorithm: Rabe and Staats, arXiv:2112.05682; Dao, arXiv:2307.08691.
#pragma once

#include <type_traits>

#include "cpu/executor.hpp"
#include "cpu/simd/attention_common.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

template <class Dot, class T>
class AttentionForwardKernel {
 protected:
  using V = typename Dot::Vector;
  using Scalar = typename V::Scalar;
  using Element = typename Dot::Element;

  static constexpr int64_t kPanel = tile_columns<Dot>;
  static constexpr int64_t kGroup = 4 * Dot::kRows;  // queries whose scores share the L1 cache
  static constexpr int64_t kQueries =
      96;  // queries of a task: they share a block of keys in the L2 cache
  static constexpr int64_t kKeys = 256;  // keys of a block
  static_assert(kKeys % kPanel == 0 && kPanel % (V::kLanes * Dot::kDepth) == 0);

  // Where the products read the values of a block of keys. Values in micro_gemm's layout are copied
  // only if some must be cleared.
  enum class ValueState : uint8_t { kInPlace, kPacked, kPackedNonfinite };

  // Scratch of one worker.
  struct Scratch {
    Element* query;   // [kQueries, steps(head_dim)]
    Scalar* score;    // [kGroup, kKeys]
    Element* weight;  // [kGroup, kKeys / kDepth]: P as an operand; the scores themselves where
                      // kDepth is 1
    Scalar* out;      // [kQueries, value_columns]
    Scalar* max;      // [kQueries] m, in units of log2
    Scalar* limit;    // [kQueries] m follows scores above it
    Scalar* sum;      // [kQueries, kLanes]: added up at the end
    uint8_t* keep;    // [kQueries, kKeys], where there is dropout
  };

  // One block of queries of one head, and the block of keys that it visits.
  struct Block {
    ScoreChain<V> chain;
    const Element* key;        // packed by columns, of this sequence and kv head
    const Element* value;      // packed by depth
    const uint8_t* nonfinite;  // per key: its value holds NaN or infinity, packed as 0
    const ValueState* state;   // of blocks of keys, at the block's first panel
    Strided<T> raw_value;
    Dropout dropout;
    int64_t row, rows;
    int64_t key_block, keys;  // the block of keys being visited
    bool first;               // no block of keys has been visited yet
  };

 public:
  AttentionForwardKernel(const AttentionProblem& problem, int32_t workers, std::byte* workspace)
      : problem_(problem),
        steps_(steps_of<Dot>(problem.head_dim)),
        value_columns_(round_up(problem.value_dim, V::kLanes)),
        key_rows_(packs_in_order() ? round_up(problem.total_kv, kPanel) + problem.batch * kPanel
                                   : problem.batch * round_up(problem.kv_len, kPanel)),
        arena_(workspace) {
    keys_ = arena_.take<Element>(problem.kv_heads * key_rows_ * steps_);
    values_ = arena_.take<Element>(problem.kv_heads * key_rows_ / Dot::kDepth * value_columns_);
    nonfinite_ = arena_.take<uint8_t>(problem.kv_heads * key_rows_);
    value_state_ = arena_.take<ValueState>(problem.kv_heads * key_rows_ / kPanel);
    scratch_begin_ = arena_.bytes();
    take_scratch(arena_);
    scratch_bytes_ = arena_.bytes() - scratch_begin_;
    bytes_ = scratch_begin_ + scratch_bytes_ * static_cast<size_t>(workers);
    workspace_ = workspace;
  }

  size_t bytes() const { return bytes_; }

  void run(const AttentionForward& arguments, Executor& executor) const {
    if (arguments.out.empty() && arguments.lse.empty()) return;
    const int64_t key_blocks = ceil_div(problem_.kv_len, kKeys);
    for_each_task(executor, problem_.batch * problem_.kv_heads * key_blocks,
                  [&](int64_t task, int32_t) {
                    const int64_t head = task / key_blocks, batch = head / problem_.kv_heads;
                    const Sequence sequence = sequence_of(problem_, arguments, batch);
                    const int64_t key = task % key_blocks * kKeys;
                    if (key >= sequence.kv_len) return;
                    pack(keys_to_pack(arguments, sequence, batch, head % problem_.kv_heads, key,
                                      min(sequence.kv_len - key, kKeys)));
                  });
    const int64_t query_blocks = ceil_div(problem_.q_len, kQueries);
    for_each_task(executor, problem_.batch * problem_.heads * query_blocks,
                  [&](int64_t task, int32_t worker) {
                    const int64_t head = task / query_blocks;
                    // Under a causal mask the last block has the most keys: it goes first, so that
                    // no worker is left with it alone.
                    const int64_t block = query_blocks - 1 - task % query_blocks;
                    attend(arguments, head / problem_.heads, head % problem_.heads,
                           block * kQueries, executor, worker);
                  });
  }

 protected:
  Scratch take_scratch(Arena& arena) const {
    Scratch scratch;
    scratch.query = arena.take<Element>(kQueries * steps_);
    scratch.score = arena.take<Scalar>(kGroup * kKeys);
    scratch.weight = Dot::kDepth == 1 ? reinterpret_cast<Element*>(scratch.score)
                                      : arena.take<Element>(kGroup * kKeys / Dot::kDepth);
    scratch.out = arena.take<Scalar>(kQueries * value_columns_);
    scratch.max = arena.take<Scalar>(kQueries);
    scratch.limit = arena.take<Scalar>(kQueries);
    scratch.sum = arena.take<Scalar>(kQueries * V::kLanes);
    scratch.keep = problem_.dropout > 0 ? arena.take<uint8_t>(kQueries * kKeys) : nullptr;
    return scratch;
  }

  // Whether keys of one sequence lie behind those of another in the packed tensors.
  bool packs_in_order() const { return problem_.ragged && !problem_.kv_starts; }
  // The first packed row of a sequence's keys: sequences are padded to whole panels.
  int64_t packed_row(const Sequence& sequence, int64_t batch, int64_t kv_head) const {
    const int64_t row = packs_in_order() ? sequence.kv_begin / kPanel * kPanel + batch * kPanel
                                         : batch * round_up(problem_.kv_len, kPanel);
    return kv_head * key_rows_ + row;
  }

  // `count` keys of a block of one sequence and kv head, and where they are packed.
  struct KeysToPack {
    Strided<T> key, value;
    int64_t row, count;
    bool may_stay = true;  // values may be read where they are
  };
  KeysToPack keys_to_pack(const AttentionForward& arguments, const Sequence& sequence,
                          int64_t batch, int64_t kv_head, int64_t key, int64_t count) const {
    const int64_t row = sequence.kv_begin + key;
    return {head_view<T>(arguments.key, problem_.ragged, sequence.kv_entry, kv_head, row),
            head_view<T>(arguments.value, problem_.ragged, sequence.kv_entry, kv_head, row),
            packed_row(sequence, batch, kv_head) + key, count};
  }

  void pack(const KeysToPack& keys) const {
    const auto& [k, v, row, count, may_stay] = keys;
    pack_columns<Dot>(k, count, problem_.head_dim, keys_ + row * steps_);
    Element* values = values_ + row / Dot::kDepth * value_columns_;
    ValueState& state = value_state_[row / kPanel];
    state = ValueState::kInPlace;
    if (may_stay && in_place(v) &&
        !mark_nonfinite<V>(v, count, problem_.value_dim, nonfinite_ + row))
      return;
    pack_depth<Dot>(v, count, problem_.value_dim, values, value_columns_);
    state =
        clear_nonfinite<Dot>(v, count, problem_.value_dim, values, value_columns_, nonfinite_ + row)
            ? ValueState::kPackedNonfinite
            : ValueState::kPacked;
  }

  // Whether rows of values are rows of the operand already.
  bool in_place(Strided<T> value) const {
    return std::is_same_v<T, Element> && value.column == 1 && problem_.value_dim % V::kLanes == 0;
  }

  void attend(const AttentionForward& arguments, int64_t batch, int64_t head, int64_t row,
              const Executor& executor, int32_t worker) const {
    const Sequence sequence = sequence_of(problem_, arguments, batch);
    if (row >= sequence.q_len) return;
    const Scratch scratch = scratch_of(worker);
    Block block = open(arguments, sequence, batch, head, row, scratch);
    reset(block, scratch);
    const KeyRange keys = keys_of(block);
    for (int64_t key = keys.begin / kKeys * kKeys; key < keys.end; key += kKeys) {
      if (executor.stopped()) return;
      meet(block, scratch, key);
    }
    finish(arguments, block, scratch);
  }

  Scratch scratch_of(int32_t worker) const {
    Arena arena(workspace_ + scratch_begin_ + static_cast<size_t>(worker) * scratch_bytes_);
    return take_scratch(arena);
  }

  // A block of queries, packed.
  Block open(const AttentionForward& arguments, const Sequence& sequence, int64_t batch,
             int64_t head, int64_t row, const Scratch& scratch) const {
    const int64_t kv_head = head / problem_.group();
    const int64_t packed = packed_row(sequence, batch, kv_head);
    const Block block{{problem_, sequence, arguments.bias, arguments.visible, batch, head,
                       static_cast<Scalar>(problem_.scale * kLog2E)},
                      keys_ + packed * steps_,
                      values_ + packed / Dot::kDepth * value_columns_,
                      nonfinite_ + packed,
                      value_state_ + packed / kPanel,
                      head_view<T>(arguments.value, problem_.ragged, sequence.kv_entry, kv_head,
                                   sequence.kv_begin),
                      arguments.dropout,
                      row,
                      min(kQueries, sequence.q_len - row),
                      0,
                      0,
                      true};
    pack_rows<Dot>(
        head_view<T>(arguments.query, problem_.ragged, batch, head, sequence.q_begin + row),
        block.rows, problem_.head_dim, scratch.query, steps_);
    return block;
  }
  // Before the first block of keys.
  void reset(const Block& block, const Scratch& scratch) const {
    for (int64_t i = 0; i < block.rows; ++i) scratch.max[i] = scratch.limit[i] = -kInfinity;
    clear(scratch.sum, block.rows * V::kLanes);
  }
  // That some query of the block may see: both ends of the visible range rise with the row.
  KeyRange keys_of(const Block& block) const {
    const Sequence& sequence = block.chain.sequence;
    const int64_t last = block.row + block.rows - 1;
    return {visible_keys(problem_, block.row, sequence.q_len, sequence.kv_len).begin,
            visible_keys(problem_, last, sequence.q_len, sequence.kv_len).end};
  }
  // All rows of the block meet the block of keys that begins with `key`.
  void meet(Block& block, const Scratch& scratch, int64_t key) const {
    block.key_block = key;
    block.keys = min(kKeys, block.chain.sequence.kv_len - key);
    if (scratch.keep != nullptr)
      dropout_rows(problem_, block.chain.sequence.q_len, block.dropout,
                   block.chain.batch * problem_.heads + block.chain.head, block.row, block.rows,
                   key, kKeys, scratch.keep, kKeys);
    for (int64_t i = 0; i < block.rows; i += kGroup)
      visit(block, scratch, i, min(kGroup, block.rows - i));
    block.first = false;
  }

  // Rows [i, i + rows) of the block meet the current block of keys.
  void visit(const Block& block, const Scratch& scratch, int64_t i, int64_t rows) const {
    const Sequence& sequence = block.chain.sequence;
    const int64_t row = block.row + i;
    const int64_t begin =
        clamp(visible_keys(problem_, row, sequence.q_len, sequence.kv_len).begin - block.key_block,
              int64_t{0}, kKeys) /
        kPanel * kPanel;
    const int64_t end =
        min(visible_keys(problem_, row + rows - 1, sequence.q_len, sequence.kv_len).end -
                block.key_block,
            kKeys);
    Scalar* out = scratch.out + i * value_columns_;
    if (end <= begin) {
      if (block.first) clear(out, rows * value_columns_);
      return;
    }
    const int64_t panels_end = round_up(end, kPanel);
    for (int64_t column = begin; column < panels_end; column += kPanel)
      panel_gemm<Dot>({scratch.query + i * steps_, steps_, 1},
                      {block.key + (block.key_block + column) * steps_, kPanel},
                      {scratch.score + column, kKeys}, rows, kPanel, steps_, false);
    // A row that sees the whole block is scaled in its exponentials, whatever its neighbours see.
    const int64_t block_end = block.key_block + round_up(block.keys, kPanel);
    const bool plain = block.chain.plain(row, rows, block.key_block, block_end);
    Scalar scale[kGroup];
    for (int64_t r = 0; r < rows; ++r) {
      Scalar* score = scratch.score + r * kKeys + begin;
      scale[r] = block.chain.scale;
      if (!plain && !block.chain.plain(row + r, 1, block.key_block, block_end)) {
        block.chain.apply(row + r, block.key_block + begin, panels_end - begin, score);
        scale[r] = 1;
      }
      raise_maximum(score, panels_end - begin, scale[r], scratch.max[i + r], scratch.limit[i + r],
                    scratch.sum + (i + r) * V::kLanes, out + r * value_columns_, block.first);
    }
    for (int64_t r = 0; r < rows; ++r) {
      Scalar* sum = scratch.sum + (i + r) * V::kLanes;
      exponentiate(scratch.score + r * kKeys + begin, panels_end - begin, scale[r],
                   scratch.max[i + r], sum, scratch.weight + (r * kKeys + begin) / Dot::kDepth);
      if (Dot::kDepth > 1 && scratch.limit[i + r] == scratch.max[i + r])
        scratch.limit[i + r] += lag_of(V::reduce_add(V::load(sum)));
    }
    if (scratch.keep != nullptr) {
      for (int64_t r = 0; r < rows; ++r)
        drop(scratch.keep + (i + r) * kKeys + begin, panels_end - begin,
             scratch.weight + (r * kKeys + begin) / Dot::kDepth);
    }
    const int64_t depth = steps_of<Dot>(end) - begin / Dot::kDepth;
    const ValueState state = block.state[block.key_block / kPanel];
    const TileB<Dot> value = value_operand(block, state, block.key_block + begin);
    for (int64_t column = 0; column < value_columns_; column += kPanel)
      panel_gemm<Dot>({scratch.weight + begin / Dot::kDepth, kKeys / Dot::kDepth, 1},
                      {value.data + column, value.depth}, {out + column, value_columns_}, rows,
                      min(kPanel, value_columns_ - column), depth, !block.first);
    if (state == ValueState::kPackedNonfinite)
      add_nonfinite(block, scratch, out, rows, begin, min(end, block.keys));
  }

  TileB<Dot> value_operand(const Block& block, ValueState state, int64_t key) const {
    if constexpr (std::is_same_v<T, Element>) {
      if (state == ValueState::kInPlace)
        return {block.raw_value.data + key * block.raw_value.row, block.raw_value.row};
    }
    return {block.value + key / Dot::kDepth * value_columns_, value_columns_};
  }

  // Raises m where a score of the row is above its limit, and rescales sum and out. Most rows
  // return early, because m may lag: 2^kMostLag is far from overflow.
  void raise_maximum(const Scalar* score, int64_t count, Scalar scale, Scalar& max, Scalar& limit,
                     Scalar* sum, Scalar* out, bool first) const {
    typename V::Reg top[2] = {V::load(score), V::load(score + V::kLanes)};
    for (int64_t j = 2 * V::kLanes; j < count; j += 2 * V::kLanes) {
      top[0] = V::max(top[0], V::load(score + j));
      top[1] = V::max(top[1], V::load(score + j + V::kLanes));
    }
    top[0] = V::max(top[0], top[1]);
    if (!V::any(V::less(V::set1(limit), V::mul(top[0], V::set1(scale))))) return;
    const Scalar raised = perseid::internal::max(max, V::reduce_max(top[0]) * scale);
    if (!first) {
      // From a maximum of -inf the factor is exp2(-inf) = 0: nothing was added so far.
      const typename V::Reg factor = exp2<V>(V::set1(max - raised));
      V::store(sum, V::mul(V::load(sum), factor));
      for (int64_t d = 0; d < value_columns_; d += V::kLanes)
        V::store(out + d, V::mul(V::load(out + d), factor));
    }
    max = raised;
    // Unrounded weights may lag at once; else the limit follows from the sum with this block.
    limit = raised + (Dot::kDepth == 1 ? kMostLag : Scalar{0});
  }

  // How far scores may exceed m: rounded down to a whole number.
  static Scalar lag_of(Scalar sum) {
    if constexpr (Dot::kDepth == 1) return kMostLag;
    const int exponent = static_cast<int>(float_bits(static_cast<float>(sum)) >> 23) - 127;
    return clamp(static_cast<Scalar>(exponent - kShare), Scalar{0}, kMostLag);
  }

  // P = exp2(scale * score - max) into `weight`; adds it, lane by lane, to `sum`.
  static void exponentiate(const Scalar* score, int64_t count, Scalar scale, Scalar max,
                           Scalar* sum, Element* weight) {
    // With nothing visible yet, any finite stand-in gives exp2(-inf - 0) = 0.
    const typename V::Reg shift = V::set1(max <= kNoScore<Scalar> ? Scalar{0} : max),
                          factor = V::set1(scale);
    typename V::Reg sums[2] = {V::load(sum), V::zero()};
    for (int64_t j = 0; j < count; j += 2 * V::kLanes) {
      const typename V::Reg p0 = exponential(V::fms(V::load(score + j), factor, shift));
      const typename V::Reg p1 = exponential(V::fms(V::load(score + j + V::kLanes), factor, shift));
      sums[0] = V::add(sums[0], p0);
      sums[1] = V::add(sums[1], p1);
      if constexpr (Dot::kDepth == 1) {
        V::store(weight + j, p0);
        V::store(weight + j + V::kLanes, p1);
      } else {
        Dot::store_row(weight + j / Dot::kDepth, p0, p1);
      }
    }
    V::store(sum, V::add(sums[0], sums[1]));
  }

  static PERSEID_INLINE typename V::Reg exponential(typename V::Reg x) {
    if constexpr (Dot::kDepth == 1) {
      return exp2<V>(x);
    } else {
      return exp2_approx(x);
    }
  }

  // P is 0 where dropped; the rescaling of what is kept waits for the end.
  static void drop(const uint8_t* keep, int64_t count, Element* weight) {
    if constexpr (Dot::kDepth == 1) {
      for (int64_t j = 0; j < count; ++j) weight[j] = keep[j] != 0 ? weight[j] : Element{0};
    } else {
      for (int64_t j = 0; j < count / 2; ++j)
        weight[j] &=
            (keep[2 * j] != 0 ? 0x0000ffffu : 0u) | (keep[2 * j + 1] != 0 ? 0xffff0000u : 0u);
    }
  }

  void add_nonfinite(const Block& block, const Scratch& scratch, Scalar* out, int64_t rows,
                     int64_t begin, int64_t end) const {
    for (int64_t j = begin; j < end; ++j) {
      if (block.nonfinite[block.key_block + j] == 0) continue;
      const T* value = block.raw_value.data + (block.key_block + j) * block.raw_value.row;
      for (int64_t r = 0; r < rows; ++r)
        add_nonfinite_row<Dot>(value, block.raw_value.column, problem_.value_dim,
                               weight_at<Dot>(scratch.weight + r * kKeys / Dot::kDepth, j),
                               out + r * value_columns_);
    }
  }

  void finish(const AttentionForward& arguments, const Block& block, const Scratch& scratch) const {
    const AttentionProblem& problem = problem_;
    const int64_t batch = block.chain.batch, head = block.chain.head;
    const int64_t row = block.chain.sequence.q_begin + block.row;
    const StridedOutput<T> out = output_view<T>(arguments.out, problem.ragged, batch, head, row);
    const Scalar rescale = static_cast<Scalar>(256.0 / block.dropout.threshold);
    for (int64_t i = 0; i < block.rows; ++i) {
      Scalar* values = scratch.out + i * value_columns_;
      const Scalar sum = V::reduce_add(V::load(scratch.sum + i * V::kLanes));
      if (sum == 0) clear(values, value_columns_);
      write_row<V>(values, sum == 0 ? Scalar{0} : rescale / sum, problem.value_dim,
                   out.data + i * out.row, out.column);
      if (arguments.lse.present())
        *lse_row<Scalar>(arguments.lse, problem.ragged, batch, head, row + i) =
            natural_lse(scratch.max[i], sum);
    }
  }

  static void clear(Scalar* values, int64_t count) {
    for (int64_t j = 0; j < count; ++j) values[j] = 0;
  }

  static constexpr Scalar kMostLag = 8;  // powers of two
  static constexpr int kShare = 2;
  static constexpr Scalar kInfinity = static_cast<Scalar>(__builtin_inf());

  const AttentionProblem& problem_;
  int64_t steps_;          // of head_dim
  int64_t value_columns_;  // value_dim in whole vectors
  int64_t key_rows_;       // packed rows of a kv head, over the whole batch
  Arena arena_;
  std::byte* workspace_ = nullptr;
  Element* keys_ = nullptr;
  Element* values_ = nullptr;
  uint8_t* nonfinite_ = nullptr;
  ValueState* value_state_ = nullptr;
  size_t scratch_begin_ = 0, scratch_bytes_ = 0, bytes_ = 0;
};

}  // namespace perseid::internal::cpu::PERSEID_ISA
