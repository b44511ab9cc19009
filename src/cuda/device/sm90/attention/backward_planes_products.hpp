// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Consumers of attention backward for f32 on sm_90a, dims beyond 64 (backward_planes.hpp): split by
// products, since dK and dV of 64 keys fill the registers of a consumer each. A tile has 64 keys.
//
//   value consumer    S^T = K Q^T, W to the other consumer through shared memory, dV = W^T dO
//   key consumer      dP^T = V dO^T, dS to shared memory, dK = dS^T Q
//   each              columns of dQ = dS K, the first 64 or the others; up to 64, all in turns
//
// Each issues the first product of the next step before it waits for the others of its own.
//
// Named barriers, once a step: kWeights, which the value consumer arrives at when W is written;
// kBothConsumers, when dS is: then W may be written again; kDsRead, which the value consumer
// arrives at when its product with dS is complete.
#pragma once

#include "cuda/device/sm90/attention/backward_planes_step.hpp"

namespace perseid::internal::cuda {

// What both kinds of consumer share.
template <AttentionBackwardConfig C, bool kOwn>
class PlanesSplitProducts : protected PlanesStep<C, kOwn> {
 protected:
  using Step = PlanesStep<C, kOwn>;
  using Step::a_, Step::shared_, Step::tile_, Step::thread_, Step::chain_;
  using Step::kScores, Step::kBothConsumers;
  using typename Step::Planes;
  static constexpr int kFirstColumns = min(C.key_dim, kChunk);  // of dQ, those of consumer 0
  static constexpr int kWeights = 4, kDsRead = 5;               // named barriers

  using Step::Step;

  static __device__ __forceinline__ int step_count(const AttentionBackwardPlanesArguments& a,
                                                   const BackwardTile& tile) {
    return a.group * (tile.end - tile.first);
  }
  // Columns [kColumn, kColumn + kColumns) of dQ.
  template <int kColumn, int kColumns>
  __device__ __forceinline__ void add_queries(const QueryNumbers& numbers,
                                              const BackwardStep& step) const {
    float sums[kColumns / 2];
    ptx::wgmma_fence();
    this->issue_queries(sums, 0, 0, kColumn);
    ptx::wgmma_commit();
    const RowFactors factors = this->query_factors(numbers, 0, 1);
    ptx::wgmma_wait<0>();
    ptx::fence_operand(sums);
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) sums[i] *= factors.of_row[i / 2 % 2];
    this->add_to_queries(sums, step, kColumn);
  }
};

template <AttentionBackwardConfig C, bool kOwn>
class PlanesValueConsumer : PlanesSplitProducts<C, kOwn> {
  using Base = PlanesSplitProducts<C, kOwn>;
  using Step = PlanesStep<C, kOwn>;
  using Step::a_, Step::shared_, Step::tile_, Step::thread_, Step::chain_;
  using Step::kScores, Step::kBothConsumers;
  using typename Step::Planes;

 public:
  __device__ __forceinline__ PlanesValueConsumer(const AttentionBackwardPlanesArguments& arguments,
                                                 const PlanesShared<C>& shared,
                                                 const BackwardTile& tile,
                                                 float (&grad_value)[C.value_dim / 2])
      : Base(arguments, shared, tile, 0), grad_value_(grad_value) {}

  __device__ __forceinline__ void run() {
    clear_sums(grad_value_);
    const int steps = this->step_count(a_, tile_);
    if (steps > 0) issue_scores(0, true);
    for_each_step<C>(a_, tile_, [&](int number, const BackwardStep& step) {
      run_step(number, step, number + 1 < steps);
    });
    ptx::wgmma_wait<0>();
  }

 private:
  // Without a branch round WGMMA: after the last step, of a stage as it is.
  __device__ __forceinline__ void issue_scores(int number, bool exists) {
    const PipelineState<C.kStages> state{number};
    if (exists) shared_.queries().consumer_wait(state);
    ptx::wgmma_fence();
    Step::template issue_scores<C.key_dim>(scores_, shared_.key(), shared_.query(state.stage()));
  }
  __device__ __forceinline__ void run_step(int number, const BackwardStep& step, bool more) {
    const PipelineState<C.kStages> state{number};
    const QueryNumbers& numbers = shared_.numbers(state.stage());
    DroppedBits<C> dropped;
    chain_.find_dropped(tile_, step, dropped);
    ptx::wgmma_wait<0>();
    ptx::fence_operand(scores_);
    chain_.hide_unseen(scores_, tile_, step);
    this->scores_to_weights(numbers, scores_);
    Planes weights;
    this->split_for_values(scores_, weights);
    if constexpr (C.dropout) this->drop(dropped, scores_, weights);
    float4* const to = shared_.weights() + 32 * thread_.warp + thread_.lane;
#pragma unroll
    for (int i = 0; i < kScores; i += 4)
      to[i / 4 * 128] = {scores_[i], scores_[i + 1], scores_[i + 2], scores_[i + 3]};
    ptx::named_barrier_arrive(Base::kWeights, 256);

    // dV = W^T dO
    shared_.grad_outs().consumer_wait(state);
    float gradient[C.value_dim / 2];
    ptx::wgmma_fence();
    this->template issue_gradient<C.value_dim>(gradient, weights, shared_.grad_out(state.stage()));
    issue_scores(number + 1, more);
    ptx::wgmma_wait<1>();
    ptx::fence_operand(gradient);
    thread_.release(shared_.grad_outs(), state);
    add_products(gradient, this->value_factors(numbers.scale), grad_value_);

    // dQ = dS K
    ptx::named_barrier_sync(kBothConsumers, 256);
    if (C.key_dim > kChunk || number % 2 == 0)
      this->template add_queries<0, Base::kFirstColumns>(numbers, step);
    if (more) ptx::named_barrier_arrive(Base::kDsRead, 256);
    thread_.release(shared_.queries(), state);
  }

