// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward on sm_90a for dims up to 256, where one consumer has no room for gradients of
// keys and of values: both have the same 64 keys, and each its own products. One step, of the
// queries Q with gradients dO; P goes from the first to the second through shared memory, dS back:
//
//   first    S^T = K Q^T;    P = 2^(S - lse), shared;  dV += P^T dO    and even pieces of dQ
//   second   dP^T = V dO^T;  dS = P (dP - delta);      dK += dS^T Q    and odd pieces of dQ
//
// dQ = dS K in pieces of 64 columns, the last of those that are left, each added to the sums in
// memory when it is complete. The first consumer takes its pieces one step late, so that it need
// not wait for the second.
//
// Barriers: those of the producer (backward_tiles.hpp). key_full and value_full: the producer,
// once. query_full, out_full: the producer, in each step; query_empty, out_empty: all eight warps
// of the consumers, when their last product with it is complete. Named barriers of 256 threads,
// where one consumer arrives and the other waits:
//   kWeightsFull    first to second    P of the step is in shared memory
//   kWeightsEmpty   second to first    it has been read
//   kScoresFull + parity    second to first    dS of the step is in shared memory
//   kScoresEmpty + parity   first to second    its pieces of dQ are complete
// and kSecond (128 threads) joins the second consumer's warps after they have written dS.
#pragma once

#include "cuda/device/sm90/attention/backward_parts.hpp"

namespace perseid::internal::cuda {

template <AttentionBackwardConfig C>
class SplitProductsConsumer : BackwardParts<C> {
  using Parts = BackwardParts<C>;
  using Parts::a_, Parts::shared_, Parts::tile_, Parts::lane_, Parts::warp_;
  using Parts::kScores;

  static constexpr int kWeightsFull = 4, kWeightsEmpty = 5, kScoresFull = 6, kScoresEmpty = 8,
                       kSecond = 10;

 public:
  __device__ __forceinline__ SplitProductsConsumer(const AttentionBackwardArguments& arguments,
                                                   const BackwardShared<C>& shared,
                                                   const BackwardTile& tile, int number)
      : Parts(arguments, shared, tile, number) {}

  __device__ __forceinline__ void run_first() {
    float grad_value[C.value_dim / 2];
#pragma unroll
    for (float& x : grad_value) x = 0;
    if (tile_.end > tile_.first) ptx::mbarrier_wait(shared_.key_full(), 0);
    int steps = 0;
    BackwardStep before{};
    for_each_step<C>(a_, tile_, [&](int number, const BackwardStep& step) {
      const PipelineState<C.kStages> stage = stage_of<C>(number);
      float scores[kScores];
      uint32_t weights[kScores / 2];
      ptx::mbarrier_wait(shared_.query_full(stage.stage()), stage.parity());
      ptx::wgmma_fence();
      this->template begin_scores<C.key_dim>(scores, shared_.key(), shared_.query(stage.stage()));
      typename Parts::Dropped dropped;
      this->find_dropped(tile_, step, dropped);
      ptx::wgmma_wait<0>();
      ptx::fence_operand(scores);
      this->check_keys(number, scores);
      this->softmax(scores, number, step, dropped);
      this->leave(shared_.query_empty(stage.stage()));
      if (number > 0) ptx::named_barrier_sync(kWeightsEmpty, 256);
      send_weights(scores);
      ptx::named_barrier_arrive(kWeightsFull, 256);
      ptx::mbarrier_wait(shared_.out_full(stage.stage()), stage.parity());
      if constexpr (C.grad_value) {
        this->round_kept(scores, weights);
        ptx::wgmma_fence();
        this->template begin_gradient<C.value_dim>(grad_value, weights,
                                                   shared_.grad_out(stage.stage()));
      }
      if (C.grad_query && number > 0) first_pieces(number - 1, before);
      ptx::wgmma_wait<0>();
      this->leave(shared_.out_empty(stage.stage()));
      before = step;
      steps = number + 1;
    });
    if (C.grad_query && steps > 0) first_pieces(steps - 1, before);
    this->end_sums();
    if (steps > 0) ptx::named_barrier_sync(kWeightsEmpty, 256);
    float nonfinite[2] = {0, 0};
    if constexpr (C.cluster_size > 1) reduce_cluster(grad_value);
    if constexpr (C.grad_value) {
      this->template epilogue_gradient<C.value_dim>(
          grad_value, [&] { return dropout_factor<C.dropout>(a_); }, shared_.value(), a_.grad_value,
          a_.grad_value_rows, nonfinite);
    }
    this->end_gradients(nonfinite);
  }

