// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The gradient of a bias that many queries share: dBias = dS, summed over the batch entries, heads,
// queries and keys along which the bias is repeated.
//
// A block takes tiles of dBias, C.queries x C.keys(), and visits every unit (batch entry, head,
// block of queries, tile of keys) that enters one: two of the five products make dS anew, which is
// added up in registers. So each element is summed in a fixed order, rounded once, and written
// once, whatever the shape of the bias; nothing is cleared before, and the bias is read once.
//
//   producer    asks for a tile of bias, and of its units for K and Q with lse, V and dO with delta
//   consumer    S^T = K Q^T, dP^T = V dO^T for 64 keys; P, dS; sum += dS
//
// Where the copy engine reaches bias and dBias, and nothing is summed along queries or keys, the
// sums take the place of the tile of bias and leave from there, while the next tile begins: a block
// for each multiprocessor. Else a block has one tile, and the sums meet in shared memory; a sum
// with few tiles is cut into parts, and the last block to come adds them, in their order.
//
// Barriers: scores_full, gradients_full, bias_full (the producer and the bytes); scores_empty,
// gradients_empty, bias_empty (all eight warps of the consumers). Named barriers: 1 joins the
// consumers (256 threads), kTurn + c is the turn of consumer c (256: those that wait for it and
// those that pass it on), kJoin + c joins the warps of consumer c (128).
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/sm90/attention/backward_scores.hpp"

namespace perseid::internal::cuda {

template <AttentionBackwardConfig C>
struct BiasShared {
  unsigned char* memory;
  uint32_t base;

  static constexpr int kStages = C.unit_stages(), kBiasStages = C.unit_bias_stages();
  static constexpr int kQuery = C.key_bytes();
  static constexpr int kValue = kQuery + C.query_bytes();
  static constexpr int kGradOut = kValue + C.value_bytes();
  static constexpr int kStage = kGradOut + C.out_bytes();
  static constexpr int kBias = kStages * kStage;
  static constexpr int kStatistics = kBias + kBiasStages * C.bias_bytes();
  static constexpr int kBarriers = kStatistics + kStages * C.statistics_bytes();
  static constexpr int kPitch = C.keys() + 1;  // of sums, which come where the stages were
  static_assert(kBarriers + 8 * (4 * kStages + 2 * kBiasStages) <= C.unit_shared_bytes());
  static_assert(C.unit_shared_bytes() <= kMostShared);
  static_assert(C.queries * kPitch * 4 <= kBias);

  __device__ __forceinline__ uint32_t key(int stage) const { return base + stage * kStage; }
  __device__ __forceinline__ uint32_t query(int stage) const { return key(stage) + kQuery; }
  __device__ __forceinline__ uint32_t value(int stage) const { return key(stage) + kValue; }
  __device__ __forceinline__ uint32_t grad_out(int stage) const { return key(stage) + kGradOut; }
  __device__ __forceinline__ BiasTile<C> bias(int stage) const {
    const int at = kBias + stage * C.bias_bytes();
    return {memory + at, base + at};
  }
  __device__ __forceinline__ float* sums() const { return reinterpret_cast<float*>(memory); }
  __device__ __forceinline__ const float* lse_log2(int stage) const {
    return reinterpret_cast<const float*>(memory + kStatistics + stage * C.statistics_bytes());
  }
  __device__ __forceinline__ const float* delta(int stage) const {
    return lse_log2(stage) + C.queries;
  }
  __device__ __forceinline__ uint32_t lse_address(int stage) const {
    return base + kStatistics + stage * C.statistics_bytes();
  }
  __device__ __forceinline__ uint32_t barrier(int kind, int stage) const {
    return base + kBarriers + 8 * (kind * kStages + stage);
  }
  __device__ __forceinline__ uint32_t scores_full(int stage) const { return barrier(0, stage); }
  __device__ __forceinline__ uint32_t scores_empty(int stage) const { return barrier(1, stage); }
  __device__ __forceinline__ uint32_t gradients_full(int stage) const { return barrier(2, stage); }
  __device__ __forceinline__ uint32_t gradients_empty(int stage) const { return barrier(3, stage); }

  __device__ __forceinline__ uint32_t bias_full(int stage) const {
    return base + kBarriers + 8 * (4 * kStages + stage);
  }
  __device__ __forceinline__ uint32_t bias_empty(int stage) const {
    return base + kBarriers + 8 * (4 * kStages + kBiasStages + stage);
  }

