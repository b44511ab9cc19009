// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward on sm_90a: which tile of keys a block has and which blocks of queries that
// visits; shared memory; and the producer, which loads both.
//
// Order. Key heads go in sections whose queries and gradients fit into the L2 cache together; in a
// section the first keys come first, which have the most queries under a causal mask. A tile visits
// all query heads of its key head one after another, so that its gradients never leave registers
// before they are complete. If C.shared_cursor, it begins where another tile of its key head is and
// ends there: over many queries tiles would come apart, and each would read from memory what others
// have had in the cache.
//
// Deterministic: sums of grad_query get their summands in the order of the tiles of keys, from the
// last to the first. Blocks draw their tiles in this order from a counter, so that who waits for a
// turn waits for a block that is running. Under a causal mask nobody waits for long: blocks with
// consecutive tiles begin at consecutive queries, where they have the first turn, and go on one
// behind the other. But the longest tiles come last, and in the end few blocks would be running.
// So some heads, the last to be done, go back: from the first tile to the last, each visiting its
// queries from the last to the first. Which heads do is the same in every batch.
#pragma once

#include "cuda/device/ptx/cluster.hpp"
#include "cuda/device/ptx/ldmatrix.hpp"
#include "cuda/device/ptx/mbarrier.hpp"
#include "cuda/device/ptx/memory_order.hpp"
#include "cuda/device/sm90/attention/config.hpp"
#include "cuda/device/sm90/attention/rules.hpp"
#include "cuda/device/sm90/attention/sequence.hpp"
#include "cuda/device/sm90/attention/softmax.hpp"

namespace perseid::internal::cuda {

// ---- Blocks of queries ----

// What is kept for each lies in the workspace by their numbers, those of one head side by side; of
// ragged batches, by their places.

template <AttentionBackwardConfig C>
__device__ __forceinline__ int64_t block_number(const AttentionBackwardProblem& a,
                                                const AttentionSequence& sequence, int32_t head,
                                                int32_t block) {
  if (C.lengths && a.ragged)
    return int64_t{head} * a.q_blocks +
           first_padded_block(sequence.q_begin, sequence.batch, C.queries) + block;
  return (int64_t{sequence.batch} * a.heads + head) * a.q_blocks + block;
}
// Where a query has its lse and delta.
template <AttentionBackwardConfig C>
__device__ __forceinline__ int64_t statistics_at(const AttentionBackwardProblem& a,
                                                 const AttentionSequence& sequence, int32_t head,
                                                 int32_t query) {
  return block_number<C>(a, sequence, head, 0) * C.queries + query;
}

struct BackwardBlock {
  AttentionSequence sequence;
  int32_t head, query;  // the first one
};
// By whole warps. A place that nobody has is a block behind the end of some sequence.
template <AttentionBackwardConfig C>
__device__ __forceinline__ BackwardBlock find_block(const AttentionBackwardProblem& a,
                                                    int64_t number) {
  const int64_t batch_head = number / a.q_blocks;
  const auto place = static_cast<int32_t>(number % a.q_blocks);
  if (C.lengths && a.ragged) {
    const int32_t batch =
        max(sequence_of_block(a.cumulative_q, a.total_q, a.batch, C.queries, place), 0);
    const AttentionSequence found = find_sequence<C.lengths>(a, batch);
    const int32_t block = place - first_padded_block(found.q_begin, batch, C.queries);
    return {found, static_cast<int32_t>(batch_head), block < 0 ? found.q_len : block * C.queries};
  }
  return {find_sequence<C.lengths>(a, static_cast<int32_t>(batch_head / a.heads)),
          static_cast<int32_t>(batch_head % a.heads), place * C.queries};
}

// ---- Tiles of bias ----

// A tile of bias in shared memory, or of its gradient, C.queries x C.keys() in the layout of the
// copy engine: [chunk of keys in 128 bytes][query][128 bytes]. Scores are transposed in registers,
// so that 16-bit elements are transposed on their way; of 32-bit ones each goes by itself, without
// two of a warp in one bank.

template <AttentionBackwardConfig C>
struct BiasTile {
  static constexpr bool kWide = C.bias == DType::kF32;
  static constexpr int kChunkKeys = kWide ? 32 : 64;

