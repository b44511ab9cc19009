// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward on sm_90a: which tile of keys a block has and which blocks of queries that
// visits; shared memory; and the producer, which loads both.
//
// Order. Key heads go in sections whose queries and gradients fit into the L2 cache together; in a
// section the first keys come first, which have the most queries under a causal mask. A tile visits
// all query heads of its key head one after another, so that its gradients never leave registers
// before they are complete. If C.follows, it begins where another tile of its key head is and ends
// there: over many queries tiles would come apart, and each would read from memory what others have
// had in the cache.
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
#include "cuda/device/sm90/attention_backward_bias_tile.hpp"
#include "cuda/device/sm90/attention_backward_blocks.hpp"
#include "cuda/device/sm90/attention_loads.hpp"

namespace perseid::cuda {

// Keys [key, key + C.keys()) of a key head; blocks of queries [first, end) for each query head.
struct BackwardTile : AttentionSequence {
  int32_t key, kv_head;
  int32_t first, end;
  bool back;          // if C.turns_back(): from the first tile and the last query on
  int32_t start = 0;  // the step that comes first, if C.follows
};

// One step: a query head and a block of queries.
struct BackwardStep {
  int32_t head, block;
};

// By whole warps.
template <AttentionBackwardConfig C>
__device__ __forceinline__ BackwardTile find_backward_tile(const AttentionBackwardArguments& a,
                                                           int32_t number) {
  const TilePlace place = place_in_sections(number, a.k_tiles, a.batch_heads, a.heads_per_section);
  BackwardTile tile;
  const bool by_head = (C.bias != DType::kNone || C.turns_back()) && a.by_head;
  int32_t batch = by_head ? place.head % a.batch : place.head / a.kv_heads;
  const bool ragged = C.lengths && a.ragged;
  tile.kv_head = ragged ? place.head : by_head ? place.head / a.batch : place.head % a.kv_heads;
  tile.back = C.turns_back() && tile.kv_head >= a.heads_forth;
  int32_t own = C.deterministic && !tile.back ? a.k_tiles - 1 - place.tile : place.tile;
  if (ragged) batch = max(sequence_at(a.cumulative_kv, a.total_kv, a.batch, C.keys(), own), 0);
  static_cast<AttentionSequence&>(tile) = find_sequence<C.lengths>(a, batch);
  if (ragged) own -= first_place(tile.kv_begin, batch, C.keys());
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

// If C.follows: the step, of all query heads one after another, that some tile has come to.
__device__ __forceinline__ uint64_t* position_of(const AttentionBackwardArguments& a,
                                                 const BackwardTile& tile) {
  return a.position + tile.batch * a.kv_heads + tile.kv_head;
}

// visit(step number, step) for all steps of a tile that are this block's.
template <AttentionBackwardConfig C, class Visit>
__device__ __forceinline__ void for_each_step(const AttentionBackwardArguments& a,
                                              const BackwardTile& tile, Visit&& visit) {
  int number = 0;
  const int32_t heads = a.group / C.parts;
  if constexpr (C.follows) {
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
  const int32_t first = C.parts > 1 ? static_cast<int32_t>(ptx::block_of_cluster()) * heads : 0;
  for (int32_t g = first; g < first + heads; ++g)
    for (int32_t i = tile.first; i < tile.end; ++i)
      visit(number++,
            BackwardStep{tile.kv_head * a.group + g,
                         C.turns_back() && tile.back ? tile.end - 1 - (i - tile.first) : i});
}

// Shared memory, by addresses. Tiles are [chunk of 64 columns][row][64].
//   key, value            of the tile; at its end their gradients, on their way out
//   query, grad_out       of a step, C.kStages of each
//   scores                gradients of scores, rounded: [64 queries][key][64], for even and odd
//                         steps
//   weights               where consumers share products: from one to the other, float32
//   bias                  of a step, C.bias_slots of it (attention_backward_bias_tile.hpp)
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
  static constexpr int kStatistics = kBias + C.bias_slots * C.bias_bytes();
  static constexpr int kBarriers = kStatistics + C.kStages * C.statistics_bytes();
  static_assert(kBarriers + 8 * (2 + 4 * C.kStages + 2 * C.bias_slots + 3 * C.turns()) <=
                C.shared_bytes());

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
  __device__ __forceinline__ BiasTile<C> bias(int slot) const {
    const int at = kBias + slot * C.bias_bytes();
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

  __device__ __forceinline__ uint32_t turn_comes(int consumer) const {
    return barrier(2 + 4 * C.kStages + 2 * C.bias_slots + consumer);
  }
  __device__ __forceinline__ uint32_t turn_ends(int consumer) const {
    return turn_comes(C.turns() + consumer);
  }
  __device__ __forceinline__ uint32_t turn_passed(int consumer) const {
    return turn_comes(2 * C.turns() + consumer);
  }
  __device__ __forceinline__ uint32_t bias_full(int slot) const {
    return barrier(2 + 4 * C.kStages + slot);
  }
  __device__ __forceinline__ uint32_t bias_empty(int slot) const {
    return barrier(2 + 4 * C.kStages + C.bias_slots + slot);
  }
  __device__ __forceinline__ void prepare() const {
    ptx::phase_init(key_full(), 1);
    ptx::phase_init(value_full(), 1);
    for (int stage = 0; stage < C.kStages; ++stage) {
      ptx::phase_init(query_full(stage), 1);
      ptx::phase_init(query_empty(stage), 4 * C.kConsumers);
      ptx::phase_init(out_full(stage), 1);
      ptx::phase_init(out_empty(stage), 4 * C.kConsumers);
    }
    for (int consumer = 0; consumer < C.turns(); ++consumer) {
      ptx::phase_init(turn_comes(consumer), 1);
      ptx::phase_init(turn_ends(consumer), 4);
      ptx::phase_init(turn_passed(consumer), 1);
    }
    for (int slot = 0; slot < C.bias_slots; ++slot) {
      ptx::phase_init(bias_full(slot), 1);
      ptx::phase_init(bias_empty(slot), 4 * C.kConsumers);
    }
    ptx::phase_init_done();
  }
};

// The stage of a step, and the parity of the phase in which it is full.
template <AttentionBackwardConfig C>
__device__ __forceinline__ Ring<C.kStages> stage_of(int step) {
  return {step};
}

// Until another block has brought the number in memory to `value`, or anybody has given up.
__device__ __forceinline__ bool await_number(const uint64_t* number, uint64_t value,
                                             uint64_t* given_up) {
  constexpr uint32_t kPolls = 1024;  // between looks at the clock
  if (ptx::load_acquire(number) == value) return true;
  const uint64_t begin = ptx::nanoseconds();
  for (uint32_t polls = 1; ptx::load_acquire(number) != value; ++polls) {
    if (polls % kPolls != 0) continue;
    if (ptx::load_relaxed(given_up) == 0 && ptx::nanoseconds() - begin < kLongestWait) continue;
    ptx::store_relaxed(given_up, 1);
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
      const Ring<C.kStages> stage = stage_of<C>(number);
      const int place = stage.place();
      if constexpr (C.follows) {
        constexpr int kSteps = 8;  // between words about where the tile is
        if (number % kSteps == 0)
          ptx::store_relaxed(position_of(a_, tile_),
                             static_cast<uint64_t>(step.head % a_.group * tile_.end + step.block));
      }
      if (number == 0) load_keys<C.key_chunks()>(shared_.key_full(), shared_.key(), a_.key);
      ptx::phase_wait(shared_.query_empty(place), stage.parity() ^ 1);
      load_half<C.key_chunks()>(shared_.query_full(place), shared_.query(place), a_.query,
                                shared_.lse_log2(place), a_.lse_log2, step);
      if constexpr (C.bias_slots > 0)
        if (a_.bias_mapped) load_bias(number, step);
      if (number == 0) load_keys<C.value_chunks()>(shared_.value_full(), shared_.value(), a_.value);
      ptx::phase_wait(shared_.out_empty(place), stage.parity() ^ 1);
      load_half<C.value_chunks()>(shared_.out_full(place), shared_.grad_out(place), a_.grad_out,
                                  shared_.delta(place), a_.delta, step);
    });
  }

 private:
  template <int kChunks>
  __device__ __forceinline__ void load_keys(uint32_t full, uint32_t to, const TensorMap& map) {
    ptx::phase_expect(full, C.keys() * 128 * kChunks);
    const PlaceInMap place = keys_in_map<C.lengths>(a_, tile_);
    load_rows<kChunks>(to, C.keys(), map, full, place.row + tile_.key, tile_.kv_head, place.entry);
  }
  template <int kChunks>
  __device__ __forceinline__ void load_half(uint32_t full, uint32_t to, const TensorMap& map,
                                            const float* numbers_to, const float* numbers,
                                            const BackwardStep& step) {
    const int64_t at = block_number<C>(a_, tile_, step.head, step.block) * C.queries;
    ptx::phase_expect(full, C.queries * (128 * kChunks + 4));
    const PlaceInMap place = queries_in_map<C.lengths>(a_, tile_);
    load_rows<kChunks>(to, C.queries, map, full, place.row + step.block * C.queries, step.head,
                       place.entry);
    ptx::load_bytes(shared_.address(numbers_to), numbers + at, C.queries * 4, full);
  }

  __device__ __forceinline__ void load_bias(int number, const BackwardStep& step) {
    const Ring<C.bias_slots> slot{number};
    const uint32_t full = shared_.bias_full(slot.place());
    ptx::phase_wait(shared_.bias_empty(slot.place()), slot.parity() ^ 1);
    ptx::phase_expect(full, C.bias_bytes());
#pragma unroll
    for (int key = 0; key < C.keys(); key += BiasTile<C>::kChunkKeys)
      ptx::load_box(shared_.bias(slot.place()).chunk(key), a_.bias_map, full,
                    {tile_.key + key, step.block * C.queries, step.head * a_.bias_head,
                     tile_.batch * a_.bias_batch, 0});
  }

  const AttentionBackwardArguments& a_;
  const BackwardShared<C>& shared_;
  const BackwardTile& tile_;
};

// The last tile of keys that visits a block of queries.
template <AttentionBackwardConfig C>
__device__ __forceinline__ int32_t last_tile(const BackwardTile& tile, int32_t block) {
  const int32_t end = min((block + 1) * C.queries, tile.q_len) - 1 + tile.right;
  return ((C.right ? min(end, tile.kv_len) : tile.kv_len) - 1) / C.keys();
}

// Deterministic: how many tiles add to a block of queries before this one.
template <AttentionBackwardConfig C>
__device__ __forceinline__ int32_t turns_before(const BackwardTile& tile, int32_t block) {
  const int32_t own = tile.key / C.keys();
  return C.turns_back() && tile.back ? own : last_tile<C>(tile, block) - own;
}

template <AttentionBackwardConfig C>
__device__ __forceinline__ uint64_t* complete_sums(const AttentionBackwardArguments& a,
                                                   const BackwardTile& tile) {
  return a.complete + tile.batch * a.kv_heads + tile.kv_head;
}

// Otherwise: a warp beside the producer tells when the tile has no more summands of grad_query, so
// that nobody waits for memory who has something else to do. Consumers arrive at the named barrier.
inline constexpr int kEndOfSums = 2;
template <AttentionBackwardConfig C>
__device__ __forceinline__ void tell_of_end(const AttentionBackwardArguments& a,
                                            const BackwardTile& tile) {
  ptx::named_sync(kEndOfSums, 256 + 32);
  if (threadIdx.x % 32 == 0) ptx::add_release(complete_sums<C>(a, tile), C.kConsumers);
}

// Deterministic: the turns of the consumers' summands of grad_query. Threads beside the producer
// wait for memory, so that consumers do not: one for each consumer looks out for its turns, one
// passes them on. Barriers of each consumer, a phase for each step:
//   turn_comes     who looks out lets the consumer add
//   turn_ends      the consumer's four warps have added
//   turn_passed    who passes it on has seen that: the next one may come
// Nobody lets a phase end before the last one was waited for, in which it would be missed. Passing
// a turn on, with release, orders what was added before turn_ends, too. Who has the first turn
// stores its summands: nobody has cleared the sums.
template <AttentionBackwardConfig C>
class BackwardTurns {
 public:
  __device__ __forceinline__ BackwardTurns(const AttentionBackwardArguments& arguments,
                                           const BackwardShared<C>& shared,
                                           const BackwardTile& tile)
      : a_(arguments), shared_(shared), tile_(tile) {}