  __device__ __forceinline__ void prepare() const {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(scores_full(stage), 1);
      ptx::mbarrier_init(scores_empty(stage), 4 * C.kConsumers);
      ptx::mbarrier_init(gradients_full(stage), 1);
      ptx::mbarrier_init(gradients_empty(stage), 4 * C.kConsumers);
    }
    for (int stage = 0; stage < kBiasStages; ++stage) {
      ptx::mbarrier_init(bias_full(stage), 1);
      ptx::mbarrier_init(bias_empty(stage), 4 * C.kConsumers);
    }
    ptx::mbarrier_init_fence();
  }
};

// A tile of dBias, and the units that enter it.
template <AttentionBackwardConfig C>
struct BiasPart {
  int32_t batch, head;     // of dBias
  int32_t q_tile, k_tile;  // 0 where the bias is repeated
  int32_t part;
  int32_t number;  // of the tile

  __device__ __forceinline__ BiasPart(const AttentionBackwardBiasArguments& a, int32_t block) {
    part = block % a.parts;
    int32_t rest = number = block / a.parts;
    k_tile = rest % a.bias_k_tiles;
    rest /= a.bias_k_tiles;
    q_tile = rest % a.bias_q_tiles;
    rest /= a.bias_q_tiles;
    head = rest % a.bias_heads;
    batch = rest / a.bias_heads;
  }

  // visit(tile, step) for the units of the part, in order. A sum within one sequence is cut by that
  // sequence's own lengths, not by those beside it.
  template <class Visit>
  __device__ __forceinline__ void for_each_unit(const AttentionBackwardBiasArguments& a,
                                                Visit&& visit) const {
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
    int32_t at[4] =
        {};  // tile of keys, block of queries, head, batch entry: the first goes fastest
    if (a.parts > 1) {
      int64_t rest = part * units / a.parts;
      units = (part + 1) * units / a.parts - rest;
      const int32_t sizes[3] = {k_tiles, blocks, heads};
#pragma unroll
      for (int d = 0; d < 3; ++d) {
        at[d] = static_cast<int32_t>(rest % max(sizes[d], 1));
        rest /= max(sizes[d], 1);
      }
      at[3] = static_cast<int32_t>(rest);
    }
    bool entered = false;  // the batch entry is that of `sequence`
    for (; units > 0; --units) {
      if (a.sums_batch && !entered) sequence = find_sequence<C.lengths>(a, at[3]);
      entered = true;
      tile.key = (k_tile + at[0]) * C.keys();
      const BackwardStep step{head + at[2], q_tile + at[1]};
      tile.kv_head = step.head / a.group;
      if (is_seen(tile, step)) visit(tile, step);
      if (++at[0] < k_tiles) continue;
      at[0] = 0;
      if (++at[1] < blocks) continue;
      at[1] = 0;
      if (++at[2] < heads) continue;
      at[2] = 0;
      ++at[3];
      entered = false;
    }
  }

 private:
  static __device__ __forceinline__ bool is_seen(const BackwardTile& tile,
                                                 const BackwardStep& step) {
    const int32_t first = step.block * C.queries;
    const int32_t last = min(first + C.queries, tile.q_len) - 1;
    return first <= last && tile.key < tile.kv_len && !(C.right && tile.key >= last + tile.right) &&
           !(C.left && tile.key + C.keys() <= first + tile.left);
  }
};

template <AttentionBackwardConfig C>
class BiasProducer {
 public:
  __device__ __forceinline__ BiasProducer(const AttentionBackwardBiasArguments& arguments,
                                          const BiasShared<C>& shared)
      : a_(arguments), shared_(shared) {}

  __device__ __forceinline__ void run() {
    for (auto block = static_cast<int32_t>(blockIdx.x); block < a_.blocks;
         block += static_cast<int32_t>(gridDim.x)) {
      const BiasPart<C> part(a_, block);
      if (a_.mapped) load_bias(part);
      part.for_each_unit(
          a_, [&](const BackwardTile& tile, const BackwardStep& step) { load_unit(tile, step); });
    }
  }