  unsigned char* memory;
  uint32_t base;

  // The shared memory of a chunk, by its first key.
  __device__ __forceinline__ uint32_t chunk(int key) const {
    return base + key / kChunkKeys * C.queries * 128;
  }
  // Eight of a thread's scores, from number i on, a multiple of 8: two groups of eight queries. The
  // warp has 16 keys from `key` on.
  __device__ __forceinline__ void load(int key, int lane, int i, float (&to)[8]) const {
    if constexpr (kWide) {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        to[e] = *reinterpret_cast<const float*>(memory + wide_offset(key, lane, i, e));
    } else {
      uint32_t pairs[4];
      ptx::ldmatrix_x4_trans(base + pair_offset(key, lane, i), pairs);
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const float2 pair = widen_pair<C.bias>(pairs[p]);
        to[2 * p] = pair.x;
        to[2 * p + 1] = pair.y;
      }
    }
  }
  __device__ __forceinline__ void store(int key, int lane, int i, const float (&from)[8]) const {
    if constexpr (kWide) {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        *reinterpret_cast<float*>(memory + wide_offset(key, lane, i, e)) = from[e];
    } else {
      const auto pair = [&](int p) { return round_pair<C.bias>(from[2 * p], from[2 * p + 1]); };
      const uint32_t pairs[4] = {pair(0), pair(1), pair(2), pair(3)};
      store_pairs(key, lane, i, pairs);
    }
  }
  __device__ __forceinline__ void store_pairs(int key, int lane, int i,
                                              const uint32_t (&pairs)[4]) const {
    ptx::stmatrix_x4_trans(base + pair_offset(key, lane, i), pairs[0], pairs[1], pairs[2],
                           pairs[3]);
  }

 private:
  static __device__ __forceinline__ int pair_offset(int key, int lane, int i) {
    const int query = 8 * (i / 4 + lane / 16) + lane % 8;
    const int piece = key % kChunkKeys / 8 + lane / 8 % 2;
    return (key / kChunkKeys * C.queries + query) * 128 + ((piece ^ lane % 8) << 4);
  }
  static __device__ __forceinline__ int wide_offset(int key, int lane, int i, int e) {
    const int row = 2 * (lane % 4) + e % 2;
    const int own = key + e / 2 % 2 * 8 + lane / 4;
    return (own / kChunkKeys * C.queries + 8 * (i / 4 + e / 4) + row) * 128 +
           ((own % kChunkKeys / 4 ^ row) << 4) + own % 4 * 4;
  }
};

// ---- Tiles of keys, and shared memory ----

// Keys [key, key + C.keys()) of a key head; blocks of queries [first, end) for each query head.
struct BackwardTile : AttentionSequence {
  int32_t key, kv_head;
  int32_t first, end;
  bool back;          // if C.reverse_order(): from the first tile and the last query on
  int32_t start = 0;  // the step that comes first, if C.shared_cursor
};

// One step: a query head and a block of queries.
struct BackwardStep {
  int32_t head, block;
};

// By whole warps.
template <AttentionBackwardConfig C>
__device__ __forceinline__ BackwardTile find_backward_tile(const AttentionBackwardArguments& a,
                                                           int32_t number) {
  const TileCoordinate place =
      tile_in_sections(number, a.k_tiles, a.batch_heads, a.heads_per_section);
  BackwardTile tile;
  const bool by_head = (C.bias != DType::kNone || C.reverse_order()) && a.by_head;
  int32_t batch = by_head ? place.head % a.batch : place.head / a.kv_heads;
  const bool ragged = C.lengths && a.ragged;
  tile.kv_head = ragged ? place.head : by_head ? place.head / a.batch : place.head % a.kv_heads;
  tile.back = C.reverse_order() && tile.kv_head >= a.forward_heads;
  int32_t own = C.deterministic && !tile.back ? a.k_tiles - 1 - place.tile : place.tile;
  if (ragged)
    batch = max(sequence_of_block(a.cumulative_kv, a.total_kv, a.batch, C.keys(), own), 0);
  static_cast<AttentionSequence&>(tile) = find_sequence<C.lengths>(a, batch);
  if (ragged) own -= first_padded_block(tile.kv_begin, batch, C.keys());
  // A place that nobody has is a tile behind the last key.
  tile.key = own < 0 ? tile.kv_rows : own * C.keys();
  const int32_t first_query = C.right ? max(tile.key - tile.right + 1, 0) : 0;
  int32_t last_query =
      C.left ? min(tile.key + C.keys() - 1 - tile.left, tile.q_len - 1) : tile.q_len - 1;
  if (C.lengths && tile.key >= tile.kv_len) last_query = -1;
  tile.first = first_query / C.queries;
  tile.end = last_query >= first_query ? last_query / C.queries + 1 : tile.first;
  return tile;
}