  __device__ __forceinline__ void look_out(int consumer) const {
    bool in_order = true;
    for_each_step<C>(a_, tile_, [&](int number, const BackwardStep& step) {
      in_order = in_order && await_number(turn(step, consumer), rank(step), a_.given_up);
      if (number > 0) ptx::phase_wait(shared_.turn_passed(consumer), parity(number - 1));
      ptx::phase_arrive(shared_.turn_comes(consumer));
    });
  }
  __device__ __forceinline__ void pass_on() const {
    for_each_step<C>(a_, tile_, [&](int number, const BackwardStep& step) {
#pragma unroll
      for (int i = 0; i < C.kConsumers; ++i) {
        const int consumer = C.halves ? i : 1 - i;  // the first to add
        ptx::phase_wait(shared_.turn_ends(consumer), parity(number));
        ptx::phase_arrive(shared_.turn_passed(consumer));
        ptx::store_release(turn(step, consumer), rank(step) + 1);
      }
    });
    if constexpr (C.finishes_early()) ptx::add_release(complete_sums<C>(a_, tile_), C.kConsumers);
  }

  static __device__ __forceinline__ uint32_t parity(int number) {
    return static_cast<uint32_t>(number) & 1;
  }

 private:
  __device__ __forceinline__ uint64_t* turn(const BackwardStep& step, int consumer) const {
    return a_.turns + block_number<C>(a_, tile_, step.head, step.block) * C.kConsumers + consumer;
  }
  __device__ __forceinline__ uint64_t rank(const BackwardStep& step) const {
    return static_cast<uint64_t>(turns_before<C>(tile_, step.block));
  }

  const AttentionBackwardArguments& a_;
  const BackwardShared<C>& shared_;
  const BackwardTile& tile_;
};

}  // namespace perseid::cuda
