// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A consumer of matmul (matmul.hpp) in canonical order (math/leaf_tree.hpp): the steps along k are
// C.leaves equal leaves, each summed from zero by the tensor cores; registers add these sums in
// pairs.
//
//   leaf       0    1         2    3                   4    5         6    7
//   buffer     0    1         1    2                   0    1         1    2
//   then            0 += 1         1 += 2, 0 += 1           0 += 1         1 += 2, 0 += 1
//                                  aside = 0                               0 += aside
//
// Registers have room for three buffers of 64 rows by 128 columns. So the sum of the first four of
// eight leaves waits in shared memory, where each thread reads what it has written itself.
#pragma once

#include "cuda/device/sm90/matmul/epilogue.hpp"
#include "cuda/device/sm90/matmul/leaf_sums.hpp"
#include "cuda/device/sm90/matmul/mainloop.hpp"

namespace perseid::internal::cuda {

template <Sm90MatmulConfig C>
class MatmulLeafConsumer {
  using Shared = MatmulShared<C>;
  using Sums = typename MatmulEpilogue<C>::Sums;
  static constexpr int kHalf = min(C.leaves, 4);  // leaves whose sums registers hold
  using Buffers = Sums[buffers_of_leaves(kHalf)];

 public:
  __device__ __forceinline__ MatmulLeafConsumer(const Sm90MatmulArguments& arguments,
                                                const Shared& shared, int consumer)
      : arguments_(arguments),
        shared_(shared),
        consumer_(consumer),
        lane_(static_cast<int>(threadIdx.x) % 32),
        queue_(shared.tiles()),
        mainloop_(shared, consumer, lane_),
        epilogue_(arguments, shared, consumer, static_cast<int>(threadIdx.x) / 32 % 4, lane_) {}

  __device__ __forceinline__ void run() {
    Buffers buffers;
    for (;;) {
      const MatmulTilePosition tile = queue_.pop_by_warp(lane_);
      if (!tile.exists()) break;
      sum_leaves(buffers);
      if constexpr (C.leaves > kHalf) {
        put_leaf_sums(buffers[0], aside());
        sum_leaves(buffers);
        add_leaf_sums(aside(), buffers[0]);
      }
      if constexpr (C.parts > 0) {
        if (!is_own<C>(arguments_, tile)) {
          epilogue_.store_partial(tile, buffers[0]);
          continue;
        }
        ptx::mbarrier_wait(shared_.parts_arrived(consumer_), parts_parity_);
        parts_parity_ ^= 1;
        epilogue_.add_parts(tile, buffers[0]);
      }
      epilogue_.scale(epilogue_.load_vectors(tile), buffers[0]);
      epilogue_.emit_all(tile, buffers[0]);
    }
    epilogue_.finish();
  }

 private:
  // The first leaves, or the last: into buffers[0]. By recursion, so that buffers are constants.
  template <int kLeaf = 0>
  __device__ __forceinline__ void sum_leaves(Buffers& buffers) {
    if constexpr (kLeaf < kHalf) {
      constexpr int kBuffer = static_cast<int>(buffer_of_leaf(kLeaf));
      sum_leaf(buffers[kBuffer]);
      add_pairs<kBuffer, static_cast<int>(pairs_after_leaf(kLeaf))>(buffers);
      sum_leaves<kLeaf + 1>(buffers);
    }
  }
  template <int kBuffer, int kPairs>
  __device__ __forceinline__ void add_pairs(Buffers& buffers) const {
    if constexpr (kPairs > 0) {
#pragma unroll
      for (int i = 0; i < C.columns / 2; ++i) buffers[kBuffer - 1][i] += buffers[kBuffer][i];
      add_pairs<kBuffer - 1, kPairs - 1>(buffers);
    }
  }
  __device__ __forceinline__ void sum_leaf(Sums& sums) {
    mainloop_.template run_step<true>(sums);
    for (int step = 1; step < arguments_.k_steps / C.leaves; ++step)
      mainloop_.template run_step<false>(sums);
    mainloop_.complete(sums);
  }
  __device__ __forceinline__ float4* aside() const {
    return shared_.leaf_sums(consumer_, static_cast<int>(threadIdx.x) % 128);
  }

  const Sm90MatmulArguments& arguments_;
  const Shared& shared_;
  const int consumer_, lane_;
  MatmulTileReader queue_;
  MatmulMainloop<C> mainloop_;
  MatmulEpilogue<C> epilogue_;
  uint32_t parts_parity_ = 0;  // of the barrier parts_arrived
};

}  // namespace perseid::internal::cuda