 private:
  __device__ __forceinline__ void load_bias(const BiasPart<C>& part) {
    const int stage = bias_ring_.stage();
    const uint32_t full = shared_.bias_full(stage);
    ptx::mbarrier_wait(shared_.bias_empty(stage), bias_ring_.parity() ^ 1);
    ++bias_ring_.count;
    ptx::mbarrier_arrive_expect_tx(full, C.bias_bytes());
#pragma unroll
    for (int key = 0; key < C.keys(); key += BiasTile<C>::kChunkKeys)
      ptx::tma_load(
          shared_.bias(stage).chunk(key), a_.bias_map, full,
          {part.k_tile * C.keys() + key, part.q_tile * C.queries, part.head, part.batch, 0});
  }
  __device__ __forceinline__ void load_unit(const BackwardTile& tile, const BackwardStep& step) {
    const int stage = units_.stage();
    const MapCoordinate keys = key_coordinate<C.lengths>(a_, tile);
    const MapCoordinate queries = query_coordinate<C.lengths>(a_, tile);
    const int key = keys.row + tile.key, query = queries.row + step.block * C.queries;
    const int64_t at = block_number<C>(a_, tile, step.head, step.block) * C.queries;

    uint32_t full = shared_.scores_full(stage);
    ptx::mbarrier_wait(shared_.scores_empty(stage), units_.parity() ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, C.key_bytes() + C.query_bytes() + C.queries * 4);
    load_rows<C.key_chunks()>(shared_.key(stage), C.keys(), a_.key, full, key, tile.kv_head,
                              keys.entry);
    load_rows<C.key_chunks()>(shared_.query(stage), C.queries, a_.query, full, query, step.head,
                              queries.entry);
    ptx::bulk_load(shared_.lse_address(stage), a_.lse_log2 + at, C.queries * 4, full);

    full = shared_.gradients_full(stage);
    ptx::mbarrier_wait(shared_.gradients_empty(stage), units_.parity() ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, C.value_bytes() + C.out_bytes() + C.queries * 4);
    load_rows<C.value_chunks()>(shared_.value(stage), C.keys(), a_.value, full, key, tile.kv_head,
                                keys.entry);
    load_rows<C.value_chunks()>(shared_.grad_out(stage), C.queries, a_.grad_out, full, query,
                                step.head, queries.entry);
    ptx::bulk_load(shared_.lse_address(stage) + C.queries * 4, a_.delta + at, C.queries * 4, full);
    ++units_.count;
  }

  const AttentionBackwardBiasArguments& a_;
  const BiasShared<C>& shared_;
  PipelineState<C.unit_stages()> units_;
  PipelineState<C.unit_bias_stages()> bias_ring_;
};

template <AttentionBackwardConfig C>
class BiasConsumer : BackwardScores<C> {
  using Scores = BackwardScores<C>;
  using Scores::kScores, Scores::number_, Scores::warp_, Scores::lane_;
  static constexpr int kTurn = 2, kJoin = 4;  // named barriers, one for each consumer

 public:
  __device__ __forceinline__ BiasConsumer(const AttentionBackwardBiasArguments& arguments,
                                          const BiasShared<C>& shared, int number)
      : Scores(arguments, number), a_(arguments), shared_(shared) {}

  __device__ __forceinline__ void run() {
    float sums[kScores];
    if (number_ == 1) scheduler_arrive();
    for (auto block = static_cast<int32_t>(blockIdx.x); block < a_.blocks;
         block += static_cast<int32_t>(gridDim.x)) {
      const BiasPart<C> part(a_, block);
      const int stage = bias_ring_.stage();
      if (a_.mapped)
        ptx::mbarrier_wait(shared_.bias_full(stage), bias_ring_.parity());
      else
        fetch_bias(part, stage);
      ++bias_ring_.count;
#pragma unroll
      for (float& sum : sums) sum = 0;
      part.for_each_unit(a_, [&](const BackwardTile& tile, const BackwardStep& step) {
        add_unit(tile, step, stage, sums);
      });
      if (a_.mapped) {
        release_bias();
        store(part, stage, sums);
      } else {
        ptx::named_barrier_sync(1, 256);
        share_sums(sums);
        finish(part);
      }
    }
    if (number_ == 0) scheduler_wait();  // so that no barrier is left half full
    if (lane_ == 0) ptx::tma_store_wait();
  }