  float scores_[kScores], (&grad_value_)[C.value_dim / 2];
};

template <AttentionBackwardConfig C, bool kOwn>
class PlanesKeyConsumer : PlanesSplitProducts<C, kOwn> {
  using Base = PlanesSplitProducts<C, kOwn>;
  using Step = PlanesStep<C, kOwn>;
  using Step::a_, Step::shared_, Step::tile_, Step::thread_, Step::chain_;
  using Step::kScores, Step::kBothConsumers;
  using typename Step::Planes;

 public:
  __device__ __forceinline__ PlanesKeyConsumer(const AttentionBackwardPlanesArguments& arguments,
                                               const PlanesShared<C>& shared,
                                               const BackwardTile& tile,
                                               float (&grad_key)[C.key_dim / 2])
      : Base(arguments, shared, tile, 1), grad_key_(grad_key) {}

  __device__ __forceinline__ void run() {
    clear_sums(grad_key_);
    const int steps = this->step_count(a_, tile_);
    if (steps > 0) issue_products(0, true);
    for_each_step<C>(a_, tile_, [&](int number, const BackwardStep& step) {
      run_step(number, step, number + 1 < steps);
    });
    ptx::wgmma_wait<0>();
  }

 private:
  // As issue_scores.
  __device__ __forceinline__ void issue_products(int number, bool exists) {
    const PipelineState<C.kStages> state{number};
    if (exists) shared_.grad_outs().consumer_wait(state);
    ptx::wgmma_fence();
    this->template issue_scores<C.value_dim>(products_, shared_.value(),
                                             shared_.grad_out(state.stage()));
  }
  __device__ __forceinline__ void run_step(int number, const BackwardStep& step, bool more) {
    const PipelineState<C.kStages> state{number};
    const QueryNumbers& numbers = shared_.numbers(state.stage());
    shared_.queries().consumer_wait(state);  // for their numbers
    ptx::wgmma_wait<0>();
    ptx::fence_operand(products_);
    thread_.release(shared_.grad_outs(), state);

    // dS
    float weights[kScores];
    ptx::named_barrier_sync(Base::kWeights, 256);
    const float4* const from = shared_.weights() + 32 * thread_.warp + thread_.lane;
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      const float4 four = from[i / 4 * 128];
      weights[i] = four.x;
      weights[i + 1] = four.y;
      weights[i + 2] = four.z;
      weights[i + 3] = four.w;
    }
    this->weights_to_ds(numbers, weights, products_);
    Planes ds;
    const auto await_ds = [&] {
      if (number > 0) ptx::named_barrier_sync(Base::kDsRead, 256);
    };
    // The scale is read first, since the assembler else takes the factor for uniform, and computes
    // it more slowly.
    const float of_keys = numbers.scale * this->split_ds(numbers, 0, products_, ds, await_ds);
    ptx::named_barrier_sync(kBothConsumers, 256);

    // dK = dS^T Q
    float gradient[C.key_dim / 2];
    ptx::wgmma_fence();
    this->template issue_gradient<C.key_dim>(gradient, ds, shared_.query(state.stage()));
    issue_products(number + 1, more);
    ptx::wgmma_wait<1>();
    ptx::fence_operand(gradient);
    add_products(gradient, this->key_factors(of_keys), grad_key_);

    // dQ = dS K
    if constexpr (C.key_dim > kChunk)
      this->template add_queries<kChunk, C.key_dim - kChunk>(numbers, step);
    else if (number % 2 != 0)
      this->template add_queries<0, C.key_dim>(numbers, step);
    thread_.release(shared_.queries(), state);
  }

  float products_[kScores], (&grad_key_)[C.key_dim / 2];
};

}  // namespace perseid::internal::cuda
