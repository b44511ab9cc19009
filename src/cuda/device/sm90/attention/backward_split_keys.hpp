// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward on sm_90a for dims up to 128: each consumer has 64 of the tile's 128 keys, and
// their gradients in registers. One step, of the queries Q with gradients dO:
//
//   S^T = K Q^T          from shared memory
//   dP^T = V dO^T        from shared memory; under it P = 2^(S - lse)
//   dV += P^T dO         P in registers; under it dS = P (dP - delta), to shared memory too
//   dQ = dS K            from shared memory, all keys of the tile: each consumer has one half of
//                        the queries, where there are 128, else of the columns
//   dK += dS^T Q         dS in registers; under it dQ is added to the sums in memory
//
// Barriers: those of the producer (backward_tiles.hpp). key_full and value_full: the producer,
// once. query_full, out_full: the producer, in each step; query_empty, out_empty: all eight warps
// of the consumers, when their last product with it is complete. Named barrier 1 (256 threads), in
// each step: both halves of dS are in shared memory. dS of the step after the next takes the same
// place; nobody writes it before that next step's barrier, which a consumer passes only when its
// own dQ is complete. A consumer that passes over a step (C.skips_masked_tiles()) arrives at all of
// them, too, and writes zeros. Named barrier 2: the consumers have added all of their dQ, of which
// a warp tells that waits for it (256 + 32).
#pragma once

#include "cuda/device/sm90/attention/backward_parts.hpp"

namespace perseid::internal::cuda {

// kColumns: those of the consumer's pieces of grad_query.
template <AttentionBackwardConfig C, int kColumns>
class SplitKeysConsumer : BackwardParts<C> {
  using Parts = BackwardParts<C>;
  using Parts::a_, Parts::shared_, Parts::tile_, Parts::number_, Parts::lane_;
  using Parts::kScores;

 public:
  __device__ __forceinline__ SplitKeysConsumer(const AttentionBackwardArguments& arguments,
                                               const BackwardShared<C>& shared,
                                               const BackwardTile& tile, int number)
      : Parts(arguments, shared, tile, number) {}

  __device__ __forceinline__ void run() {
#pragma unroll
    for (float& x : grad_key_) x = 0;
#pragma unroll
    for (float& x : grad_value_) x = 0;
    if (tile_.end > tile_.first) ptx::mbarrier_wait(shared_.key_full(), 0);
    for_each_step<C>(a_, tile_, [&](int number, const BackwardStep& step) {
      if (!C.skips_masked_tiles() || sees_keys(step))
        visit(number, step);
      else
        pass(number, step);
    });
    this->end_sums();
    if constexpr (C.cluster_size > 1) reduce_cluster();
    float nonfinite[2] = {0, 0};
    if constexpr (C.grad_value) {
      this->template epilogue_gradient<C.value_dim>(
          grad_value_, [&] { return dropout_factor<C.dropout>(a_); }, shared_.value(),
          a_.grad_value, a_.grad_value_rows, nonfinite);
    }
    ptx::named_barrier_sync(1, 256);  // keys, which both read, make room for their gradients
    if constexpr (C.masked())
      if (this->stores_bias_gradient()) this->clear_bias_gradient();
    if constexpr (C.grad_key) {
      this->template epilogue_gradient<C.key_dim>(
          grad_key_, [&] { return a_.scale; }, shared_.key(), a_.grad_key, a_.grad_key_rows,
          nonfinite);
    }
    this->end_gradients(nonfinite);
  }

 private:
  __device__ __forceinline__ void reduce_cluster() {
    ptx::named_barrier_sync(1, 256);
    ptx::fence_operand(grad_value_);
    ptx::fence_operand(grad_key_);
    this->lend(grad_value_, 0);
    this->lend(grad_key_, C.value_dim / 2);
    this->end_lending();
    if (this->has_results()) {
      this->gather(grad_value_, 0);
      this->gather(grad_key_, C.value_dim / 2);
    }
    this->end_lending();
  }

