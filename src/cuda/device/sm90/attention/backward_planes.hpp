// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward for f32 on sm_90a, dims up to 64: the products of backward.hpp, each as three
// products of f16 planes (portable/attention/planes.hpp) whose sums begin from zero.
//
//   dV = P^T dO      dP = dO V^T      dS = P (dP - delta)
//   dQ = scale dS K                   dK = scale dS^T Q
//
// Three launches: attention_backward_split (planes, delta and lse, backward_planes_rows.hpp),
// attention_backward_planes (the products, this file), attention_backward_finish_f32 (dQ from its
// sums, backward_planes_rows.hpp).
//
// Roles. As in backward.hpp, split by keys: warpgroup 0 is the producer, of which one thread issues
// TMA loads; warpgroups 1 and 2 are consumers, each with 64 of the tile's 128 keys. They share
// stages and nothing else, so that one multiplies while the other computes dS. A step has 64
// queries:
//
//   wait for         WGMMA              then
//   dO (V once)      dP^T = V dO^T      W = 2^(S - shift) under it, in planes
//                    dV = W^T dO        dS under it, in planes; to shared memory
//                    dK = dS^T Q        dV is added to its sums, the stage of dO released
//                    dQ = dS K          dK is added, the stage of Q released
//   next Q (K once)  S^T = K Q^T        dQ is added to memory under it
//
// Numbers. With planes Q' = Q / f, K' = K / g, dO' = 2^-e dO and V' = 2^-v V of a row each, and the
// largest e of the step's queries, E:
//
//   W = 2^(f g Q'K' - lse + e - E + 15)     dV = 2^(E - 15) W^T dO'
//   u = W (2^v dO'V' - 2^-e delta)          dS = 2^(E - 15) u
//
// so that whatever dO's rows are, W is at most 2^15, which planes hold to 2^-40. u has no natural
// range: each consumer multiplies it by a power of two that brings its largest below 2^15, which
// its warps exchange. Tensor cores sum over queries for dK and over keys for dQ, where u is to be
// multiplied by f, or by g. Mostly all rows of a tile and of the queries that see it have the
// common numbers, and one split of u serves both. Otherwise (kOwn) W, u f and u g are split each
// for itself, by a power of two for each key, or for each query: rows that see no large number keep
// their accuracy where other rows of the step see one.
//
// Rows with numbers that planes do not hold have a NaN for a factor. They, and NaN and infinity of
// the statistics, make results NaN that depend on them; those rows get a fixup
// (attention/backward_fixup.hpp). Hidden pairs have W and u of 0, whatever the factors are.
//
// Barriers, besides the pipelines: kOwnWarps + consumer: the consumer's warps have written their
// largest u (if kOwn, have cleared those of queries, and have written them), and their part of dS.
// dS of the step before has been read by then: each warp has waited for its part of dQ.
//
// Limits: scale is positive. The sums of dQ get their summands in any order.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/ptx/ordering.hpp"
#include "cuda/device/sm90/attention/backward_planes_epilogue.hpp"
#include "cuda/device/sm90/attention/backward_planes_keys.hpp"
#include "cuda/device/sm90/attention/backward_planes_products.hpp"
#include "cuda/device/sm90/attention/backward_planes_step.hpp"

namespace perseid::internal::cuda {

// ---- Split by keys ----

template <AttentionBackwardConfig C, bool kOwn>
class PlanesConsumer : PlanesStep<C, kOwn> {
  using Step = PlanesStep<C, kOwn>;
  using Step::a_, Step::shared_, Step::tile_, Step::thread_, Step::chain_;
  using Step::kScores;
  using typename Step::Planes;

 public:
  __device__ __forceinline__ PlanesConsumer(const AttentionBackwardPlanesArguments& arguments,
                                            const PlanesShared<C>& shared, const BackwardTile& tile,
                                            int consumer)
      : Step(arguments, shared, tile, consumer) {}

  __device__ __forceinline__ void run() {
    clear_sums(grad_key_);
    clear_sums(grad_value_);
    step_ = {tile_.kv_head * a_.group, tile_.first};
    while (has_step()) {
      if (!visits_step()) {
        skip_step();
        next_step();
        continue;
      }
      issue_scores(true);
      while (run_step()) {
      }
      ptx::wgmma_wait<0>();
    }
    PlanesEpilogue<C>(a_, tile_, thread_.consumer).store(grad_key_, grad_value_);
  }

 private:
  // ---- Steps, in the order of for_each_step ----

