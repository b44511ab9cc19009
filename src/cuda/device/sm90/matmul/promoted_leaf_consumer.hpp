// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A consumer of matmul of f32 (matmul.hpp) in canonical order (math/leaf_tree.hpp). The steps along
// k are C.leaves equal leaves of planes, each with factors of its own: it is summed from zero
// (promoted_mainloop.hpp), multiplied by its factors, and added to its neighbour.
//
//   leaf         0    1      2    3         4    5      6    7
//   registers    put  add    put  add       put  add    put  add
//   shared            put         add            put         add      pairs
//   workspace                     put                        add      the first four
//
// Registers have room for the sums of two leaves of 64 rows by 128 columns and for the products of
// a step. Each thread reads back only sums that it has stored, so no barrier is needed.
//
// A row or column of a leaf that f16 cannot carry has a factor of NaN. Its sums are made here by
// multiply-add, from a and b as they were, in the order of device/matmul/fma.hpp: a later
// kernel cannot insert them, as the tree is summed by then.
#pragma once

#include "cuda/device/sm90/matmul/epilogue.hpp"
#include "cuda/device/sm90/matmul/leaf_sums.hpp"
#include "cuda/device/sm90/matmul/promoted_mainloop.hpp"

namespace perseid::internal::cuda {

template <Sm90MatmulConfig C>
class MatmulPromotedLeafConsumer {
  using Shared = MatmulShared<C>;
  using Sums = typename MatmulEpilogue<C>::Sums;
  using Vectors = typename MatmulEpilogue<C>::Vectors;

 public:
  __device__ __forceinline__ MatmulPromotedLeafConsumer(const Sm90LeafArguments& arguments,
                                                        const Shared& shared, int consumer)
      : arguments_(arguments),
        shared_(shared),
        consumer_(consumer),
        lane_(static_cast<int>(threadIdx.x) % 32),
        queue_(shared.tiles()),
        mainloop_(shared, consumer, lane_),
        epilogue_(arguments, shared, consumer, static_cast<int>(threadIdx.x) / 32 % 4, lane_) {}

  __device__ __forceinline__ void run() {
    Sums sums, left;  // of a leaf, and of the one before
    for (;;) {
      const MatmulTilePosition tile = queue_.pop_by_warp(lane_);
      if (!tile.exists()) break;
#pragma unroll 1
      for (int leaf = 0; leaf < C.leaves; ++leaf) {
        sum_leaf(tile, leaf, sums);
        const bool is_left = leaf % 2 == 0;
#pragma unroll
        for (int i = 0; i < C.columns / 2; ++i) is_left ? left[i] = sums[i] : sums[i] += left[i];
        if constexpr (C.leaves > 2)
          if (!is_left) add_pair(leaf / 2, sums);
      }
      epilogue_.emit_all(tile, sums);
    }
    epilogue_.finish();
  }

 private:
  // The sums of a pair: put where their neighbours find them, or added to these.
  __device__ __forceinline__ void add_pair(int pair, Sums& sums) const {
    if (pair % 2 == 0) {
      put_leaf_sums(sums, pairs());
      return;
    }
    add_leaf_sums(pairs(), sums);
    if constexpr (C.leaves == 8) {
      if (pair == 1)
        put_leaf_sums(sums, fours());
      else
        add_leaf_sums(fours(), sums);
    }
  }
  __device__ __forceinline__ float4* pairs() const {
    return shared_.leaf_sums(consumer_, static_cast<int>(threadIdx.x) % 128);
  }
  __device__ __forceinline__ float4* fours() const {
    constexpr int kOfConsumer = C.aside_bytes() / C.consumers;
    return reinterpret_cast<float4*>(arguments_.aside + int64_t{blockIdx.x} * C.aside_bytes() +
                                     consumer_ * kOfConsumer) +
           static_cast<int>(threadIdx.x) % 128;
  }

  __device__ __forceinline__ void sum_leaf(const MatmulTilePosition& tile, int leaf, Sums& sums) {
    MatmulTilePosition in_leaf = tile;
    in_leaf.batch = leaf;
    const Vectors vectors = epilogue_.load_vectors(in_leaf);
    const StepRange steps{0, arguments_.k_steps / C.leaves};
    MatmulStepScales<C> scales(arguments_, in_leaf, steps, epilogue_.first_row(tile));
    mainloop_.run(steps.count(), scales, sums);
    epilogue_.scale(vectors, sums);
    bool refused = isnan(vectors.upper) || isnan(vectors.lower);
#pragma unroll
    for (const float factor : vectors.of_columns) refused |= isnan(factor);
    if (__any_sync(0xffffffffu, refused)) multiply_add(in_leaf, vectors, sums);
  }
  // Sixteen accumulators at a time, of which those of refused rows and columns are kept: registers
  // hold the leaf before.
  __device__ __forceinline__ void multiply_add(const MatmulTilePosition& leaf,
                                               const Vectors& vectors, Sums& sums) const {
    constexpr int kTogether = 16;
    const MatmulOperand &a = arguments_.of_a, &b = arguments_.of_b;
    const int row = epilogue_.first_row(leaf), column = leaf.column + 2 * (lane_ % 4);
    const int last_row = arguments_.grid.m - 1, last_column = arguments_.grid.n - 1;
    const bool of_upper = isnan(vectors.upper), of_lower = isnan(vectors.lower);
#pragma unroll
    for (int first = 0; first < C.columns / 2; first += kTogether) {
      const auto* const of_a = static_cast<const float*>(a.data) + leaf.batch * a.batch;
      const auto* of_b = static_cast<const float*>(b.data) + leaf.batch * b.batch;
      const float* upper = of_a + min(row, last_row) * a.line;
      const float* lower = of_a + min(row + 8, last_row) * a.line;
      float made[kTogether] = {};
#pragma unroll 2
      for (int64_t k = 0; k < arguments_.depth; ++k) {
        const float above = *upper, below = *lower;
#pragma unroll
        for (int i = 0; i < kTogether; i += 4) {
          const int at = column + 2 * (first + i);
          const float left = of_b[min(at, last_column) * b.line];
          const float right = of_b[min(at + 1, last_column) * b.line];
          made[i] = fmaf(above, left, made[i]);
          made[i + 1] = fmaf(above, right, made[i + 1]);
          made[i + 2] = fmaf(below, left, made[i + 2]);
          made[i + 3] = fmaf(below, right, made[i + 3]);
        }
        upper += a.depth, lower += a.depth, of_b += b.depth;
      }
#pragma unroll
      for (int i = 0; i < kTogether; i += 4) {
        const bool left = isnan(epilogue_.of_column(vectors.of_columns, first + i, 0));
        const bool right = isnan(epilogue_.of_column(vectors.of_columns, first + i, 1));
        const bool is_made[] = {of_upper || left, of_upper || right, of_lower || left,
                                of_lower || right};
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (is_made[j]) sums[first + i + j] = fmaf(arguments_.alpha, made[i + j], 0.0f);
      }
    }
  }

  const Sm90LeafArguments& arguments_;
  const Shared& shared_;
  const int consumer_, lane_;
  MatmulTileReader queue_;
  MatmulPromotedMainloop<C> mainloop_;
  MatmulEpilogue<C> epilogue_;
};

}  // namespace perseid::internal::cuda
