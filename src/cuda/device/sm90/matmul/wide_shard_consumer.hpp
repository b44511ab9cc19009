// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A consumer of matmul over ranks (matmul.hpp) with tiles of 256 columns and a deferred epilogue
// (shard_epilogue.hpp). The stages of results are half as large as elsewhere, so that four stages
// of operands fit into shared memory. Registers hold half of a tile's sums. The other half leaves
// at the tile's end, also that of an own tile: to the workspace, from where it comes back with the
// parts of the other ranks.
//
//   mainloop        | steps of tile 1 ...                                                       |
//   tile 0, a peer's  columns 0 to 127 leave | 128 | 144 | 160 ...
//   tile 0, its own   the same               | 0 + parts | 16 + parts | ... | 128 + parts | ...
#pragma once

#include "cuda/device/sm90/matmul/mainloop.hpp"
#include "cuda/device/sm90/matmul/shard_epilogue.hpp"
#include "cuda/device/sm90/matmul/split_k.hpp"

namespace perseid::internal::cuda {

template <Sm90MatmulConfig C>
class MatmulWideShardConsumer {
  using Shared = MatmulShared<C>;
  using Epilogue = MatmulShardEpilogue<C>;
  using Sums = typename Epilogue::Sums;
  static constexpr int kHeld = C.deferred_chunks(), kAside = C.aside_chunks();

 public:
  __device__ __forceinline__ MatmulWideShardConsumer(const Sm90MatmulArguments& arguments,
                                                     const Shared& shared, int consumer)
      : arguments_(arguments),
        lane_(static_cast<int>(threadIdx.x) % 32),
        queue_(shared.tiles()),
        mainloop_(shared, consumer, lane_),
        epilogue_(arguments, shared, consumer, static_cast<int>(threadIdx.x) / 32 % 4, lane_) {}

  __device__ __forceinline__ void run() {
    Sums sums, held;
    MatmulTilePosition before = MatmulTilePosition::none();  // of what is held
    MatmulTilePosition tile = queue_.pop_by_warp(lane_);
    while (tile.exists()) {
      const int steps = steps_of<C>(arguments_, tile).count();
      int step = 1;
      const bool own = before.exists() && is_own<C>(arguments_, before);
      const int chunks = own ? kAside + kHeld : kHeld;
      mainloop_.template run_step<true>(sums);
      if (before.exists()) {
        const int each = (steps - 1) / chunks;  // steps before each chunk
        emit(before, own, held, sums, each);
        step += chunks * each;
      }
      for (; step < steps; ++step) mainloop_.template run_step<false>(sums);
      mainloop_.complete(sums);

      const MatmulTilePosition next = queue_.pop_by_warp(lane_);
      if (!next.exists() && is_own<C>(arguments_, tile)) return epilogue_.finish_own(tile, sums);
      epilogue_.hold(tile, sums, held);
      before = tile;
      tile = next;
    }
    if (before.exists()) emit_held(before, held, sums, 0);
  }

 private:
  __device__ __forceinline__ void run_steps(Sums& sums, int count) {
    for (int i = 0; i < count; ++i) mainloop_.template run_step<false>(sums);
  }
  __device__ __forceinline__ void emit(const MatmulTilePosition& tile, bool own, Sums& held,
                                       Sums& sums, int each) {
    typename Epilogue::Pair pair;
    for (int i = 0; own && i < Epilogue::kPairs; ++i) {
      run_steps(sums, each);
      epilogue_.template sum_aside<0>(tile, i, pair);
      run_steps(sums, each);
      epilogue_.template sum_aside<1>(tile, i, pair);
    }
    emit_held(tile, held, sums, each);
  }
  // By recursion, so that sums are indexed by constants.
  template <int kChunk = 0>
  __device__ __forceinline__ void emit_held(const MatmulTilePosition& tile, Sums& held, Sums& sums,
                                            int each) {
    if constexpr (kChunk < kHeld) {
      run_steps(sums, each);
      epilogue_.template emit_held<kChunk>(tile, held);
      emit_held<kChunk + 1>(tile, held, sums, each);
    }
  }

  const Sm90MatmulArguments& arguments_;
  const int lane_;
  MatmulTileReader queue_;
  MatmulMainloop<C> mainloop_;
  Epilogue epilogue_;
};

}  // namespace perseid::internal::cuda