  // Whether any query of the step sees any of the consumer's keys.
  __device__ __forceinline__ bool sees_keys(const BackwardStep& step) const {
    const int query = step.block * C.queries, key = tile_.key + this->first_key();
    return (!C.right || query + C.queries - 1 + tile_.right > key) &&
           (!C.left || query + tile_.left < key + 64);
  }
  // A step without them: what is left is this consumer's part of dQ.
  __device__ __forceinline__ void pass(int number, const BackwardStep& step) {
    const PipelineState<C.kStages> stage = stage_of<C>(number);
    const int parity = number % 2;
    if (number == 0) ptx::mbarrier_wait(shared_.value_full(), 0);
    this->check_without_products(number);
    ptx::mbarrier_wait(shared_.query_full(stage.stage()), stage.parity());
    ptx::mbarrier_wait(shared_.out_full(stage.stage()), stage.parity());
    this->leave(shared_.query_empty(stage.stage()));
    this->leave(shared_.out_empty(stage.stage()));
    if constexpr (C.grad_query) {
      const uint32_t none[kScores / 2] = {};
      float piece[kColumns / 2];
      this->share_gradients(none, parity);
      ptx::named_barrier_sync(1, 256);
      ptx::wgmma_fence();
      this->begin_piece(piece, parity, number_);
      ptx::wgmma_wait<0>();
      ptx::fence_operand(piece);
      this->dq_wait(number);
      this->add_piece(piece, step, number_);
      this->dq_arrive();
    }
  }

  __device__ __forceinline__ void visit(int number, const BackwardStep& step) {
    const PipelineState<C.kStages> stage = stage_of<C>(number);
    const int parity = number % 2;
    float scores[kScores], products[kScores];
    uint32_t weights[kScores / 2], gradients[kScores / 2];
    ptx::mbarrier_wait(shared_.query_full(stage.stage()), stage.parity());
    ptx::wgmma_fence();
    this->template begin_scores<C.key_dim>(scores, shared_.key(), shared_.query(stage.stage()));
    if (number == 0) ptx::mbarrier_wait(shared_.value_full(), 0);
    ptx::mbarrier_wait(shared_.out_full(stage.stage()), stage.parity());
    this->template begin_scores<C.value_dim>(products, shared_.value(),
                                             shared_.grad_out(stage.stage()));
    typename Parts::Dropped dropped;
    this->find_dropped(tile_, step, dropped);
    ptx::wgmma_wait<1>();
    ptx::fence_operand(scores);
    this->check_keys(number, scores);
    this->softmax(scores, number, step, dropped);
    if constexpr (C.grad_value) this->round_kept(scores, weights);
    ptx::wgmma_wait<0>();
    ptx::fence_operand(products);
    this->check_values(number, products);
    this->compute_ds(scores, products, number, gradients);
    if constexpr (!C.grad_value) this->leave(shared_.out_empty(stage.stage()));
    if constexpr (C.grad_value) {
      ptx::wgmma_fence();
      this->template begin_gradient<C.value_dim>(grad_value_, weights,
                                                 shared_.grad_out(stage.stage()));
    }
    float piece[kColumns / 2];
    if constexpr (C.grad_query)
      this->share_gradients(gradients, parity);
    else if constexpr (C.grad_bias_in_place())
      ptx::fence_proxy_async();
    if constexpr (C.grad_query || C.grad_bias_in_place()) ptx::named_barrier_sync(1, 256);
    const int bias = this->bias_stage(number).stage();
    if (this->stores_bias_gradient()) this->store_bias_gradient(bias, step);
    if constexpr (C.grad_query) {
      ptx::wgmma_fence();
      this->begin_piece(piece, parity, number_);
    }
    if constexpr (C.grad_value) {
      ptx::wgmma_wait<C.grad_query ? 1 : 0>();
      this->leave(shared_.out_empty(stage.stage()));
    }
    if constexpr (C.grad_key) {
      ptx::wgmma_fence();
      this->template begin_gradient<C.key_dim>(grad_key_, gradients, shared_.query(stage.stage()));
    }
    if constexpr (C.grad_query) {
      ptx::wgmma_wait<C.grad_key ? 1 : 0>();
      ptx::fence_operand(piece);
      this->dq_wait(number);
      this->add_piece(piece, step, number_);
      this->dq_arrive();
    }
    ptx::wgmma_wait<0>();
    this->leave(shared_.query_empty(stage.stage()));
    if (this->stores_bias_gradient()) this->release_bias(bias);
  }

  float grad_key_[C.key_dim / 2], grad_value_[C.value_dim / 2];
};

}  // namespace perseid::internal::cuda