// If C.shared_cursor: the step, of all query heads one after another, that some tile has come to.
__device__ __forceinline__ uint64_t* position_of(const AttentionBackwardArguments& a,
                                                 const BackwardTile& tile) {
  return a.position + tile.batch * a.kv_heads + tile.kv_head;
}

// visit(step number, step) for all steps of a tile that are this block's.
template <AttentionBackwardConfig C, class Visit>
__device__ __forceinline__ void for_each_step(const AttentionBackwardArguments& a,
                                              const BackwardTile& tile, Visit&& visit) {
  int number = 0;
  const int32_t heads = a.group / C.cluster_size;
  if constexpr (C.shared_cursor) {
    const int32_t blocks = max(tile.end, 1);
    int32_t g = tile.start / blocks, i = tile.start % blocks;
    while (number < heads * tile.end) {
      visit(number++, BackwardStep{tile.kv_head * a.group + g, i});
      if (++i < blocks) continue;
      i = 0;
      if (++g == heads) g = 0;
    }
    return;
  }
  const int32_t first =
      C.cluster_size > 1 ? static_cast<int32_t>(ptx::block_of_cluster()) * heads : 0;
  for (int32_t g = first; g < first + heads; ++g)
    for (int32_t i = tile.first; i < tile.end; ++i)
      visit(number++,
            BackwardStep{tile.kv_head * a.group + g,
                         C.reverse_order() && tile.back ? tile.end - 1 - (i - tile.first) : i});
}

// Shared memory, by addresses. Tiles are [chunk of 64 columns][row][64].
//   key, value            of the tile; at its end their gradients, on their way out
//   query, grad_out       of a step, C.kStages of each
//   scores                gradients of scores, rounded: [64 queries][key][64], for even and odd
//                         steps
//   weights               where consumers share products: from one to the other, float32
//   bias                  of a step, C.bias_stages of it (backward_tiles.hpp)
//   statistics            lse_log2 and delta of a step's queries
template <AttentionBackwardConfig C>
struct BackwardShared {
  unsigned char* memory;
  uint32_t base;

  static constexpr int kValue = C.key_bytes();
  static constexpr int kQuery = kValue + C.value_bytes();
  static constexpr int kGradOut = kQuery + C.kStages * C.query_bytes();
  static constexpr int kScores = kGradOut + C.kStages * C.out_bytes();
  static constexpr int kWeights = kScores + 2 * C.score_bytes();
  static constexpr int kBias = kWeights + C.weight_bytes();
  static constexpr int kStatistics = kBias + C.bias_stages * C.bias_bytes();
  static constexpr int kBarriers = kStatistics + C.kStages * C.statistics_bytes();
  static constexpr int kNonfinite =
      kBarriers + 8 * (2 + 4 * C.kStages + 2 * C.bias_stages + 3 * C.dq_semaphores());
  static_assert(kNonfinite + 4 <= C.shared_bytes());

