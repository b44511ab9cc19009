// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What a consumer of attention backward on sm_90a does with the scores of one step, between its
// products: P from S^T, dS from dP^T, with the bias of the step and its gradient.
//
// Bias. Where TMA can address it (StepBias::is_loaded) the producer loads a tile for each step; a
// consumer reads it from shared memory and releases its stage. If C.grad_bias_in_place() and TMA
// can address the gradient too, dS overwrites the tile of bias, one thread of each consumer stores
// it by TMA after the step's barrier, and the stage is released at the end of the step, when TMA
// has read it.
#pragma once

#include "cuda/device/ptx/mbarrier.hpp"
#include "cuda/device/ptx/ordering.hpp"
#include "cuda/device/sm90/attention/backward_scores.hpp"
#include "cuda/device/sm90/attention/backward_shared.hpp"

namespace perseid::internal::cuda {

// The tile of bias of a step.
template <AttentionBackwardConfig C>
class StepBias {
 public:
  explicit __device__ __forceinline__ StepBias(const ConsumerContext<C>& context) : c_(context) {}

  __device__ __forceinline__ bool is_loaded() const {
    return C.bias_stages > 0 && c_.arguments.bias_mapped;
  }
  // dS of a step replaces its tile of bias and is stored from there.
  __device__ __forceinline__ bool stores_gradient() const {
    return C.grad_bias_in_place() && c_.arguments.grad_bias_mapped;
  }
  __device__ __forceinline__ int stage(int number) const { return state(number).stage(); }
  __device__ __forceinline__ BiasTile<C> tile(int number) const {
    return c_.shared.bias(stage(number));
  }

  __device__ __forceinline__ void wait(int number) const {
    if constexpr (C.bias_stages > 0)
      if (is_loaded()) c_.shared.biases().consumer_wait(state(number));
  }
  // After the last read of the bias.
  __device__ __forceinline__ void release(int number) const {
    if constexpr (C.bias_stages > 0)
      if (is_loaded() && !stores_gradient()) c_.thread.release(c_.shared.biases(), state(number));
  }

  // The consumer's keys of the gradient, when all of its warps have written and fenced them: one
  // thread issues the stores.
  __device__ __forceinline__ void store_gradient(int stage, const BackwardStep& step) const {
    if (c_.thread.warp != 0 || c_.thread.lane != 0) return;
    const int first = c_.thread.first_key();
#pragma unroll
    for (int key = first; key < first + 64; key += BiasTile<C>::kChunkKeys)
      ptx::tma_store(c_.arguments.grad_bias_map,
                     c_.shared.bias(stage).chunk(key / BiasTile<C>::kChunkKeys),
                     {c_.tile.key + key, step.block * C.queries, step.head, c_.tile.batch, 0});
    ptx::tma_store_commit();
  }
  // When TMA has read the gradient.
  __device__ __forceinline__ void release_gradient(int stage) const {
    if (c_.thread.warp == 0 && c_.thread.lane == 0) ptx::tma_store_wait_read();
    c_.thread.arrive(c_.shared.biases().empty(stage));
  }
  // After the last step: zeros for query blocks that do not see the tile.
  __device__ __forceinline__ void clear_gradient() const {
    const int thread = 128 * c_.thread.consumer + 32 * c_.thread.warp + c_.thread.lane;
    for (int i = thread; i < C.bias_bytes() / 16; i += 256)
      reinterpret_cast<uint4*>(c_.shared.bias(0).memory)[i] = uint4{0, 0, 0, 0};
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(1, 256);
    for (int32_t g = 0; g < c_.arguments.group; ++g)
      for (int32_t block = 0; block < c_.arguments.q_blocks; ++block)
        if (block < c_.tile.first || block >= c_.tile.end)
          store_gradient(0, {c_.tile.kv_head * c_.arguments.group + g, block});
  }

 private:
  __device__ __forceinline__ PipelineState<max(C.bias_stages, 1)> state(int number) const {
    return {number};
  }

  const ConsumerContext<C> c_;
};

// The scores of a step.
template <AttentionBackwardConfig C>
class StepScores {
  static constexpr int kScores = C.thread_scores();

 public:
  explicit __device__ __forceinline__ StepScores(const ConsumerContext<C>& context)
      : c_(context), chain_(context.arguments, context.thread), bias_(context) {}

  // Draws the bits of dropout. Waits for nothing, so it fits under the first products of a step.
  __device__ __forceinline__ void find_dropped(const BackwardStep& step,
                                               DroppedBits<C>& dropped) const {
    chain_.find_dropped(c_.tile, step, dropped);
  }
  // S^T to P^T.
  __device__ __forceinline__ void softmax(float (&scores)[kScores], int number,
                                          const BackwardStep& step,
                                          const DroppedBits<C>& dropped) const {
    bias_.wait(number);
    chain_.scores_to_weights(scores, c_.tile, step, c_.shared.lse_log2(stage_of<C>(number).stage()),
                             bias_.tile(number), bias_.is_loaded(), dropped);
    bias_.release(number);
  }
  // P^T as the left operand of dV.
  __device__ __forceinline__ void round_weights(const float (&weights)[kScores],
                                                uint32_t (&rounded)[kScores / 2]) const {
    chain_.round_kept(weights, rounded);
  }
  // dS^T = P^T (dP^T - delta), rounded, as the left operand of dK; and to the tile of bias where
  // its gradient is stored with the step.
  __device__ __forceinline__ void compute_ds(const float (&weights)[kScores],
                                             const float (&d)[kScores], int number,
                                             const BackwardStep& step,
                                             uint32_t (&ds)[kScores / 2]) const {
    const float* delta = c_.shared.delta(stage_of<C>(number).stage());
    const float* lse = c_.shared.lse_log2(stage_of<C>(number).stage());
    const auto keep = [&](int i, const float(&eight)[8]) {
      const auto grad = [&](int e) {
        return chain_.grad_product_at(i + e, eight[e], weights[i + e], c_.tile, step, lse);
      };
#pragma unroll
      for (int p = 0; p < 4; ++p) ds[i / 2 + p] = round_pair<C.dtype>(grad(2 * p), grad(2 * p + 1));
    };
    const BiasTile<C> bias = bias_.tile(number);
    const int key = c_.thread.warp_key(), lane = c_.thread.lane;
    if constexpr (C.bias == C.dtype && !C.masked()) {
      chain_.weights_to_ds(weights, d, delta, keep);
      if (!bias_.stores_gradient()) return;
#pragma unroll
      for (int i = 0; i < kScores / 2; i += 4) {
        const uint32_t pairs[4] = {ds[i], ds[i + 1], ds[i + 2], ds[i + 3]};
        bias.store_fragment_pairs(key, lane, 2 * i, pairs);
      }
    } else if (bias_.stores_gradient()) {
      chain_.weights_to_ds(weights, d, delta, [&](int i, float(&eight)[8]) {
        keep(i, eight);
        chain_.clear_masked(weights, i, eight);
        bias.store_fragment(key, lane, i, eight);
      });
    } else {
      chain_.weights_to_ds(weights, d, delta, keep);
    }
  }

  // Whatever compute_ds() has made of hidden pairs.
  __device__ __forceinline__ void hide_unseen(const BackwardStep& step,
                                              uint32_t (&pairs)[kScores / 2]) const {
    chain_.hide_unseen_pairs(pairs, c_.tile, step);
  }

  __device__ __forceinline__ const StepBias<C>& bias() const { return bias_; }

 private:
  const ConsumerContext<C> c_;
  const BackwardScores<C> chain_;
  const StepBias<C> bias_;
};

}  // namespace perseid::internal::cuda
