// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A consumer of matmul (matmul.hpp) with promoted sums. The tensor cores truncate at each addition;
// so they sum the products of C.promote steps alone, from zero, and registers add those to the sums
// in float32, rounded to nearest:
//
//   products = a b of some steps          wgmma
//   sums = factor * products + sums       one multiply-add for each accumulator
//
// Consumers issue their products by turns, so that the tensor cores have the products of one while
// the other adds:
//
//   tensor cores   | products of 0 | products of 1 | products of 0 | products of 1 | ...
//   consumer 0                     | adds, issues  |               | adds, issues  |
//   consumer 1     |                               | adds, issues  |
#pragma once

#include "cuda/device/ptx/wgmma.hpp"
#include "cuda/device/sm90/matmul/epilogue.hpp"
#include "cuda/device/split/halves.hpp"

namespace perseid::internal::cuda {

template <Sm90MatmulConfig C>
class MatmulPromotedConsumer {
  using Shared = MatmulShared<C>;
  using Product = ptx::Wgmma<C.columns, C.in>;
  using Sums = typename MatmulEpilogue<C>::Sums;

 public:
  __device__ __forceinline__ MatmulPromotedConsumer(const Sm90MatmulArguments& arguments,
                                                    const Shared& shared, int consumer)
      : arguments_(arguments),
        shared_(shared),
        consumer_(consumer),
        lane_(static_cast<int>(threadIdx.x) % 32),
        queue_(shared.tiles()),
        epilogue_(arguments, shared, consumer, static_cast<int>(threadIdx.x) / 32 % 4, lane_) {}

  __device__ __forceinline__ void run() {
    Sums sums;
    if (C.consumers == 2 && consumer_ == 1) pass_turn();  // consumer 0 begins
    for (;;) {
      const MatmulTilePosition tile = queue_.pop_by_warp(lane_);
      if (!tile.exists()) return;
#pragma unroll
      for (float& sum : sums) sum = 0;
      // The host rounds the number of steps up to a multiple; steps beyond k are zeros.
      for (int step = 0; step < arguments_.k_steps; step += C.promote) run_steps(sums);
      epilogue_.scale(tile, sums);
      epilogue_.emit_all(tile, sums);
    }
  }

 private:
  __device__ __forceinline__ void run_steps(Sums& sums) {
    int stages[C.promote];
#pragma unroll
    for (int& stage : stages) {
      shared_.inputs().consumer_wait(full_);
      stage = full_.stage();
      full_.advance();
    }
    if constexpr (C.planes == 2) {
      // A step has [32 high halves][32 low halves]. The small products come first, and have another
      // factor.
      constexpr int kSmall[][2] = {{2, 0}, {0, 2}, {3, 1}, {1, 3}}, kLarge[][2] = {{0, 0}, {1, 1}};
      promote(stages, kSmall, 1 / kLowHalfScale, sums);
      promote(stages, kLarge, 1, sums);
    } else {
      constexpr int kAll[][2] = {{0, 0}, {1, 1}, {2, 2}, {3, 3}};
      promote(stages, kAll, 1, sums);
    }
#pragma unroll
    for (int i = 0; i < C.promote; ++i) {
      shared_.release_inputs(empty_, lane_);
      empty_.advance();
    }
  }
  // sums += factor * the products of the stages: of each, products k of a with products k of b.
  template <int kPairs>
  __device__ __forceinline__ void promote(const int (&stages)[C.promote],
                                          const int (&pairs)[kPairs][2], float factor, Sums& sums) {
    Sums products;
    take_turn();
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < C.promote; ++i)
#pragma unroll
      for (int j = 0; j < kPairs; ++j)
        Product::template mma_ss<C.a_m_major, C.b_n_major>(
            products, shared_.a_operand(consumer_, stages[i], pairs[j][0]),
            shared_.b_operand(stages[i], pairs[j][1]), i + j > 0);
    ptx::wgmma_commit();
    pass_turn();
    ptx::wgmma_wait<0>();
    ptx::fence_operand(products);
#pragma unroll
    for (int i = 0; i < C.columns / 2; ++i) sums[i] = fmaf(products[i], factor, sums[i]);
  }
  __device__ __forceinline__ void take_turn() const {
    if constexpr (C.consumers == 2) ptx::named_barrier_sync(4 + consumer_, 256);
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (C.consumers == 2) ptx::named_barrier_arrive(5 - consumer_, 256);
  }

  const Sm90MatmulArguments& arguments_;
  const Shared& shared_;
  const int consumer_, lane_;
  MatmulTileReader queue_;
  MatmulEpilogue<C> epilogue_;
  PipelineCursor<Shared::kStages> full_, empty_;  // the stages waited for, and released
};

}  // namespace perseid::internal::cuda
