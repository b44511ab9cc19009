// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward by tiles, over keys and values that arrive in chunks while it runs.
//
// The arithmetic is that of attention_forward.hpp. A block of queries visits its blocks of keys
// from the pivot chunk round (CyclicTiles), in an order that arrival does not change: results
// depend on the order of visits alone, and with the first chunk as pivot they are those of the plan
// without chunks, bit for bit. What differs is when a block runs and when its keys are packed:
//
//   - Keys that are present are packed ahead. Of those that arrive, the first worker that needs a
//     block of them packs it after its chunks have arrived; the others wait until it is packed.
//   - A worker that needs a missing chunk parks the block of queries (its sums, maxima and results
//     so far) in the workspace and draws another block, so that all blocks use the chunks that are
//     present. A draw waits for the first block of keys that it needs, and goes on as far as keys
//     are present. So a block is drawn once for each chunk that it has to wait for, and once more.
//   - Workers draw blocks from one counter. Executors may call tasks in any order, so a task's own
//     number is not used.
//
// Keys that no query of a sequence sees are neither awaited nor read.
#pragma once

#include <atomic>
#include <utility>

#include "cpu/simd/attention_forward.hpp"
#include "cpu/waits.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

template <class Dot, class T>
class ChunkedAttentionKernel : AttentionForwardKernel<Dot, T> {
  using Base = AttentionForwardKernel<Dot, T>;
  using Base::kKeys;
  using Base::kQueries;
  using typename Base::Block;
  using typename Base::KeysToPack;
  using typename Base::Scalar;
  using typename Base::Scratch;
  using typename Base::V;

  // What all workers share besides packed keys.
  struct Shared {
    int64_t key_blocks, query_blocks, packs, blocks, parked_size;
    uint32_t* packed;  // [batch, kv_heads, key_blocks]: claims of packed blocks of keys
    uint32_t* claims;  // [batch, heads, query_blocks]: of blocks of queries
    int64_t* reached;  // [batch, heads, query_blocks]: blocks of keys that are visited
    Scalar* parked;    // [batch, heads, query_blocks, parked_size]
    T* seen;           // [workers, kKeys, head_dim + value_dim]
    size_t bytes;

    Shared(const AttentionProblem& problem, int64_t value_columns, int32_t workers,
           std::byte* memory)
        : key_blocks(ceil_div(problem.kv_len, kKeys)),
          query_blocks(ceil_div(problem.q_len, kQueries)),
          packs(problem.batch * problem.kv_heads * key_blocks),
          blocks(problem.batch * problem.heads * query_blocks),
          parked_size(kQueries * (value_columns + 2 + V::kLanes)) {
      Arena arena(memory);
      packed = arena.take<uint32_t>(packs);
      claims = arena.take<uint32_t>(blocks);
      reached = arena.take<int64_t>(blocks);
      parked = arena.take<Scalar>(blocks * parked_size);
      seen = arena.take<T>(workers * kKeys * (problem.head_dim + problem.value_dim));
      bytes = arena.bytes();
    }
    void clear() const {
      for (int64_t i = 0; i < packs; ++i) packed[i] = 0;
      for (int64_t i = 0; i < blocks; ++i) claims[i] = 0, reached[i] = 0;
    }
  };

 public:
  static size_t workspace(const AttentionProblem& problem, int32_t workers) {
    const ChunkedAttentionKernel kernel(problem, workers, nullptr, nullptr);
    return kernel.bytes() + kernel.shared_.bytes;
  }

  ChunkedAttentionKernel(const AttentionProblem& problem, int32_t workers, std::byte* workspace,
                         Waits* waits)
      : Base(problem, workers, workspace),
        shared_(problem, this->value_columns_, workers,
                workspace == nullptr ? nullptr : workspace + this->bytes()),
        waits_(waits),
        chunks_(waits == nullptr ? ChunkTable<int64_t>{} : waits->chunks(0, ChunkDim::kKv)) {}

  void run(const AttentionForward& arguments, Executor& executor) const {
    if (arguments.out.empty() && arguments.lse.empty()) return;
    const AttentionProblem& problem = this->problem_;
    shared_.clear();
    for_each_task(executor, shared_.packs, [&](int64_t task, int32_t worker) {
      const int64_t head = task / shared_.key_blocks, batch = head / problem.kv_heads;
      const Sequence sequence = sequence_of(problem, arguments, batch);
      const KeyBlock keys{sequence, seen_of(sequence), batch, head % problem.kv_heads,
                          task % shared_.key_blocks * kKeys};
      if (keys.begin() < keys.end() && waits_->are_here(0, needed(keys)))
        provide(arguments, keys, worker);
      waits_->rest();
    });
    const int64_t draws = min(shared_.key_blocks, chunks_.count + 1);
    std::atomic<int64_t> next{0};
    for_each_task(executor, shared_.blocks * draws, [&](int64_t, int32_t worker) {
      if (waits_->ended()) return;
      const int64_t number = next.fetch_add(1, std::memory_order_relaxed) % shared_.blocks;
      const int64_t head = number / shared_.query_blocks;
      const int64_t block = shared_.query_blocks - 1 - number % shared_.query_blocks;
      uint32_t* claim = shared_.claims + number;
      if (waits_->claim(claim) != Claim::kMine) return;
      const bool done = advance(arguments, head / problem.heads, head % problem.heads,
                                block * kQueries, number, executor, worker);
      waits_->rest();
      waits_->release(claim, done);
    });
  }

 private:
  // Keys [key, key + kKeys) of a sequence and kv head, of which queries see some.
  struct KeyBlock {
    Sequence sequence;
    KeyRange seen;  // by queries of the sequence
    int64_t batch, kv_head, key;

