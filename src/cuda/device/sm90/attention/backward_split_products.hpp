// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Mainloop of attention backward on sm_90a, split by products, for dims up to 256, where one
// consumer has no registers for both dK and dV: both consumers have the same 64 keys, and each its
// own products. One step, of the queries Q with gradients dO; P goes from the first consumer to the
// second through shared memory, dS back:
//
//   GradValueConsumer   S^T = K Q^T;    P = 2^(S - lse), shared;  dV += P^T dO;  even slices of dQ
//   GradKeyConsumer     dP^T = V dO^T;  dS = P (dP - delta);      dK += dS^T Q;  odd slices of dQ
//
// dQ = dS K in slices of 64 columns, the last of those that remain; each is added to its sums when
// it is complete. The first consumer computes its slices one step late, so that it does not wait
// for dS of the second.
//
// Barriers, besides the producer's mbarriers (backward_shared.hpp): named barriers of 256 threads,
// at which one consumer arrives and the other waits.
//   kWeightsFull            first to second: P of the step is in shared memory
//   kWeightsEmpty           second to first: P has been read
//   kScoresFull + parity    second to first: dS of the step is in shared memory
//   kScoresEmpty + parity   first to second: its slices of dQ are complete
// kSecondConsumer (128 threads) joins the second consumer's warps after they have written dS.
#pragma once

#include "cuda/device/sm90/attention/backward_clearing.hpp"
#include "cuda/device/sm90/attention/backward_epilogue.hpp"
#include "cuda/device/sm90/attention/backward_products.hpp"
#include "cuda/device/sm90/attention/backward_step.hpp"

namespace perseid::internal::cuda {

inline constexpr int kWeightsFull = 4, kWeightsEmpty = 5, kScoresFull = 6, kScoresEmpty = 8,
                     kSecondConsumer = 10;

// ---- Shared by both consumers ----

// P, in float32, from each thread of the first consumer to the same thread of the second.
template <AttentionBackwardConfig C>
__device__ __forceinline__ void store_weights(const ConsumerContext<C>& context,
                                              const float (&weights)[C.thread_scores()]) {
  float4* to = context.shared.weights() + 32 * context.thread.warp + context.thread.lane;
#pragma unroll
  for (int i = 0; i < C.thread_scores(); i += 4)
    to[i / 4 * 128] = float4{weights[i], weights[i + 1], weights[i + 2], weights[i + 3]};
}
template <AttentionBackwardConfig C>
__device__ __forceinline__ void load_weights(const ConsumerContext<C>& context,
                                             float (&weights)[C.thread_scores()]) {
  const float4* from = context.shared.weights() + 32 * context.thread.warp + context.thread.lane;
#pragma unroll
  for (int i = 0; i < C.thread_scores(); i += 4) {
    const float4 four = from[i / 4 * 128];
    weights[i] = four.x;
    weights[i + 1] = four.y;
    weights[i + 2] = four.z;
    weights[i + 3] = four.w;
  }
}

// A consumer's slices of dQ: every second one of a step.
template <AttentionBackwardConfig C>
class DqSlices {
 public:
  explicit __device__ __forceinline__ DqSlices(const ConsumerContext<C>& context)
      : c_(context), sums_(context) {}

  // dS of the step is in shared memory. Waits for all WGMMAs of the consumer, earlier ones too.
  template <int kFirst>
  __device__ __forceinline__ void add(int number, const BackwardStep& step) const {
    constexpr bool kHasLast = C.slices() % 2 != kFirst;
#pragma unroll
    for (int p = kFirst; p < C.slices() - (kHasLast ? 1 : 0); p += 2)
      add_slice<C.slice_columns()>(number, step, p, p == kFirst);
    if constexpr (kHasLast)
      add_slice<C.last_columns()>(number, step, C.slices() - 1, C.slices() - 1 == kFirst);
    sums_.arrive();
  }
  __device__ __forceinline__ void finish() const { sums_.finish(); }

 private:
  template <int kColumns>
  __device__ __forceinline__ void add_slice(int number, const BackwardStep& step, int p,
                                            bool first) const {
    float dq[kColumns / 2];
    ptx::wgmma_fence();
    issue_dq(dq, c_.shared, number % 2, p);
    ptx::wgmma_wait<0>();
    ptx::fence_operand(dq);
    if (first) sums_.wait(number);
    sums_.add(dq, step, p);
  }

  const ConsumerContext<C> c_;
  const DqSums<C> sums_;
};

// ---- First consumer: P, dV and even slices of dQ ----

template <AttentionBackwardConfig C>
class GradValueConsumer {
  static constexpr int kScores = C.thread_scores();

 public:
  explicit __device__ __forceinline__ GradValueConsumer(const ConsumerContext<C>& context)
      : c_(context) {}

  __device__ __forceinline__ void prologue() {
    clear_accumulators(grad_value_);
    c_.wait_once(c_.shared.key_full());
  }

  __device__ __forceinline__ void mainloop() {
    BackwardStep previous{};
    for_each_step<C>(c_.arguments, c_.tile, [&](int number, const BackwardStep& step) {
      run_step(number, step, previous);
      previous = step;
      steps_ = number + 1;
    });
    if (C.grad_query && steps_ > 0) add_slices(steps_ - 1, previous);
    dq_.finish();
  }

  __device__ __forceinline__ void epilogue() {
    // Completes the last phase, and P no longer occupies shared memory that the cluster needs.
    if (steps_ > 0) ptx::named_barrier_sync(kWeightsEmpty, 256);
    epilogue_.reduce_cluster(grad_value_);
    if constexpr (C.grad_value) epilogue_.store_grad_value(grad_value_);
    epilogue_.finish();
  }