 private:
  __device__ __forceinline__ void add_unit(const BackwardTile& tile, const BackwardStep& step,
                                           int bias_stage, float (&sums)[kScores]) {
    const int stage = units_.stage();
    float scores[kScores], products[kScores];
    ptx::mbarrier_wait(shared_.scores_full(stage), units_.parity());
    this->begin_with_bias(scores, shared_.lse_log2(stage), shared_.bias(bias_stage));
    ptx::fence_operand(scores);
    scheduler_wait();
    ptx::wgmma_fence();
    this->template begin_scores<C.key_dim>(scores, shared_.key(stage), shared_.query(stage), true);
    ptx::mbarrier_wait(shared_.gradients_full(stage), units_.parity());
    ptx::wgmma_fence();
    this->template begin_scores<C.value_dim>(products, shared_.value(stage),
                                             shared_.grad_out(stage));
    scheduler_arrive();
    typename Scores::Dropped dropped;
    this->find_dropped(tile, step, dropped);
    ptx::wgmma_wait<1>();
    ptx::fence_operand(scores);
    this->template scores_to_weights<true>(scores, tile, step, shared_.lse_log2(stage),
                                           shared_.bias(bias_stage), true, dropped);
    this->leave(shared_.scores_empty(stage));
    ptx::wgmma_wait<0>();
    ptx::fence_operand(products);
    this->weights_to_ds(scores, products, shared_.delta(stage), [&](int i, float(&eight)[8]) {
      this->clear_masked(scores, i, eight);
#pragma unroll
      for (int e = 0; e < 8; ++e) sums[i + e] += eight[e];
    });
    this->leave(shared_.gradients_empty(stage));
    ++units_.count;
    release_bias();
  }

  // Consumers begin their products in turns, so that one takes weights under the products of the
  // other.
  __device__ __forceinline__ void scheduler_wait() const {
    ptx::named_barrier_sync(kTurn + number_, 256);
  }
  __device__ __forceinline__ void scheduler_arrive() const {
    ptx::named_barrier_arrive(kTurn + 1 - number_, 256);
  }

  // ---- By the copy engine ----

  __device__ __forceinline__ void store(const BiasPart<C>& part, int stage,
                                        const float (&sums)[kScores]) {
    const BiasTile<C> tile = shared_.bias(stage);
#pragma unroll
    for (int i = 0; i < kScores; i += 8) {
      float eight[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) eight[e] = sums[i + e];
      tile.store(this->warp_key(), lane_, i, eight);
    }
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kJoin + number_, 128);
    if (is_speaker()) {
#pragma unroll
      for (int key = 64 * number_; key < 64 * number_ + 64; key += BiasTile<C>::kChunkKeys)
        ptx::tma_store(
            a_.grad_bias_map, tile.chunk(key),
            {part.k_tile * C.keys() + key, part.q_tile * C.queries, part.head, part.batch, 0});
      ptx::tma_store_commit();
    }
    leaving_ = stage;
    if constexpr (C.unit_bias_stages() == 1) release_bias();
  }
  // That of the tile before, under the first unit of this one.
  __device__ __forceinline__ void release_bias() {
    if (leaving_ < 0) return;
    if (is_speaker()) ptx::tma_store_wait_read();
    this->leave(shared_.bias_empty(leaving_));
    leaving_ = -1;
  }
  __device__ __forceinline__ bool is_speaker() const { return warp_ == 0 && lane_ == 0; }

  // ---- Without it ----

  // The tile of bias, which all units have, from wherever it is. Lanes read what lanes of their own
  // warp have written.
  __device__ __forceinline__ void fetch_bias(const BiasPart<C>& part, int stage) const {
    using Element = typename ElementOf<C.bias>::Type;
    const Element* bias = score_row<Element>(a_.bias, part.batch, part.head, 0);
    float all[kScores];
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int q = part.q_tile * C.queries + 2 * (lane_ % 4) + i / 4 * 8 + i % 2;
      const int key = part.k_tile * C.keys() + this->warp_key() + lane_ / 4 + i / 2 % 2 * 8;
      // Of what is repeated the stride is 0.
      const bool there = q < a_.q_len && key < a_.kv_len;
      all[i] = there ? widen(bias[q * a_.bias.stride[2] + key * a_.bias.stride[3]]) : 0;
    }