  __device__ __forceinline__ uint32_t key() const { return base; }
  __device__ __forceinline__ uint32_t value() const { return base + kValue; }
  __device__ __forceinline__ uint32_t query(int stage) const {
    return base + kQuery + stage * C.query_bytes();
  }
  __device__ __forceinline__ uint32_t grad_out(int stage) const {
    return base + kGradOut + stage * C.out_bytes();
  }
  __device__ __forceinline__ uint32_t scores(int parity) const {
    return base + kScores + parity * C.score_bytes();
  }
  __device__ __forceinline__ float4* weights() const {
    return reinterpret_cast<float4*>(memory + kWeights);
  }
  __device__ __forceinline__ BiasTile<C> bias(int stage) const {
    const int at = kBias + stage * C.bias_bytes();
    return {memory + at, base + at};
  }
  __device__ __forceinline__ const float* lse_log2(int stage) const {
    return reinterpret_cast<const float*>(memory + kStatistics + stage * C.statistics_bytes());
  }
  __device__ __forceinline__ const float* delta(int stage) const {
    return lse_log2(stage) + C.queries;
  }
  __device__ __forceinline__ uint32_t address(const float* statistics) const {
    return base +
           static_cast<uint32_t>(reinterpret_cast<const unsigned char*>(statistics) - memory);
  }

  // Not 0: a key or value of the tile, or lse or delta of a query that visits it, is not finite.
  __device__ __forceinline__ uint32_t& nonfinite() const {
    return *reinterpret_cast<uint32_t*>(memory + kNonfinite);
  }

  __device__ __forceinline__ uint32_t barrier(int index) const {
    return base + kBarriers + 8 * index;
  }
  __device__ __forceinline__ uint32_t key_full() const { return barrier(0); }
  __device__ __forceinline__ uint32_t value_full() const { return barrier(1); }
  __device__ __forceinline__ uint32_t query_full(int stage) const { return barrier(2 + stage); }
  __device__ __forceinline__ uint32_t query_empty(int stage) const {
    return barrier(2 + C.kStages + stage);
  }
  __device__ __forceinline__ uint32_t out_full(int stage) const {
    return barrier(2 + 2 * C.kStages + stage);
  }
  __device__ __forceinline__ uint32_t out_empty(int stage) const {
    return barrier(2 + 3 * C.kStages + stage);
  }

  __device__ __forceinline__ uint32_t dq_granted(int consumer) const {
    return barrier(2 + 4 * C.kStages + 2 * C.bias_stages + consumer);
  }
  __device__ __forceinline__ uint32_t dq_added(int consumer) const {
    return dq_granted(C.dq_semaphores() + consumer);
  }
  __device__ __forceinline__ uint32_t dq_released(int consumer) const {
    return dq_granted(2 * C.dq_semaphores() + consumer);
  }
  __device__ __forceinline__ uint32_t bias_full(int stage) const {
    return barrier(2 + 4 * C.kStages + stage);
  }
  __device__ __forceinline__ uint32_t bias_empty(int stage) const {
    return barrier(2 + 4 * C.kStages + C.bias_stages + stage);
  }
  __device__ __forceinline__ void prepare() const {
    nonfinite() = 0;
    ptx::mbarrier_init(key_full(), 1);
    ptx::mbarrier_init(value_full(), 1);
    for (int stage = 0; stage < C.kStages; ++stage) {
      ptx::mbarrier_init(query_full(stage), 1);
      ptx::mbarrier_init(query_empty(stage), 4 * C.kConsumers);
      ptx::mbarrier_init(out_full(stage), 1);
      ptx::mbarrier_init(out_empty(stage), 4 * C.kConsumers);
    }
    for (int consumer = 0; consumer < C.dq_semaphores(); ++consumer) {
      ptx::mbarrier_init(dq_granted(consumer), 1);
      ptx::mbarrier_init(dq_added(consumer), 4);
      ptx::mbarrier_init(dq_released(consumer), 1);
    }
    for (int stage = 0; stage < C.bias_stages; ++stage) {
      ptx::mbarrier_init(bias_full(stage), 1);
      ptx::mbarrier_init(bias_empty(stage), 4 * C.kConsumers);
    }
    ptx::mbarrier_init_fence();
  }
};

// The stage of a step, and the parity of the phase in which it is full.
template <AttentionBackwardConfig C>
__device__ __forceinline__ PipelineState<C.kStages> stage_of(int step) {
  return {step};
}

// Until another block has brought the number in memory to `value`, or anybody has given up.
__device__ __forceinline__ bool await_number(const uint64_t* number, uint64_t value,
                                             uint64_t* timed_out) {
  constexpr uint32_t kPolls = 1024;  // between looks at the clock
  if (ptx::load_acquire(number) == value) return true;
  const uint64_t begin = ptx::nanoseconds();
  for (uint32_t polls = 1; ptx::load_acquire(number) != value; ++polls) {
    if (polls % kPolls != 0) continue;
    if (ptx::load_relaxed(timed_out) == 0 && ptx::nanoseconds() - begin < kLongestWait) continue;
    ptx::store_relaxed(timed_out, 1);
    return false;
  }
  return true;
}