    int64_t begin() const { return max(key, seen.begin); }
    int64_t end() const { return min(key + kKeys, seen.end); }
  };

  KeyRange seen_of(const Sequence& sequence) const {
    return seen_keys(this->problem_, sequence.q_len, sequence.kv_len);
  }
  ChunkRange<int64_t> needed(const KeyBlock& keys) const {
    return chunks_.covering(keys.sequence.kv_begin + keys.begin(),
                            keys.sequence.kv_begin + keys.end());
  }

  // Makes the block of keys readable. False: drain.
  bool provide(const AttentionForward& arguments, const KeyBlock& keys, int32_t worker) const {
    if (!waits_->await(0, needed(keys))) return false;
    uint32_t* part = shared_.packed +
                     (keys.batch * this->problem_.kv_heads + keys.kv_head) * shared_.key_blocks +
                     keys.key / kKeys;
    const Claim claim = waits_->claim(part);
    if (claim != Claim::kMine) return claim == Claim::kDone;
    this->pack(seen_keys_to_pack(arguments, keys, worker));
    waits_->release(part, true);
    return true;
  }

  // Keys before the first one that is seen may arrive at any time: zeros take their place.
  KeysToPack seen_keys_to_pack(const AttentionForward& arguments, const KeyBlock& keys,
                               int32_t worker) const {
    const AttentionProblem& problem = this->problem_;
    KeysToPack all = Base::keys_to_pack(arguments, keys.sequence, keys.batch, keys.kv_head,
                                        keys.key, keys.end() - keys.key);
    const int64_t hidden = keys.begin() - keys.key;
    if (hidden == 0) return all;
    T* to = shared_.seen + worker * kKeys * (problem.head_dim + problem.value_dim);
    all.may_stay = false;
    for (const auto& [view, dim] :
         {std::pair{&all.key, problem.head_dim}, {&all.value, problem.value_dim}}) {
      for (int64_t i = 0; i < all.count; ++i)
        for (int64_t d = 0; d < dim; ++d)
          to[i * dim + d] = i < hidden ? T{} : view->data[i * view->row + d * view->column];
      *view = {to, dim, 1};
      to += kKeys * dim;
    }
    return all;
  }

  // Visits blocks of keys as far as they are present, at least one. Whether all are visited.
  bool advance(const AttentionForward& arguments, int64_t batch, int64_t head, int64_t row,
               int64_t number, const Executor& executor, int32_t worker) const {
    const AttentionProblem& problem = this->problem_;
    const Sequence sequence = sequence_of(problem, arguments, batch);
    if (row >= sequence.q_len) return true;
    const Scratch scratch = this->scratch_of(worker);
    Block block = this->open(arguments, sequence, batch, head, row, scratch);
    const KeyRange range = Base::keys_of(block);
    const auto tiles =
        CyclicTiles<int64_t>::from(range.begin / kKeys, ceil_div(range.end, kKeys),
                                   chunks_.begin[chunks_.first] - sequence.kv_begin, kKeys);
    int64_t& reached = shared_.reached[number];
    if (reached == 0) {
      this->reset(block, scratch);
    } else {
      copy_parked<false>(block, scratch, number);
      block.first = false;
    }
    for (int64_t visit = reached; visit < tiles.count(); ++visit) {
      const KeyBlock keys{sequence, seen_of(sequence), batch, head / problem.group(),
                          tiles.at(visit) * kKeys};
      if (visit > reached && !waits_->are_here(0, needed(keys))) {
        copy_parked<true>(block, scratch, number);
        reached = visit;
        return false;
      }
      if (executor.stopped() || !provide(arguments, keys, worker)) return false;
      this->meet(block, scratch, keys.key);
    }
    this->finish(arguments, block, scratch);
    return true;
  }

  // What is known of the rows so far, to the workspace or back.
  template <bool kPark>
  void copy_parked(const Block& block, const Scratch& scratch, int64_t number) const {
    Scalar* parked = shared_.parked + number * shared_.parked_size;
    const auto copy = [&](Scalar* own, int64_t size) {
      const auto bytes = static_cast<size_t>(block.rows * size) * sizeof(Scalar);
      kPark ? __builtin_memcpy(parked, own, bytes) : __builtin_memcpy(own, parked, bytes);
      parked += block.rows * size;
    };
    copy(scratch.out, this->value_columns_);
    copy(scratch.max, 1);
    copy(scratch.limit, 1);
    copy(scratch.sum, V::kLanes);
  }

  const Shared shared_;
  Waits* const waits_;  // null where the workspace is measured
  const ChunkTable<int64_t> chunks_;
};

inline size_t attention_forward_workspace(const AttentionProblem& problem, int32_t workers) {
  size_t bytes = 0;
  with_dot(problem.dtype, [&]<class Dot, class T>() {
    bytes = problem.async() ? ChunkedAttentionKernel<Dot, T>::workspace(problem, workers)
                            : AttentionForwardKernel<Dot, T>(problem, workers, nullptr).bytes();
  });
  return bytes;
}

inline void attention_forward(const AttentionProblem& problem, const AttentionForward& arguments,
                              const Execution& execution) {
  with_dot(problem.dtype, [&]<class Dot, class T>() {
    const int32_t workers = execution.executor.workers();
    if (problem.async()) {
      ChunkedAttentionKernel<Dot, T>(problem, workers, execution.workspace, execution.waits)
          .run(arguments, execution.executor);
    } else {
      AttentionForwardKernel<Dot, T>(problem, workers, execution.workspace)
          .run(arguments, execution.executor);
    }
  });
}

}  // namespace perseid::internal::cpu::PERSEID_ISA