#pragma unroll
    for (int i = 0; i < kScores; i += 8) {
      float eight[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) eight[e] = all[i + e];
      shared_.bias(stage).store(this->warp_key(), lane_, i, eight);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void share_sums(const float (&sums)[kScores]) const {
    constexpr int kPitch = BiasShared<C>::kPitch;
    float* to = shared_.sums() + 2 * (lane_ % 4) * kPitch + this->warp_key() + lane_ / 4;
#pragma unroll
    for (int i = 0; i < kScores; ++i) to[(8 * (i / 4) + i % 2) * kPitch + i / 2 % 2 * 8] = sums[i];
    ptx::named_barrier_sync(1, 256);
  }

  // What is in shared memory, summed over queries and keys where the bias is repeated, with the
  // other parts, to memory.
  __device__ __forceinline__ void finish(const BiasPart<C>& part) const {
    constexpr int kPitch = BiasShared<C>::kPitch;
    float* sums = shared_.sums();
    const int thread = 128 * number_ + 32 * warp_ + lane_;
    const int rows = a_.sums_queries ? 1 : C.queries, columns = a_.sums_keys ? 1 : C.keys();
    if (a_.sums_queries) {
      if (thread < C.keys()) {
        float sum = 0;
        for (int row = 0; row < C.queries; ++row) sum += sums[row * kPitch + thread];
        sums[thread] = sum;
      }
      ptx::named_barrier_sync(1, 256);
    }
    if (a_.sums_keys) {
      if (thread < rows) {
        float sum = 0;
        for (int column = 0; column < C.keys(); ++column) sum += sums[thread * kPitch + column];
        sums[thread * kPitch] = sum;
      }
      ptx::named_barrier_sync(1, 256);
    }
    float* parts = a_.part_sums + int64_t{part.number} * a_.parts * rows * columns;
    const auto sum_at = [&](int i) {
      return sums + (a_.sums_keys ? i * kPitch : i / C.keys() * kPitch + i % C.keys());
    };
    if (a_.parts > 1) {
      for (int i = thread; i < rows * columns; i += 256)
        parts[part.part * rows * columns + i] = *sum_at(i);
      if (!is_last(part.number)) return;
    }
    using Element = typename ElementOf<C.bias>::Type;
    Element* to = row_at<Element>(a_.grad_bias, part.batch, part.head, 0);
    const int first_row = part.q_tile * C.queries, first_column = part.k_tile * C.keys();
    for (int i = thread; i < rows * columns; i += 256) {
      const int row = a_.sums_keys ? i : i / C.keys(), column = a_.sums_keys ? 0 : i % C.keys();
      float sum = *sum_at(i);
      if (a_.parts > 1) {
        sum = 0;
        for (int p = 0; p < a_.parts; ++p) sum += parts[p * rows * columns + i];
      }
      if ((a_.sums_queries || first_row + row < a_.q_len) &&
          (a_.sums_keys || first_column + column < a_.kv_len))
        put(sum, to + (first_row + row) * a_.grad_bias.stride[2] +
                     (first_column + column) * a_.grad_bias.stride[3]);
    }
  }
  template <class Element>
  __device__ __forceinline__ static void put(float sum, Element* to) {
    if constexpr (C.accumulate_bias) sum += widen(*to);
    if constexpr (C.bias == DType::kF32)
      *to = sum;
    else
      to->bits = static_cast<uint16_t>(round_pair<C.bias>(sum, 0));
  }
  // Whether all parts are there. Asked by both consumers together.
  __device__ __forceinline__ bool is_last(int32_t tile) const {
    auto* last = reinterpret_cast<volatile uint32_t*>(shared_.memory + BiasShared<C>::kBias);
    __threadfence();
    ptx::named_barrier_sync(1, 256);
    if (number_ == 0 && warp_ == 0 && lane_ == 0)
      *last = atomicAdd(a_.arrived + tile, 1u) == static_cast<uint32_t>(a_.parts - 1);
    ptx::named_barrier_sync(1, 256);
    __threadfence();
    return *last != 0;
  }

  const AttentionBackwardBiasArguments& a_;
  const BiasShared<C>& shared_;
  PipelineState<C.unit_stages()> units_;
  PipelineState<C.unit_bias_stages()> bias_ring_;
  int leaving_ = -1;  // the stage whose gradient is on its way out
};

template <AttentionBackwardConfig C>
__global__ void __launch_bounds__(C.threads(), 1)
    attention_backward_bias(const __grid_constant__ AttentionBackwardBiasArguments arguments) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const BiasShared<C> shared{memory, static_cast<uint32_t>(__cvta_generic_to_shared(memory))};
  ptx::launch_dependents();
  if (threadIdx.x == 0) shared.prepare();
  ptx::wait_for_prerequisites();
  __syncthreads();
  // The same for all threads of a warp, as the compiler has to know.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    ptx::setmaxnreg_dec<40>();
    if (threadIdx.x == 0) BiasProducer<C>(arguments, shared).run();
  } else {
    ptx::setmaxnreg_inc<232>();
    BiasConsumer<C>(arguments, shared, group - 1).run();
  }
}

}  // namespace perseid::internal::cuda