// Runs in one thread. Half of a step is a box of rows and a number for each of them.
template <AttentionBackwardConfig C>
class BackwardProducer {
 public:
  __device__ __forceinline__ BackwardProducer(const AttentionBackwardArguments& arguments,
                                              const BackwardShared<C>& shared,
                                              const BackwardTile& tile)
      : a_(arguments), shared_(shared), tile_(tile) {}

  __device__ __forceinline__ void run() {
    for_each_step<C>(a_, tile_, [&](int number, const BackwardStep& step) {
      const PipelineState<C.kStages> stage = stage_of<C>(number);
      const int place = stage.stage();
      if constexpr (C.shared_cursor) {
        constexpr int kSteps = 8;  // between words about where the tile is
        if (number % kSteps == 0)
          ptx::store_relaxed(position_of(a_, tile_),
                             static_cast<uint64_t>(step.head % a_.group * tile_.end + step.block));
      }
      if (number == 0) load_keys<C.key_chunks()>(shared_.key_full(), shared_.key(), a_.key);
      ptx::mbarrier_wait(shared_.query_empty(place), stage.parity() ^ 1);
      load_half<C.key_chunks()>(shared_.query_full(place), shared_.query(place), a_.query,
                                shared_.lse_log2(place), a_.finite_lse_log2, step);
      if constexpr (C.bias_stages > 0)
        if (a_.bias_mapped) load_bias(number, step);
      if (number == 0) load_keys<C.value_chunks()>(shared_.value_full(), shared_.value(), a_.value);
      ptx::mbarrier_wait(shared_.out_empty(place), stage.parity() ^ 1);
      load_half<C.value_chunks()>(shared_.out_full(place), shared_.grad_out(place), a_.grad_out,
                                  shared_.delta(place), a_.finite_delta, step);
    });
  }

 private:
  template <int kChunks>
  __device__ __forceinline__ void load_keys(uint32_t full, uint32_t to, const TensorMap& map) {
    ptx::mbarrier_arrive_expect_tx(full, C.keys() * 128 * kChunks);
    const MapCoordinate place = key_coordinate<C.lengths>(a_, tile_);
    load_rows<kChunks>(to, C.keys(), map, full, place.row + tile_.key, tile_.kv_head, place.entry);
  }
  template <int kChunks>
  __device__ __forceinline__ void load_half(uint32_t full, uint32_t to, const TensorMap& map,
                                            const float* numbers_to, const float* numbers,
                                            const BackwardStep& step) {
    const int64_t at = block_number<C>(a_, tile_, step.head, step.block) * C.queries;
    ptx::mbarrier_arrive_expect_tx(full, C.queries * (128 * kChunks + 4));
    const MapCoordinate place = query_coordinate<C.lengths>(a_, tile_);
    load_rows<kChunks>(to, C.queries, map, full, place.row + step.block * C.queries, step.head,
                       place.entry);
    ptx::bulk_load(shared_.address(numbers_to), numbers + at, C.queries * 4, full);
  }

  __device__ __forceinline__ void load_bias(int number, const BackwardStep& step) {
    const PipelineState<C.bias_stages> stage{number};
    const uint32_t full = shared_.bias_full(stage.stage());
    ptx::mbarrier_wait(shared_.bias_empty(stage.stage()), stage.parity() ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, C.bias_bytes());
#pragma unroll
    for (int key = 0; key < C.keys(); key += BiasTile<C>::kChunkKeys)
      ptx::tma_load(shared_.bias(stage.stage()).chunk(key), a_.bias_map, full,
                    {tile_.key + key, step.block * C.queries, step.head * a_.bias_head,
                     tile_.batch * a_.bias_batch, 0});
  }

  const AttentionBackwardArguments& a_;
  const BackwardShared<C>& shared_;
  const BackwardTile& tile_;
};

}  // namespace perseid::internal::cuda
