// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The steps of a consumer of matmul (matmul.hpp) along k with promoted sums. The tensor cores
// truncate at each addition; so they sum the products of C.promote steps alone, from zero, and
// registers add those to the sums in float32, rounded to nearest:
//
//   products = a b of some steps          wgmma
//   sums = factor * products + sums       one multiply-add for each accumulator
//
// While one consumer adds, the tensor cores have the products of the other:
//
//   tensor cores   | products of 0 | products of 1 | products of 0 | products of 1 | ...
//   consumer 0                     | adds, issues  |               | adds, issues  |
//   consumer 1     |                               | adds, issues  |
#pragma once

#include "cuda/device/ptx/wgmma.hpp"
#include "cuda/device/sm90/matmul/shared.hpp"
#include "cuda/device/sm90/matmul/split_k.hpp"
#include "cuda/device/split/halves.hpp"

namespace perseid::internal::cuda {

// The block scales of a thread's two rows, step by step; 1 without. They are loaded a step ahead.
//
// A tile of 192 columns begins in the middle of every other block of b, so that its second 64
// columns belong to its first block or to its second:
//
//   blocks of b   |   0   |   1   |   2   |
//   tiles         |     0     |     1     |
template <Sm90MatmulConfig C>
class MatmulStepScales {
  static constexpr bool kTwo = C.blocks && C.columns > 128;  // blocks of b in a tile

 public:
  // The factors of each 64 columns, for the two rows.
  static constexpr int kSegments = kTwo ? C.columns / 64 : 1;
  struct Factors {
    float2 of[kSegments];
  };

  // `row`: the first of the thread's two, eight apart.
  __device__ __forceinline__ MatmulStepScales(const Sm90MatmulArguments& arguments,
                                              const MatmulTilePosition& tile,
                                              const StepRange& steps, int row)
      : arguments_(arguments), left_(steps.count()), shifted_(tile.column / 64 % 2 != 0) {
    if constexpr (C.blocks) {
      const MatmulBlockScales &a = arguments.a_scales, &b = arguments.b_scales;
      // Rows outside of a have those of the last one, and so have blocks outside of b.
      const int last = arguments.grid.m - 1;
      const float* const first = a.data + tile.batch * a.batch + steps.first * a.step;
      upper_ = first + min(row, last) * a.line;
      lower_ = first + min(row + 8, last) * a.line;
      const int block = tile.column / 128, last_block = (arguments.grid.n - 1) / 128;
      b_ = b.data + tile.batch * b.batch + steps.first * b.step + block * b.line;
      to_second_ = block < last_block ? b.line : 0;
      load();
    }
  }
  __device__ __forceinline__ Factors next() {
    Factors factors;
    if constexpr (C.blocks) {
      const float2 first = {ahead_upper_ * ahead_b_, ahead_lower_ * ahead_b_};
      const float2 second = {ahead_upper_ * ahead_second_, ahead_lower_ * ahead_second_};
#pragma unroll
      for (int i = 0; i < kSegments; ++i)
        factors.of[i] = i == 0 ? first : i == 2 ? second : shifted_ ? second : first;
      if (--left_ > 0) load();
    } else {
      factors.of[0] = {1, 1};
    }
    return factors;
  }

 private:
  __device__ __forceinline__ void load() {
    ahead_upper_ = *upper_, ahead_lower_ = *lower_, ahead_b_ = *b_;
    if constexpr (kTwo) ahead_second_ = b_[to_second_];
    upper_ += arguments_.a_scales.step;
    lower_ += arguments_.a_scales.step;
    b_ += arguments_.b_scales.step;
  }