  __device__ __forceinline__ bool has_step() const {
    return tile_.end > tile_.first && step_.head < (tile_.kv_head + 1) * a_.group;
  }
  __device__ __forceinline__ void next_step() {
    ++number_;
    if (++step_.block < tile_.end) return;
    step_.block = tile_.first;
    ++step_.head;
  }
  // Whether any query of the step sees any of the consumer's keys.
  __device__ __forceinline__ bool visits_step() const {
    if constexpr (!C.skips_masked_tiles()) return true;
    const int query = step_.block * C.queries, key = tile_.key + thread_.first_key();
    const int position = query + gap_before<C>(a_, query);
    return (!C.right || position + C.queries - 1 + tile_.right > key) &&
           (!C.left || position + tile_.left < key + 64);
  }
  __device__ __forceinline__ void skip_step() const {
    const PipelineState<C.kStages> state{number_};
    shared_.queries().consumer_wait(state);
    thread_.release(shared_.queries(), state);
    shared_.grad_outs().consumer_wait(state);
    thread_.release(shared_.grad_outs(), state);
  }

  // ---- A step ----

  // S^T = K Q^T of the step that number_ and step_ are of. Without a branch round WGMMA: if the
  // consumer does not visit it, of the stage as it is.
  __device__ __forceinline__ void issue_scores(bool visits) {
    const PipelineState<C.kStages> state{number_};
    if (visits) shared_.queries().consumer_wait(state);
    ptx::wgmma_fence();
    Step::template issue_scores<C.key_dim>(scores_, shared_.key(), shared_.query(state.stage()));
  }
  // The scores of the step were issued. Goes to the next one and issues its own; returns whether
  // the consumer visits it.
  __device__ __forceinline__ bool run_step() {
    const PipelineState<C.kStages> state{number_};
    const BackwardStep step = step_;
    const int stage = state.stage();
    const QueryNumbers& numbers = shared_.numbers(stage);

    // dP^T = V dO^T; W under it
    DroppedBits<C> dropped;
    chain_.find_dropped(tile_, step, dropped);
    ptx::wgmma_wait<0>();
    ptx::fence_operand(scores_);
    shared_.grad_outs().consumer_wait(state);
    float products[kScores];
    ptx::wgmma_fence();
    Step::template issue_scores<C.value_dim>(products, shared_.value(), shared_.grad_out(stage));
    chain_.hide_unseen(scores_, tile_, step);
    this->scores_to_weights(numbers, scores_);
    Planes weights;
    this->split_for_values(scores_, weights);
    if constexpr (C.dropout) this->drop(dropped, scores_, weights);

    // dV = W^T dO; dS under it
    ptx::wgmma_fence();
    float gradient[C.value_dim / 2];
    this->template issue_gradient<C.value_dim>(gradient, weights, shared_.grad_out(stage));
    const auto add_values = [&] {
      ptx::fence_operand(gradient);
      thread_.release(shared_.grad_outs(), state);
      add_products(gradient, this->value_factors(numbers.scale), grad_value_);
    };
    ptx::wgmma_wait<kOwn ? 0 : 1>();
    ptx::fence_operand(products);
    if constexpr (kOwn) add_values();  // whose registers two splits of dS need
    this->weights_to_ds(numbers, scores_, products);
    Planes ds;
    const float of_keys = this->split_ds(numbers, 0, products, ds, [] {}) * numbers.scale;
    ptx::named_barrier_sync(Step::kOwnWarps + thread_.consumer, 128);
    const RowFactors of_queries = this->query_factors(numbers, 0, thread_.consumer);

    // dK = dS^T Q; dV is added under it
    ptx::wgmma_fence();
    float key_gradient[C.key_dim / 2];
    this->template issue_gradient<C.key_dim>(key_gradient, ds, shared_.query(stage));
    if constexpr (!kOwn) {
      ptx::wgmma_wait<1>();
      add_values();
    }

    // dQ = dS K over the consumer's keys; dK is added under it. Then the scores of the next step
    float query_gradient[C.key_dim / 2];
    ptx::wgmma_fence();
    this->issue_queries(query_gradient, 0, thread_.consumer, 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    ptx::fence_operand(key_gradient);
    thread_.release(shared_.queries(), state);
    add_products(key_gradient, this->key_factors(of_keys), grad_key_);
    next_step();
    const bool visits = has_step() && visits_step();
    issue_scores(visits);

    ptx::wgmma_wait<1>();
    ptx::fence_operand(query_gradient);
#pragma unroll
    for (int i = 0; i < C.key_dim / 2; ++i) query_gradient[i] *= of_queries.of_row[i / 2 % 2];
    this->add_to_queries(query_gradient, step, 0);
    return visits;
  }

  int number_ = 0;     // of the step
  BackwardStep step_;  // whose scores are issued next, or were issued
  float scores_[kScores];
  float grad_key_[C.key_dim / 2], grad_value_[C.value_dim / 2];
};

// ---- Entry ----

// Splits the keys and values of the tile. Returns whether one of them, or a query of its steps, has
// numbers of its own. By all consumers.
template <AttentionBackwardConfig C>
__device__ __forceinline__ bool split_keys_and_values(const AttentionBackwardPlanesArguments& a,
                                                      const PlanesShared<C>& shared,
                                                      const BackwardTile& tile) {
  constexpr int kThreads = 128 * C.kConsumers;
  const int32_t thread = static_cast<int32_t>(threadIdx.x) - 128;
  bool own = false;
  const int32_t blocks = tile.end - tile.first;
#pragma unroll 1
  for (int32_t i = thread; i < a.group * blocks; i += kThreads) {
    const int64_t number =
        block_number<C>(a, tile, tile.kv_head * a.group + i / blocks, tile.first + i % blocks);
    own = own || a.query_numbers[number].uncommon != 0;
  }
  if (blocks > 0) {
    ptx::mbarrier_wait(shared.key_full(), 0);
    ptx::mbarrier_wait(shared.value_full(), 0);
    own = KeyRows<C>::split(a.planes.pairs[1], shared, thread / 32, tile.kv_len - tile.key) || own;
    ptx::fence_proxy_async();
  }
  own = ptx::named_barrier_any(PlanesShared<C>::kBothConsumers, kThreads, own);
  return __shfl_sync(0xffffffffu, own ? 1 : 0, 0) != 0;
}

// Beyond dim 64 the loops of a consumer end in one epilogue: its stores for each loop would take a
// fifth of the kernel's compile time. Up to 64 that costs the loops registers. `own`: rows have
// numbers of their own. Each loop computes its addresses again: what was computed once, before the
// branch, was spilled, and read again in each step.
template <AttentionBackwardConfig C>
__device__ __forceinline__ void run_planes_consumer(const AttentionBackwardPlanesArguments& a,
                                                    const PlanesShared<C>& shared,
                                                    const BackwardTile& tile, int consumer,
                                                    bool own) {
  if constexpr (C.split_keys) {
    if (own) {
      ptx::separate_branch();
      PlanesConsumer<C, true>(a, shared, tile, consumer).run();
    } else {
      PlanesConsumer<C, false>(a, shared, tile, consumer).run();
    }
  } else if (consumer == 0) {
    float grad_value[C.value_dim / 2];
    if (own) {
      ptx::separate_branch();
      PlanesValueConsumer<C, true>(a, shared, tile, grad_value).run();
    } else {
      PlanesValueConsumer<C, false>(a, shared, tile, grad_value).run();
    }
    PlanesEpilogue<C>(a, tile, 0).store_value(grad_value);
  } else {
    float grad_key[C.key_dim / 2];
    if (own) {
      ptx::separate_branch();
      PlanesKeyConsumer<C, true>(a, shared, tile, grad_key).run();
    } else {
      PlanesKeyConsumer<C, false>(a, shared, tile, grad_key).run();
    }
    PlanesEpilogue<C>(a, tile, 1).store_key(grad_key);
  }
}

template <AttentionBackwardConfig C>
__global__ void __launch_bounds__(C.threads(), 1)
    attention_backward_planes(const __grid_constant__ AttentionBackwardPlanesArguments arguments) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const PlanesShared<C> shared{memory, static_cast<uint32_t>(__cvta_generic_to_shared(memory))};
  if (threadIdx.x == 0) {
    shared.prepare();
    for (const TensorMap* map :
         {&arguments.key, &arguments.query, &arguments.value, &arguments.grad_out})
      ptx::prefetch_tensor_map(*map);
  }
  __syncthreads();
  ptx::wait_for_prerequisites();
  ptx::launch_dependents();
  const BackwardTile tile = find_backward_tile<C>(arguments, static_cast<int32_t>(blockIdx.x));
  if (C.lengths && tile.key >= tile.kv_rows) return;
  // A shuffle, so that the compiler knows it to be uniform in a warp.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    ptx::setmaxnreg_dec<24>();
    if (threadIdx.x == 0) load_planes<C>(arguments, shared, tile);
  } else {
    const bool own = split_keys_and_values<C>(arguments, shared, tile);
    ptx::setmaxnreg_inc<240>();
    run_planes_consumer<C>(arguments, shared, tile, group - 1, own);
  }
}

}  // namespace perseid::internal::cuda
