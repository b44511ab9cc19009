// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Mainloop of attention backward on sm_90a, split by keys, for dims up to 128: each consumer has 64
// of the tile's 128 keys, with their dK and dV in registers. One step, of the queries Q with
// gradients dO:
//
//   S^T = K Q^T        operands in shared memory
//   dP^T = V dO^T      operands in shared memory; P = 2^(S - lse) runs under it
//   dV += P^T dO       P in registers; dS = P (dP - delta) runs before it, then goes to shared
//                      memory under it
//   dQ = dS K          dS from shared memory, over all keys of the tile: each consumer computes one
//                      slice, half of the queries where a step has 128, else half of the columns
//   dK += dS^T Q       dS in registers; dQ is added to its sums under it
//
// Barriers, besides the producer's mbarriers (backward_shared.hpp): named barrier 1 (256 threads),
// once a step: both halves of dS are in shared memory. dS has two buffers; the buffer of a step is
// written again two steps later, after the barrier of the step between, which a consumer passes
// only when its own dQ of the earlier step is complete. kSumsComplete (dq_semaphore.hpp): the
// consumer has added all of its dQ.
//
// Masks. C.right: a query's last visible key depends on its row, as under a causal mask. C.left:
// its first one does, as under a window. A consumer skips steps whose queries see none of its keys
// (C.skips_masked_tiles()): it arrives at all barriers and contributes zeros to dQ.
#pragma once

#include "cuda/device/sm90/attention/backward_clearing.hpp"
#include "cuda/device/sm90/attention/backward_epilogue.hpp"
#include "cuda/device/sm90/attention/backward_products.hpp"
#include "cuda/device/sm90/attention/backward_step.hpp"

namespace perseid::internal::cuda {

// kColumns: the columns of the consumer's slice of dQ.
template <AttentionBackwardConfig C, int kColumns>
class SplitKeysConsumer {
  static constexpr int kScores = C.thread_scores();
  static constexpr int kBothConsumers = 1;  // named barrier

 public:
  explicit __device__ __forceinline__ SplitKeysConsumer(const ConsumerContext<C>& context)
      : c_(context) {}

  __device__ __forceinline__ void prologue() {
    clear_accumulators(grad_key_);
    clear_accumulators(grad_value_);
    c_.wait_once(c_.shared.key_full());
  }

  __device__ __forceinline__ void mainloop() {
    for_each_step<C>(c_.arguments, c_.tile, [&](int number, const BackwardStep& step) {
      if (!C.skips_masked_tiles() || sees_keys(step))
        run_step(number, step);
      else
        skip_step(number, step);
    });
    dq_.finish();
  }

  __device__ __forceinline__ void epilogue() {
    epilogue_.reduce_cluster(grad_value_, grad_key_);
    if constexpr (C.grad_value) epilogue_.store_grad_value(grad_value_);
    ptx::named_barrier_sync(kBothConsumers, 256);  // dK overwrites the keys, which both read
    if constexpr (C.masked())
      if (scores_.bias().stores_gradient()) scores_.bias().clear_gradient();
    if constexpr (C.grad_key) epilogue_.store_grad_key(grad_key_);
    epilogue_.finish();
  }

 private:
  // ---- Mainloop ----

