// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A consumer of matmul (matmul.hpp) with promoted sums (promoted_mainloop.hpp).
#pragma once

#include "cuda/device/sm90/matmul/epilogue.hpp"
#include "cuda/device/sm90/matmul/promoted_mainloop.hpp"

namespace perseid::internal::cuda {

template <Sm90MatmulConfig C>
class MatmulPromotedConsumer {
  using Shared = MatmulShared<C>;
  using Sums = typename MatmulEpilogue<C>::Sums;

 public:
  __device__ __forceinline__ MatmulPromotedConsumer(const Sm90MatmulArguments& arguments,
                                                    const Shared& shared, int consumer)
      : arguments_(arguments),
        lane_(static_cast<int>(threadIdx.x) % 32),
        queue_(shared.tiles()),
        mainloop_(shared, consumer, lane_),
        splits_(arguments, shared, consumer),
        epilogue_(arguments, shared, consumer, static_cast<int>(threadIdx.x) / 32 % 4, lane_) {}

  __device__ __forceinline__ void run() {
    Sums sums;
    for (;;) {
      const MatmulTilePosition tile = queue_.pop_by_warp(lane_);
      if (!tile.exists()) break;
      const StepRange steps = steps_of<C>(arguments_, tile);
      MatmulStepScales<C> scales(arguments_, tile, steps, epilogue_.first_row(tile));
      mainloop_.run(steps.count(), scales, sums);
      if (C.split_k && tile.unit != 0) {
        const bool complete = splits_.complete(tile, sums);
        epilogue_.announce(complete);
        if (!complete) {
          epilogue_.pass_over();
          continue;
        }
      }
      epilogue_.scale(epilogue_.load_vectors(tile), sums);
      epilogue_.emit_all(tile, sums);
    }
    epilogue_.finish();
  }

 private:
  const Sm90MatmulArguments& arguments_;
  const int lane_;
  MatmulTileReader queue_;
  MatmulPromotedMainloop<C> mainloop_;
  MatmulConsumerSplits<C> splits_;
  MatmulEpilogue<C> epilogue_;
};

}  // namespace perseid::internal::cuda