  const Sm90MatmulArguments& arguments_;
  int left_;
  bool shifted_;
  int64_t to_second_ = 0;
  const float *upper_ = nullptr, *lower_ = nullptr, *b_ = nullptr;
  float ahead_upper_ = 1, ahead_lower_ = 1, ahead_b_ = 1, ahead_second_ = 1;
};

template <Sm90MatmulConfig C>
class MatmulPromotedMainloop {
  using Shared = MatmulShared<C>;
  using Product = ptx::Wgmma<C.columns, C.in, C.type_of_b()>;
  using Scales = MatmulStepScales<C>;
  struct Stages {
    int at[C.promote];
  };

 public:
  using Sums = float[C.columns / 2];

  __device__ __forceinline__ MatmulPromotedMainloop(const Shared& shared, int consumer, int lane)
      : shared_(shared), consumer_(consumer), lane_(lane) {}

  // Sums of so many steps, from zero. The host rounds their number up to a multiple of C.promote;
  // steps beyond k are zeros.
  __device__ __forceinline__ void run(int steps, Scales& scales, Sums& sums) {
#pragma unroll
    for (float& sum : sums) sum = 0;
    Stages stages = acquire();
    for (int left = steps; left > 0; left -= C.promote)
      run_steps(scales, left > C.promote, stages, sums);
  }

 private:
  // The stages of the next C.promote steps.
  __device__ __forceinline__ Stages acquire() {
    Stages stages;
#pragma unroll
    for (int& stage : stages.at) {
      shared_.inputs().consumer_wait(full_);
      stage = full_.stage();
      full_.advance();
    }
    return stages;
  }
  // Multiplies `stages`, and replaces them by the next ones if there are `more`.
  __device__ __forceinline__ void run_steps(Scales& scales, bool more, Stages& stages, Sums& sums) {
    Sums products;
    if constexpr (C.planes == 2) {
      // A step has [32 high halves][32 low halves]. The small products come first, and have another
      // factor.
      constexpr int kSmall[][2] = {{2, 0}, {0, 2}, {3, 1}, {1, 3}}, kLarge[][2] = {{0, 0}, {1, 1}};
      multiply(stages, kSmall, products);
      promote(products, {{{1 / kLowHalfScale, 1 / kLowHalfScale}}}, sums);
      multiply(stages, kLarge, products);
    } else {
      constexpr int kAll[][2] = {{0, 0}, {1, 1}, {2, 2}, {3, 3}};
      multiply(stages, kAll, products);
    }
    // Wait for the next stages while the tensor cores work.
    Stages next = stages;
    if (more) next = acquire();
    promote(products, scales.next(), sums);
#pragma unroll
    for (int i = 0; i < C.promote; ++i) {
      shared_.release_inputs(empty_, lane_);
      empty_.advance();
    }
    stages = next;
  }
  // Issues the products of the stages from zero, of each by pairs of the 32 bytes of k of a and b.
  template <int kPairs>
  __device__ __forceinline__ void multiply(const Stages& stages, const int (&pairs)[kPairs][2],
                                           Sums& products) {
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < C.promote; ++i)
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        Product::template mma_ss<C.a_m_major, C.b_n_major>(
            products, shared_.a_operand(consumer_, stages.at[i], pairs[j][0]),
            shared_.b_operand(stages.at[i], pairs[j][1]), i + j > 0);
      }
    ptx::wgmma_commit();
  }
  // sums += factors * products, when these are complete.
  __device__ __forceinline__ void promote(Sums& products, const typename Scales::Factors& factors,
                                          Sums& sums) const {
    ptx::wgmma_wait<0>();
    ptx::fence_operand(products);
#pragma unroll
    for (int i = 0; i < C.columns / 2; ++i) {
      const float2 factor = factors.of[Scales::kSegments > 1 ? i / 32 : 0];
      sums[i] = fmaf(products[i], i % 4 < 2 ? factor.x : factor.y, sums[i]);
    }
  }

  const Shared& shared_;
  const int consumer_, lane_;
  PipelineCursor<Shared::kStages> full_, empty_;  // the stages waited for, and released
};

}  // namespace perseid::internal::cuda