  __device__ __forceinline__ void run_step(int number, const BackwardStep& step) {
    const PipelineState<C.kStages> state = stage_of<C>(number);
    const int stage = state.stage(), parity = number % 2;
    const StepBias<C>& bias = scores_.bias();
    float scores[kScores], products[kScores];
    uint32_t weights[kScores / 2], ds[kScores / 2];

    // S^T = K Q^T and dP^T = V dO^T
    c_.shared.queries().consumer_wait(state);
    ptx::wgmma_fence();
    issue_scores(scores, c_.thread, c_.shared.key(), c_.shared.query(stage));
    if (number == 0) ptx::mbarrier_wait(c_.shared.value_full(), 0);
    c_.shared.grad_outs().consumer_wait(state);
    issue_scores(products, c_.thread, c_.shared.value(), c_.shared.grad_out(stage));

    // P, under dP^T; then dS
    DroppedBits<C> dropped;
    scores_.find_dropped(step, dropped);
    ptx::wgmma_wait<1>();
    ptx::fence_operand(scores);
    check_.check_keys(number, scores);
    scores_.softmax(scores, number, step, dropped);
    if constexpr (C.grad_value) scores_.round_weights(scores, weights);
    ptx::wgmma_wait<0>();
    ptx::fence_operand(products);
    check_.check_values(number, products);
    scores_.compute_ds(scores, products, number, step, ds);
    if constexpr (C.deterministic) scores_.hide_unseen(step, ds);  // else a register is spilled
    if constexpr (!C.grad_value) c_.thread.release(c_.shared.grad_outs(), state);

    // dV += P^T dO
    if constexpr (C.grad_value) {
      ptx::wgmma_fence();
      issue_gradient<C>(grad_value_, weights, c_.shared.grad_out(stage));
    }

    // dS of both consumers meets in shared memory, under dV
    if constexpr (!C.deterministic) scores_.hide_unseen(step, ds);
    float dq[kColumns / 2];
    if constexpr (C.grad_query)
      store_ds(c_, ds, parity);
    else if constexpr (C.grad_bias_in_place())
      ptx::fence_proxy_async();
    if constexpr (C.grad_query || C.grad_bias_in_place())
      ptx::named_barrier_sync(kBothConsumers, 256);
    const int bias_stage = bias.stage(number);
    if (bias.stores_gradient()) bias.store_gradient(bias_stage, step);

    // dQ = dS K
    if constexpr (C.grad_query) {
      ptx::wgmma_fence();
      issue_dq(dq, c_.shared, parity, c_.thread.consumer);
    }
    if constexpr (C.grad_value) {
      ptx::wgmma_wait<C.grad_query ? 1 : 0>();
      c_.thread.release(c_.shared.grad_outs(), state);
    }

    // dK += dS^T Q; dQ is added to its sums under it
    if constexpr (C.grad_key) {
      ptx::wgmma_fence();
      issue_gradient<C>(grad_key_, ds, c_.shared.query(stage));
    }
    if constexpr (C.grad_query) {
      ptx::wgmma_wait<C.grad_key ? 1 : 0>();
      add_dq(dq, number, step);
    }
    ptx::wgmma_wait<0>();
    c_.thread.release(c_.shared.queries(), state);
    if (bias.stores_gradient()) bias.release_gradient(bias_stage);
  }

  // Whether any query of the step sees any of the consumer's keys.
  __device__ __forceinline__ bool sees_keys(const BackwardStep& step) const {
    const int key = c_.tile.key + c_.thread.first_key();
    const int position =
        first_query<C>(c_.tile, step.block) + gap_of_block<C>(c_.arguments, c_.tile, step.block);
    return (!C.right || position + C.queries - 1 + c_.tile.right > key) &&
           (!C.left || position + c_.tile.left < key + 64);
  }
  // Without its keys, the consumer still computes its slice of dQ, from the other's dS.
  __device__ __forceinline__ void skip_step(int number, const BackwardStep& step) {
    const PipelineState<C.kStages> state = stage_of<C>(number);
    const int stage = state.stage(), parity = number % 2;
    if (number == 0) ptx::mbarrier_wait(c_.shared.value_full(), 0);
    check_.check_tiles(number);
    c_.shared.queries().consumer_wait(state);
    c_.shared.grad_outs().consumer_wait(state);
    c_.thread.release(c_.shared.queries(), state);
    c_.thread.release(c_.shared.grad_outs(), state);
    if constexpr (C.grad_query) {
      const uint32_t zeros[kScores / 2] = {};
      float dq[kColumns / 2];
      store_ds(c_, zeros, parity);
      ptx::named_barrier_sync(kBothConsumers, 256);
      ptx::wgmma_fence();
      issue_dq(dq, c_.shared, parity, c_.thread.consumer);
      ptx::wgmma_wait<0>();
      add_dq(dq, number, step);
    }
  }

  __device__ __forceinline__ void add_dq(float (&dq)[kColumns / 2], int number,
                                         const BackwardStep& step) const {
    ptx::fence_operand(dq);
    dq_.wait(number);
    dq_.add(dq, step, c_.thread.consumer);
    dq_.arrive();
  }

  const ConsumerContext<C> c_;
  const StepScores<C> scores_{c_};
  const NonfiniteCheck<C> check_{c_};
  const DqSums<C> dq_{c_};
  GradientEpilogue<C> epilogue_{c_};
  float grad_key_[C.key_dim / 2], grad_value_[C.value_dim / 2];
};

}  // namespace perseid::internal::cuda
