// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The gradient of a bias that is repeated: dBias = dS, summed over the batch entries, heads,
// queries and keys along which the bias is repeated.
//
// A block takes splits of tiles of dBias, C.queries x C.keys(), and iterates over their units
// (batch entry, head, block of queries, tile of keys): two of the five products recompute dS, which
// is summed in registers. So each element is summed in a fixed order, rounded once and written
// once, whatever the shape of the bias; nothing is cleared before, and the bias is read once.
//
//   producer    loads a tile of bias, and of each unit K and Q with lse, V and dO with delta
//   consumer    S^T = K Q^T, dP^T = V dO^T for 64 keys; P, dS; sum += dS
//
// Where TMA can address bias and dBias, and nothing is summed along queries or keys, the kernel is
// persistent: the sums overwrite the tile of bias, and TMA stores them under the first unit of the
// next tile. Else a block has one split and reduces it through shared memory (BiasOutput); a tile
// with few blocks is split along its units (split-K).
//
// Barriers, besides the mbarriers of backward_bias_units.hpp: named barrier 1 joins the consumers
// (256 threads), kIssueOrder + c is where consumer c waits before it issues WGMMAs and the
// other one arrives (256), kConsumerWarps + c joins the warps of consumer c (128).
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/ptx/ordering.hpp"
#include "cuda/device/sm90/attention/backward_bias_units.hpp"
#include "cuda/device/sm90/attention/backward_products.hpp"
#include "cuda/device/sm90/attention/backward_scores.hpp"

namespace perseid::internal::cuda {

inline constexpr int kIssueOrder = 2, kConsumerWarps = 4;  // named barriers, one for each consumer

// The threads of both consumers.
struct BothConsumers {
  static constexpr int kCount = 256;
  static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x) - 128; }
  static __device__ __forceinline__ void sync() { ptx::named_barrier_sync(1, kCount); }
};

// The epilogue of sums that TMA cannot store, or that are summed along queries or keys: through
// shared memory, by both consumers together.
template <AttentionBackwardConfig C>
class BiasOutput {
  static constexpr int kScores = C.thread_scores();

 public:
  __device__ __forceinline__ BiasOutput(const AttentionBackwardBiasArguments& arguments,
                                        const BiasShared<C>& shared,
                                        const ConsumerThread<C>& thread)
      : a_(arguments), shared_(shared), thread_(thread) {}

  // When neither consumer reads the stages of its units any more.
  __device__ __forceinline__ void store(const BiasSplit<C>& split,
                                        const float (&sums)[kScores]) const {
    BothConsumers::sync();
    share_sums(sums);
    BiasReduction<C, BothConsumers, AttentionBackwardBiasArguments>(
        a_, shared_.sums(),
        reinterpret_cast<volatile uint32_t*>(shared_.memory + BiasShared<C>::kBias))
        .store(split);
  }

 private:
  __device__ __forceinline__ void share_sums(const float (&sums)[kScores]) const {
    constexpr int kPitch = BiasShared<C>::kPitch;
    float* to =
        shared_.sums() + 2 * (thread_.lane % 4) * kPitch + thread_.warp_key() + thread_.lane / 4;
#pragma unroll
    for (int i = 0; i < kScores; ++i) to[(8 * (i / 4) + i % 2) * kPitch + i / 2 % 2 * 8] = sums[i];
    BothConsumers::sync();
  }

  const AttentionBackwardBiasArguments& a_;
  const BiasShared<C>& shared_;
  const ConsumerThread<C> thread_;
};

template <AttentionBackwardConfig C>
class BiasConsumer {
  static constexpr int kScores = C.thread_scores();
  // Accumulators of scores begin with the bias, which a score modifier must not see.
  static constexpr bool kFromBias = C.modifier == ScoreModifierKind::kNone;

 public:
  __device__ __forceinline__ BiasConsumer(const AttentionBackwardBiasArguments& arguments,
                                          const BiasShared<C>& shared, int consumer)
      : a_(arguments),
        shared_(shared),
        thread_{consumer},
        chain_(arguments, thread_),
        output_(arguments, shared, thread_) {}

  __device__ __forceinline__ void run() {
    float sums[kScores];
    if (thread_.consumer == 1) scheduler_arrive();
    for (auto block = static_cast<int32_t>(blockIdx.x); block < a_.blocks;
         block += static_cast<int32_t>(gridDim.x)) {
      const BiasSplit<C> split(a_, block);
      const int stage = bias_.stage();
      if (a_.mapped)
        shared_.biases().consumer_wait(bias_);
      else
        load_bias(split, stage);
      bias_.advance();
#pragma unroll
      for (float& sum : sums) sum = 0;
      split.for_each_unit(a_, [&](const BackwardTile& tile, const BackwardStep& step) {
        add_unit(tile, step, stage, sums);
      });
      if (a_.mapped) {
        release_stored();
        store(split, stage, sums);
      } else {
        output_.store(split, sums);
      }
    }
    if (thread_.consumer == 0) scheduler_wait();  // completes the last phase
    if (thread_.lane == 0) ptx::tma_store_wait();
  }

