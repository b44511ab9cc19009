// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The gradient of a bias in tiles of C.queries x C.keys(): which units (batch entry, head, block of
// queries, tile of keys) are summed into a tile, and how the sums are stored. A tile with few
// blocks is split along its units (split-K). C: a configuration of attention backward.
#pragma once

#include "cuda/device/attention/backward_work.hpp"
#include "cuda/device/element.hpp"

namespace perseid::internal::cuda {

// A split of a tile of dBias, and the units that are summed into it.
template <auto C>
struct BiasSplit {
  int32_t batch, head;     // of dBias
  int32_t q_tile, k_tile;  // 0 where the bias is repeated
  int32_t split;
  int32_t number;  // of the tile

  __device__ __forceinline__ BiasSplit(const BiasTiles& a, int32_t block) {
    split = block % a.num_splits;
    int32_t rest = number = block / a.num_splits;
    k_tile = rest % a.bias_k_tiles;
    rest /= a.bias_k_tiles;
    q_tile = rest % a.bias_q_tiles;
    rest /= a.bias_q_tiles;
    head = rest % a.bias_heads;
    batch = rest / a.bias_heads;
  }

  // visit(tile, step) for the units of the split, in order. A sum within one sequence is split by
  // that sequence's own lengths, so that it does not depend on the rest of the batch.
  template <class Arguments, class Visit>
  __device__ __forceinline__ void for_each_unit(const Arguments& a, Visit&& visit) const {
    BackwardTile tile;
    AttentionSequence& sequence = tile;
    int32_t q_len = a.q_len, kv_len = a.kv_len;
    if (!a.sums_batch) {
      sequence = find_sequence<C.lengths>(a, batch);
      q_len = sequence.q_len;
      kv_len = sequence.kv_len;
    }
    const int32_t k_tiles = a.sums_keys ? (kv_len + C.keys() - 1) / C.keys() : 1;
    const int32_t blocks = a.sums_queries ? (q_len + C.queries - 1) / C.queries : 1;
    const int32_t heads = a.sums_heads ? a.heads : 1;
    int64_t units = int64_t{k_tiles} * blocks * heads * (a.sums_batch ? a.batch : 1);
    // Tile of keys, block of queries, head, batch entry; the first runs fastest.
    int32_t at[4] = {};
    if (a.num_splits > 1) {
      int64_t rest = split * units / a.num_splits;
      units = (split + 1) * units / a.num_splits - rest;
      const int32_t sizes[3] = {k_tiles, blocks, heads};
#pragma unroll
      for (int d = 0; d < 3; ++d) {
        at[d] = static_cast<int32_t>(rest % max(sizes[d], 1));
        rest /= max(sizes[d], 1);
      }
      at[3] = static_cast<int32_t>(rest);
    }
    bool found = false;  // `sequence` is that of the batch entry
    for (; units > 0; --units) {
      if (a.sums_batch && !found) sequence = find_sequence<C.lengths>(a, at[3]);
      found = true;
      tile.key = (k_tile + at[0]) * C.keys();
      const BackwardStep step{head + at[2], q_tile + at[1]};
      tile.kv_head = step.head / a.group;
      if (is_seen(a, tile, step)) visit(tile, step);
      if (++at[0] < k_tiles) continue;
      at[0] = 0;
      if (++at[1] < blocks) continue;
      at[1] = 0;
      if (++at[2] < heads) continue;
      at[2] = 0;
      ++at[3];
      found = false;
    }
  }

 private:
  static __device__ __forceinline__ bool is_seen(const AttentionArguments& a,
                                                 const BackwardTile& tile,
                                                 const BackwardStep& step) {
    const int32_t first = step.block * C.queries, gap = gap_before<C>(a, first);
    const int32_t last = min(first + C.queries, tile.q_len) - 1;
    return first <= last && tile.key < tile.kv_len &&
           !(C.right && tile.key >= last + gap + tile.right) &&
           !(C.left && tile.key + C.keys() <= first + gap + tile.left);
  }
};

// All threads of a block.
template <int kThreads>
struct WholeBlock {
  static constexpr int kCount = kThreads;
  static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x); }
  static __device__ __forceinline__ void sync() { __syncthreads(); }
};