  __device__ __forceinline__ void run_second() {
    float grad_key[C.key_dim / 2];
#pragma unroll
    for (float& x : grad_key) x = 0;
    if (tile_.end > tile_.first) ptx::mbarrier_wait(shared_.value_full(), 0);
    int steps = 0;
    for_each_step<C>(a_, tile_, [&](int number, const BackwardStep& step) {
      const PipelineState<C.kStages> stage = stage_of<C>(number);
      const int parity = number % 2;
      float products[kScores];
      uint32_t gradients[kScores / 2];
      ptx::mbarrier_wait(shared_.out_full(stage.stage()), stage.parity());
      ptx::wgmma_fence();
      this->template begin_scores<C.value_dim>(products, shared_.value(),
                                               shared_.grad_out(stage.stage()));
      ptx::named_barrier_sync(kWeightsFull, 256);
      ptx::wgmma_wait<0>();
      ptx::fence_operand(products);
      this->check_values(number, products);
      receive_and_compute_ds(products, number, gradients);
      ptx::named_barrier_arrive(kWeightsEmpty, 256);
      this->leave(shared_.out_empty(stage.stage()));
      ptx::mbarrier_wait(shared_.query_full(stage.stage()), stage.parity());
      if constexpr (C.grad_key) {
        ptx::wgmma_fence();
        this->template begin_gradient<C.key_dim>(grad_key, gradients, shared_.query(stage.stage()));
      }
      if constexpr (C.grad_query) {
        if (number > 1) ptx::named_barrier_sync(kScoresEmpty + parity, 256);
        this->share_gradients(gradients, parity);
        ptx::named_barrier_arrive(kScoresFull + parity, 256);
        ptx::named_barrier_sync(kSecond, 128);
        pieces<1>(number, step);
      }
      ptx::wgmma_wait<0>();
      this->leave(shared_.query_empty(stage.stage()));
      steps = number + 1;
    });
    this->end_sums();
    // So that no barrier is left half full, and nobody reads keys any more.
    if constexpr (C.grad_query) {
      if (steps > 1) ptx::named_barrier_sync(kScoresEmpty + steps % 2, 256);
      if (steps > 0) ptx::named_barrier_sync(kScoresEmpty + (steps - 1) % 2, 256);
    }
    float nonfinite[2] = {0, 0};
    if constexpr (C.cluster_size > 1) reduce_cluster(grad_key);
    if constexpr (C.grad_key) {
      this->template epilogue_gradient<C.key_dim>(
          grad_key, [&] { return a_.scale; }, shared_.key(), a_.grad_key, a_.grad_key_rows,
          nonfinite);
    }
    this->end_gradients(nonfinite);
  }

 private:
  template <int kCount>
  __device__ __forceinline__ void reduce_cluster(float (&gradient)[kCount]) const {
    ptx::named_barrier_sync(1, 256);
    ptx::fence_operand(gradient);
    this->lend(gradient, 0);
    this->end_lending();
    if (this->has_results()) this->gather(gradient, 0);
    this->end_lending();
  }

  __device__ __forceinline__ int thread() const { return 32 * warp_ + lane_; }

  __device__ __forceinline__ void send_weights(const float (&weights)[kScores]) const {
    float4* to = shared_.weights() + thread();
#pragma unroll
    for (int i = 0; i < kScores; i += 4)
      to[i / 4 * 128] = float4{weights[i], weights[i + 1], weights[i + 2], weights[i + 3]};
  }
  __device__ __forceinline__ void receive_and_compute_ds(const float (&products)[kScores],
                                                         int number,
                                                         uint32_t (&gradients)[kScores / 2]) const {
    const float4* from = shared_.weights() + thread();
    float weights[kScores];
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      const float4 four = from[i / 4 * 128];
      weights[i] = four.x;
      weights[i + 1] = four.y;
      weights[i + 2] = four.z;
      weights[i + 3] = four.w;
    }
    this->compute_ds(weights, products, number, gradients);
  }

  __device__ __forceinline__ void first_pieces(int number, const BackwardStep& step) {
    ptx::named_barrier_sync(kScoresFull + number % 2, 256);
    pieces<0>(number, step);
    ptx::named_barrier_arrive(kScoresEmpty + number % 2, 256);
  }
  // Every second piece of a step. Earlier products of this consumer are complete then, too.
  template <int kFirst>
  __device__ __forceinline__ void pieces(int number, const BackwardStep& step) {
    constexpr bool kHasLast = C.pieces() % 2 != kFirst;
#pragma unroll
    for (int p = kFirst; p < C.pieces() - (kHasLast ? 1 : 0); p += 2)
      add_piece_of<C.piece_columns()>(number, step, p, p == kFirst);
    if constexpr (kHasLast)
      add_piece_of<C.last_columns()>(number, step, C.pieces() - 1, C.pieces() - 1 == kFirst);
    this->dq_arrive();
  }
  template <int kColumns>
  __device__ __forceinline__ void add_piece_of(int number, const BackwardStep& step, int p,
                                               bool first) {
    float piece[kColumns / 2];
    ptx::wgmma_fence();
    this->begin_piece(piece, number % 2, p);
    ptx::wgmma_wait<0>();
    ptx::fence_operand(piece);
    if (first) this->dq_wait(number);
    this->add_piece(piece, step, p);
  }
};

}  // namespace perseid::internal::cuda
