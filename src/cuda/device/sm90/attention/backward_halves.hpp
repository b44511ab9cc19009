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
// own dQ is complete. A consumer that passes over a step (C.passes()) arrives at all of them, too,
// and writes zeros. Named barrier 2: the consumers have added all of their dQ, of which a warp
// tells that waits for it (256 + 32).
#pragma once

#include "cuda/device/sm90/attention/backward_parts.hpp"

namespace perseid::internal::cuda {

// kColumns: those of the consumer's pieces of grad_query.
template <AttentionBackwardConfig C, int kColumns>
class HalvesConsumer : BackwardParts<C> {
  using Parts = BackwardParts<C>;
  using Parts::a_, Parts::shared_, Parts::tile_, Parts::number_, Parts::lane_;
  using Parts::kScores;

 public:
  __device__ __forceinline__ HalvesConsumer(const AttentionBackwardArguments& arguments,
                                            const BackwardShared<C>& shared,
                                            const BackwardTile& tile, int number)
      : Parts(arguments, shared, tile, number) {}

  __device__ __forceinline__ void run() {
#pragma unroll
    for (float& x : grad_key_) x = 0;
#pragma unroll
    for (float& x : grad_value_) x = 0;
    if (tile_.end > tile_.first) ptx::phase_wait(shared_.key_full(), 0);
    for_each_step<C>(a_, tile_, [&](int number, const BackwardStep& step) {
      if (!C.passes() || sees_keys(step))
        visit(number, step);
      else
        pass(number, step);
    });
    this->end_sums();
    if constexpr (C.parts > 1) gather_parts();
    float unusual[2] = {0, 0};
    if constexpr (C.grad_value) {
      this->template leave_gradient<C.value_dim>(
          grad_value_, [&] { return dropout_factor<C.dropout>(a_); }, shared_.value(),
          a_.grad_value, a_.grad_value_rows, unusual);
    }
    ptx::named_sync(1, 256);  // keys, which both read, make room for their gradients
    if constexpr (C.masked())
      if (this->bias_leaves()) this->clear_bias_gradient();
    if constexpr (C.grad_key) {
      this->template leave_gradient<C.key_dim>(
          grad_key_, [&] { return a_.scale; }, shared_.key(), a_.grad_key, a_.grad_key_rows,
          unusual);
    }
    this->end_gradients(unusual);
  }

 private:
  __device__ __forceinline__ void gather_parts() {
    ptx::named_sync(1, 256);
    ptx::results_are_here(grad_value_);
    ptx::results_are_here(grad_key_);
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
    const Ring<C.kStages> stage = stage_of<C>(number);
    const int parity = number % 2;
    if (number == 0) ptx::phase_wait(shared_.value_full(), 0);
    this->check_without_products(number);
    ptx::phase_wait(shared_.query_full(stage.place()), stage.parity());
    ptx::phase_wait(shared_.out_full(stage.place()), stage.parity());
    this->leave(shared_.query_empty(stage.place()));
    this->leave(shared_.out_empty(stage.place()));
    if constexpr (C.grad_query) {
      const uint32_t none[kScores / 2] = {};
      float piece[kColumns / 2];
      this->share_gradients(none, parity);
      ptx::named_sync(1, 256);
      ptx::products_begin();
      this->begin_piece(piece, parity, number_);
      ptx::products_wait<0>();
      ptx::results_are_here(piece);
      this->await_turn(number);
      this->add_piece(piece, step, number_);
      this->end_turn();
    }
  }

  __device__ __forceinline__ void visit(int number, const BackwardStep& step) {
    const Ring<C.kStages> stage = stage_of<C>(number);
    const int parity = number % 2;
    float scores[kScores], products[kScores];
    uint32_t weights[kScores / 2], gradients[kScores / 2];
    ptx::phase_wait(shared_.query_full(stage.place()), stage.parity());
    ptx::products_begin();
    this->template begin_scores<C.key_dim>(scores, shared_.key(), shared_.query(stage.place()));
    if (number == 0) ptx::phase_wait(shared_.value_full(), 0);
    ptx::phase_wait(shared_.out_full(stage.place()), stage.parity());
    this->template begin_scores<C.value_dim>(products, shared_.value(),
                                             shared_.grad_out(stage.place()));
    typename Parts::Dropped dropped;
    this->find_dropped(tile_, step, dropped);
    ptx::products_wait<1>();
    ptx::results_are_here(scores);
    this->check_keys(number, scores);
    this->weigh(scores, number, step, dropped);
    if constexpr (C.grad_value) this->round_kept(scores, weights);
    ptx::products_wait<0>();
    ptx::results_are_here(products);
    this->check_values(number, products);
    this->grade(scores, products, number, gradients);
    if constexpr (!C.grad_value) this->leave(shared_.out_empty(stage.place()));
    if constexpr (C.grad_value) {
      ptx::products_begin();
      this->template begin_gradient<C.value_dim>(grad_value_, weights,
                                                 shared_.grad_out(stage.place()));
    }
    float piece[kColumns / 2];
    if constexpr (C.grad_query)
      this->share_gradients(gradients, parity);
    else if constexpr (C.grad_bias_in_place())
      ptx::fence_for_engines();
    if constexpr (C.grad_query || C.grad_bias_in_place()) ptx::named_sync(1, 256);
    const int slot = this->bias_slot(number).place();
    if (this->bias_leaves()) this->store_bias_gradient(slot, step);
    if constexpr (C.grad_query) {
      ptx::products_begin();
      this->begin_piece(piece, parity, number_);
    }
    if constexpr (C.grad_value) {
      ptx::products_wait<C.grad_query ? 1 : 0>();
      this->leave(shared_.out_empty(stage.place()));
    }
    if constexpr (C.grad_key) {
      ptx::products_begin();
      this->template begin_gradient<C.key_dim>(grad_key_, gradients, shared_.query(stage.place()));
    }
    if constexpr (C.grad_query) {
      ptx::products_wait<C.grad_key ? 1 : 0>();
      ptx::results_are_here(piece);
      this->await_turn(number);
      this->add_piece(piece, step, number_);
      this->end_turn();
    }
    ptx::products_wait<0>();
    this->leave(shared_.query_empty(stage.place()));
    if (this->bias_leaves()) this->leave_bias(slot);
  }

  float grad_key_[C.key_dim / 2], grad_value_[C.value_dim / 2];
};

}  // namespace perseid::internal::cuda