// The epilogue of a split: sums in shared memory, [C.queries][kPitch], are reduced over queries and
// keys where the bias is repeated, and stored. Split sums go to the workspace first; the last split
// of a tile to arrive adds all of them, in their order. Threads: the kCount threads that do it,
// each with its thread(), which meet in sync(). `last` is a word of shared memory.
template <auto C, class Threads, class Arguments>
class BiasReduction {
 public:
  static constexpr int kPitch = C.keys() + 1;
  using Real = typename SumOf<C.dtype>::Type;

  __device__ __forceinline__ BiasReduction(const Arguments& arguments, Real* sums,
                                           volatile uint32_t* last)
      : a_(arguments), sums_(sums), last_(last) {}

  // When all sums are there.
  __device__ __forceinline__ void store(const BiasSplit<C>& split) const {
    const int thread = Threads::thread();
    const int rows = a_.sums_queries ? 1 : C.queries, columns = a_.sums_keys ? 1 : C.keys();
    if (a_.sums_queries) {
      if (thread < C.keys()) {
        Real sum = 0;
        for (int row = 0; row < C.queries; ++row) sum += sums_[row * kPitch + thread];
        sums_[thread] = sum;
      }
      Threads::sync();
    }
    if (a_.sums_keys) {
      if (thread < rows) {
        Real sum = 0;
        for (int column = 0; column < C.keys(); ++column) sum += sums_[thread * kPitch + column];
        sums_[thread * kPitch] = sum;
      }
      Threads::sync();
    }
    Real* partials =
        static_cast<Real*>(a_.split_sums) + int64_t{split.number} * a_.num_splits * rows * columns;
    const auto sum_at = [&](int i) {
      return sums_ + (a_.sums_keys ? i * kPitch : i / C.keys() * kPitch + i % C.keys());
    };
    if (a_.num_splits > 1) {
      for (int i = thread; i < rows * columns; i += Threads::kCount)
        partials[split.split * rows * columns + i] = *sum_at(i);
      if (!is_last(split.number)) return;
    }
    using Element = typename ElementOf<C.bias>::Type;
    Element* to = row_at<Element>(a_.grad_bias, split.batch, split.head, 0);
    const int first_row = split.q_tile * C.queries, first_column = split.k_tile * C.keys();
    for (int i = thread; i < rows * columns; i += Threads::kCount) {
      const int row = a_.sums_keys ? i : i / C.keys(), column = a_.sums_keys ? 0 : i % C.keys();
      Real sum = *sum_at(i);
      if (a_.num_splits > 1) {
        sum = 0;
        for (int p = 0; p < a_.num_splits; ++p) sum += partials[p * rows * columns + i];
      }
      if ((a_.sums_queries || first_row + row < a_.q_len) &&
          (a_.sums_keys || first_column + column < a_.kv_len))
        put(sum, to + (first_row + row) * a_.grad_bias.stride[2] +
                     (first_column + column) * a_.grad_bias.stride[3]);
    }
  }

 private:
  template <class Element>
  __device__ __forceinline__ static void put(Real sum, Element* to) {
    if constexpr (C.accumulate_bias) sum += widen(*to);
    if constexpr (C.bias == DType::kF32 || C.bias == DType::kF64)
      *to = sum;
    else
      to->bits = static_cast<uint16_t>(round_pair<C.bias>(sum, 0));
  }
  // Whether all other splits of the tile have arrived.
  __device__ __forceinline__ bool is_last(int32_t tile) const {
    __threadfence();
    Threads::sync();
    if (Threads::thread() == 0)
      *last_ = atomicAdd(a_.arrived + tile, 1u) == static_cast<uint32_t>(a_.num_splits - 1);
    Threads::sync();
    __threadfence();
    return *last_ != 0;
  }

  const Arguments& a_;
  Real* const sums_;
  volatile uint32_t* const last_;
};

}  // namespace perseid::internal::cuda
