// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A consumer of matmul over ranks (matmul.hpp) in canonical order (math/leaf_tree.hpp), with a
// deferred epilogue (shard_epilogue.hpp). The steps along k are two or four equal leaves, each
// summed from zero by the tensor cores. Registers hold the sums of one leaf, and of one more:
//
//   leaf     0                     1          2                  3          0 of the next tile
//   held     of the last tile      leaf 0     0 + 1              leaf 2     2 + 3
//   moves    out of the block                 to the workspace              adds 0 + 1, then out
//
// The sums 0 + 1 of four leaves wait in the workspace, which stays in the L2 cache. If all
// multiprocessors wrote and read them at a tile's end, that would take a tenth of the mainloop. TMA
// moves them chunk by chunk during the steps of a leaf instead.
#pragma once

#include "cuda/device/sm90/matmul/mainloop.hpp"
#include "cuda/device/sm90/matmul/shard_epilogue.hpp"

namespace perseid::internal::cuda {

template <Sm90MatmulConfig C>
class MatmulDeferredLeafConsumer {
  using Shared = MatmulShared<C>;
  using Sums = typename MatmulMainloop<C>::Sums;
  static constexpr int kChunks = C.deferred_chunks();
  static constexpr bool kAside = C.leaves == 4;
  static_assert(kChunks == C.sum_chunks() && (C.leaves == 2 || C.leaves == 4));
  // What becomes of the sums that are held, chunk by chunk.
  enum class Held { kStay, kPutAside, kLeave };

 public:
  __device__ __forceinline__ MatmulDeferredLeafConsumer(const Sm90ShardArguments& arguments,
                                                        const Shared& shared, int consumer)
      : steps_(arguments.k_steps / C.leaves),
        lane_(static_cast<int>(threadIdx.x) % 32),
        queue_(shared.tiles()),
        mainloop_(shared, consumer, lane_),
        epilogue_(arguments, shared, consumer, static_cast<int>(threadIdx.x) / 32 % 4, lane_) {}

  __device__ __forceinline__ void run() {
    Sums sums, held;
    MatmulTilePosition before = MatmulTilePosition::none();  // of what is held
    for (;;) {
      const MatmulTilePosition tile = queue_.pop_by_warp(lane_);
      if (!tile.exists()) break;
      sum_pair<Held::kLeave>(before, sums, held);
      if constexpr (kAside) sum_pair<Held::kPutAside>(tile, sums, held);
      before = tile;
    }
    if (before.exists()) move_all<Held::kLeave>(before, held);
    epilogue_.finish();
  }

 private:
  // Two leaves, whose sum is held then. `before`: the tile of what was held; none: nothing was.
  template <Held kHeld>
  __device__ __forceinline__ void sum_pair(const MatmulTilePosition& before, Sums& sums,
                                           Sums& held) {
    sum_leaf<kHeld>(before, sums, held);
#pragma unroll
    for (int i = 0; i < C.columns / 2; ++i) held[i] = sums[i];
    sum_leaf<Held::kStay>(before, sums, held);
#pragma unroll
    for (int i = 0; i < C.columns / 2; ++i) held[i] += sums[i];
  }
  template <Held kHeld>
  __device__ __forceinline__ void sum_leaf(const MatmulTilePosition& before, Sums& sums,
                                           Sums& held) {
    // At once where there are too few steps.
    const bool moves = kHeld != Held::kStay && before.exists();
    const bool overlaps = moves && steps_ > kChunks;
    if (moves && !overlaps) move_all<kHeld>(before, held);
    mainloop_.template run_step<true>(sums);
    int step = 1;
    if (overlaps) {
      const int each = (steps_ - 1) / kChunks;
      move_during_steps<kHeld>(before, sums, held, each);
      step += kChunks * each;
    }
    for (; step < steps_; ++step) mainloop_.template run_step<false>(sums);
    mainloop_.complete(sums);
  }

  // By recursion, so that sums are indexed by constants.
  template <Held kHeld, int kChunk = 0>
  __device__ __forceinline__ void move_all(const MatmulTilePosition& before, Sums& held) {
    if constexpr (kHeld != Held::kStay && kChunk < kChunks) {
      move<kHeld, kChunk>(before, held);
      move_all<kHeld, kChunk + 1>(before, held);
    }
  }
  // A chunk, and so many steps after each.
  template <Held kHeld, int kChunk = 0>
  __device__ __forceinline__ void move_during_steps(const MatmulTilePosition& before, Sums& sums,
                                                    Sums& held, int each) {
    if constexpr (kHeld != Held::kStay && kChunk < kChunks) {
      move<kHeld, kChunk>(before, held);
      for (int i = 0; i < each; ++i) mainloop_.template run_step<false>(sums);
      move_during_steps<kHeld, kChunk + 1>(before, sums, held, each);
    }
  }
  template <Held kHeld, int kChunk>
  __device__ __forceinline__ void move(const MatmulTilePosition& before, Sums& held) {
    if constexpr (kHeld == Held::kPutAside)
      epilogue_.template put_aside<kChunk>(held);
    else
      epilogue_.template emit_held<kChunk>(before, held);
  }

  const int steps_;  // of a leaf
  const int lane_;
  MatmulTileReader queue_;
  MatmulMainloop<C> mainloop_;
  MatmulShardEpilogue<C> epilogue_;
};

}  // namespace perseid::internal::cuda