 private:
  __device__ __forceinline__ void add_unit(const BackwardTile& tile, const BackwardStep& step,
                                           int bias_stage, float (&sums)[kScores]) {
    const int stage = units_.stage();
    float scores[kScores], products[kScores];
    shared_.scores().consumer_wait(units_);
    if constexpr (kFromBias)
      chain_.begin_with_bias(scores, shared_.lse_log2(stage), shared_.bias(bias_stage));
    ptx::fence_operand(scores);
    scheduler_wait();
    ptx::wgmma_fence();
    issue_scores(scores, thread_, shared_.key(stage), shared_.query(stage), kFromBias);
    shared_.gradients().consumer_wait(units_);
    ptx::wgmma_fence();
    issue_scores(products, thread_, shared_.value(stage), shared_.grad_out(stage));
    scheduler_arrive();
    DroppedBits<C> dropped;
    chain_.find_dropped(tile, step, dropped);
    ptx::wgmma_wait<1>();
    ptx::fence_operand(scores);
    chain_.template scores_to_weights<kFromBias>(scores, tile, step, shared_.lse_log2(stage),
                                                 shared_.bias(bias_stage), true, dropped);
    thread_.release(shared_.scores(), units_);
    ptx::wgmma_wait<0>();
    ptx::fence_operand(products);
    chain_.weights_to_ds(scores, products, shared_.delta(stage), [&](int i, float(&eight)[8]) {
      chain_.clear_masked(scores, i, eight);
#pragma unroll
      for (int e = 0; e < 8; ++e) sums[i + e] += eight[e];
    });
    thread_.release(shared_.gradients(), units_);
    units_.advance();
    release_stored();
  }

  // Ping-pong: the consumers issue their WGMMAs alternately, so that the softmax of one runs under
  // the WGMMAs of the other.
  __device__ __forceinline__ void scheduler_wait() const {
    ptx::named_barrier_sync(kIssueOrder + thread_.consumer, 256);
  }
  __device__ __forceinline__ void scheduler_arrive() const {
    ptx::named_barrier_arrive(kIssueOrder + 1 - thread_.consumer, 256);
  }

  // ---- Epilogue by TMA ----

  __device__ __forceinline__ void store(const BiasSplit<C>& split, int stage,
                                        const float (&sums)[kScores]) {
    const BiasTile<C> tile = shared_.bias(stage);
#pragma unroll
    for (int i = 0; i < kScores; i += 8) {
      float eight[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) eight[e] = sums[i + e];
      tile.store_fragment(thread_.warp_key(), thread_.lane, i, eight);
    }
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kConsumerWarps + thread_.consumer, 128);
    if (issues_stores()) {
#pragma unroll
      for (int key = 64 * thread_.consumer; key < 64 * thread_.consumer + 64;
           key += BiasTile<C>::kChunkKeys)
        ptx::tma_store(
            a_.grad_bias_map, tile.chunk(key / BiasTile<C>::kChunkKeys),
            {split.k_tile * C.keys() + key, split.q_tile * C.queries, split.head, split.batch, 0});
      ptx::tma_store_commit();
    }
    storing_ = stage;
    if constexpr (C.unit_bias_stages() == 1) release_stored();
  }
  // When TMA has read the previous tile: after the first unit of this one.
  __device__ __forceinline__ void release_stored() {
    if (storing_ < 0) return;
    if (issues_stores()) ptx::tma_store_wait_read();
    thread_.arrive(shared_.biases().empty(storing_));
    storing_ = -1;
  }
  __device__ __forceinline__ bool issues_stores() const {
    return thread_.warp == 0 && thread_.lane == 0;
  }

  // ---- Without TMA ----

  // The tile of bias, which all units share, from global memory. Lanes read only what lanes of
  // their own warp have written.
  __device__ __forceinline__ void load_bias(const BiasSplit<C>& split, int stage) const {
    using Element = typename ElementOf<C.bias>::Type;
    const Element* bias = score_row<Element>(a_.bias, split.batch, split.head, 0);
    float all[kScores];
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int q = split.q_tile * C.queries + 2 * (thread_.lane % 4) + i / 4 * 8 + i % 2;
      const int key =
          split.k_tile * C.keys() + thread_.warp_key() + thread_.lane / 4 + i / 2 % 2 * 8;
      // The stride of a repeated dimension is 0.
      const bool in_range = q < a_.q_len && key < a_.kv_len;
      all[i] = in_range ? widen(bias[q * a_.bias.stride[2] + key * a_.bias.stride[3]]) : 0;
    }
#pragma unroll
    for (int i = 0; i < kScores; i += 8) {
      float eight[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) eight[e] = all[i + e];
      shared_.bias(stage).store_fragment(thread_.warp_key(), thread_.lane, i, eight);
    }
    __syncwarp();
  }

  const AttentionBackwardBiasArguments& a_;
  const BiasShared<C>& shared_;
  const ConsumerThread<C> thread_;
  const BackwardScores<C> chain_;
  const BiasOutput<C> output_;
  PipelineState<C.unit_stages()> units_;
  PipelineState<C.unit_bias_stages()> bias_;
  int storing_ = -1;  // the stage that TMA stores from; -1: none
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
  // A shuffle, so that the compiler knows it to be uniform in a warp.
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