 private:
  __device__ __forceinline__ void run_step(int number, const BackwardStep& step,
                                           const BackwardStep& previous) {
    const PipelineState<C.kStages> state = stage_of<C>(number);
    const int stage = state.stage();
    float scores[kScores];
    uint32_t weights[kScores / 2];

    // S^T = K Q^T
    c_.shared.queries().consumer_wait(state);
    ptx::wgmma_fence();
    issue_scores(scores, c_.thread, c_.shared.key(), c_.shared.query(stage));
    DroppedBits<C> dropped;
    scores_.find_dropped(step, dropped);
    ptx::wgmma_wait<0>();
    ptx::fence_operand(scores);
    check_.check_keys(number, scores);

    // P, to the second consumer
    scores_.softmax(scores, number, step, dropped);
    c_.thread.release(c_.shared.queries(), state);
    if (number > 0) ptx::named_barrier_sync(kWeightsEmpty, 256);
    store_weights(c_, scores);
    ptx::named_barrier_arrive(kWeightsFull, 256);

    // dV += P^T dO; dQ of the previous step
    c_.shared.grad_outs().consumer_wait(state);
    if constexpr (C.grad_value) {
      scores_.round_weights(scores, weights);
      ptx::wgmma_fence();
      issue_gradient<C>(grad_value_, weights, c_.shared.grad_out(stage));
    }
    if (C.grad_query && number > 0) add_slices(number - 1, previous);
    ptx::wgmma_wait<0>();
    c_.thread.release(c_.shared.grad_outs(), state);
  }
  __device__ __forceinline__ void add_slices(int number, const BackwardStep& step) const {
    ptx::named_barrier_sync(kScoresFull + number % 2, 256);
    dq_.template add<0>(number, step);
    ptx::named_barrier_arrive(kScoresEmpty + number % 2, 256);
  }

  const ConsumerContext<C> c_;
  const StepScores<C> scores_{c_};
  const NonfiniteCheck<C> check_{c_};
  const DqSlices<C> dq_{c_};
  GradientEpilogue<C> epilogue_{c_};
  int steps_ = 0;
  float grad_value_[C.value_dim / 2];
};

// ---- Second consumer: dS, dK and odd slices of dQ ----

template <AttentionBackwardConfig C>
class GradKeyConsumer {
  static constexpr int kScores = C.thread_scores();

 public:
  explicit __device__ __forceinline__ GradKeyConsumer(const ConsumerContext<C>& context)
      : c_(context) {}

  __device__ __forceinline__ void prologue() {
    clear_accumulators(grad_key_);
    c_.wait_once(c_.shared.value_full());
  }

  __device__ __forceinline__ void mainloop() {
    for_each_step<C>(c_.arguments, c_.tile, [&](int number, const BackwardStep& step) {
      run_step(number, step);
      steps_ = number + 1;
    });
    dq_.finish();
  }

  __device__ __forceinline__ void epilogue() {
    // Completes the last phases: the first consumer no longer reads keys, which dK overwrites.
    if constexpr (C.grad_query) {
      if (steps_ > 1) ptx::named_barrier_sync(kScoresEmpty + steps_ % 2, 256);
      if (steps_ > 0) ptx::named_barrier_sync(kScoresEmpty + (steps_ - 1) % 2, 256);
    }
    epilogue_.reduce_cluster(grad_key_);
    if constexpr (C.grad_key) epilogue_.store_grad_key(grad_key_);
    epilogue_.finish();
  }

 private:
  __device__ __forceinline__ void run_step(int number, const BackwardStep& step) {
    const PipelineState<C.kStages> state = stage_of<C>(number);
    const int stage = state.stage(), parity = number % 2;
    float products[kScores];
    uint32_t ds[kScores / 2];

    // dP^T = V dO^T
    c_.shared.grad_outs().consumer_wait(state);
    ptx::wgmma_fence();
    issue_scores(products, c_.thread, c_.shared.value(), c_.shared.grad_out(stage));

    // dS, with P of the first consumer
    ptx::named_barrier_sync(kWeightsFull, 256);
    ptx::wgmma_wait<0>();
    ptx::fence_operand(products);
    check_.check_values(number, products);
    compute_ds(products, number, step, ds);
    ptx::named_barrier_arrive(kWeightsEmpty, 256);
    c_.thread.release(c_.shared.grad_outs(), state);

    // dK += dS^T Q; dQ of this step
    c_.shared.queries().consumer_wait(state);
    if constexpr (C.grad_key) {
      ptx::wgmma_fence();
      issue_gradient<C>(grad_key_, ds, c_.shared.query(stage));
    }
    if constexpr (C.grad_query) {
      if (number > 1) ptx::named_barrier_sync(kScoresEmpty + parity, 256);
      store_ds(c_, ds, parity);
      ptx::named_barrier_arrive(kScoresFull + parity, 256);
      ptx::named_barrier_sync(kSecondConsumer, 128);
      dq_.template add<1>(number, step);
    }
    ptx::wgmma_wait<0>();
    c_.thread.release(c_.shared.queries(), state);
  }
  __device__ __forceinline__ void compute_ds(const float (&products)[kScores], int number,
                                             const BackwardStep& step,
                                             uint32_t (&ds)[kScores / 2]) const {
    float weights[kScores];
    load_weights(c_, weights);
    scores_.compute_ds(weights, products, number, step, ds);
    scores_.hide_unseen(step, ds);
  }

  const ConsumerContext<C> c_;
  const StepScores<C> scores_{c_};
  const NonfiniteCheck<C> check_{c_};
  const DqSlices<C> dq_{c_};
  GradientEpilogue<C> epilogue_{c_};
  int steps_ = 0;
  float grad_key_[C.key_dim / 2];
};

}  // namespace perseid::internal::cuda
