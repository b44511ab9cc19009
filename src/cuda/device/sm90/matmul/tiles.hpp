// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Which tiles a block of matmul computes: the producer finds them and announces each to the
// consumers and the storing threads of its block, through a short queue in shared memory.
#pragma once

#include "cuda/device/ptx/mbarrier.hpp"
#include "cuda/device/sm90/matmul/config.hpp"
#include "cuda/device/sm90/pipeline.hpp"

namespace perseid::internal::cuda {

// The first elements of a tile. `row` is negative: no tile follows.
struct alignas(16) MatmulTilePosition {
  int32_t row, column, batch, padding = 0;

  __device__ __forceinline__ bool exists() const { return row >= 0; }
  static __device__ __forceinline__ MatmulTilePosition none() { return {-1, 0, 0}; }
};

// Readers: each consumer warp, and each storing thread.
struct MatmulTileQueue {
  static constexpr int kLength = 4;
  using Barriers = Pipeline<kLength>;
  static constexpr int kBytes =
      kLength * static_cast<int>(sizeof(MatmulTilePosition)) + Barriers::kBytes;

  MatmulTilePosition* tiles;  // shared memory
  Barriers barriers;

  __device__ __forceinline__ void init(int readers) const {
    barriers.init(1, static_cast<uint32_t>(readers));
  }
};

class MatmulTileWriter {
 public:
  __device__ __forceinline__ explicit MatmulTileWriter(const MatmulTileQueue& queue)
      : queue_(queue) {}
  __device__ __forceinline__ void push(const MatmulTilePosition& tile) {
    queue_.barriers.producer_acquire(state_);
    queue_.tiles[state_.stage()] = tile;
    queue_.barriers.producer_commit(state_);
    state_.advance();
  }

 private:
  const MatmulTileQueue queue_;
  PipelineCursor<MatmulTileQueue::kLength> state_;
};

class MatmulTileReader {
 public:
  __device__ __forceinline__ explicit MatmulTileReader(const MatmulTileQueue& queue)
      : queue_(queue) {}
  // By all lanes of a warp.
  __device__ __forceinline__ MatmulTilePosition pop_by_warp(int lane) {
    const MatmulTilePosition tile = wait();
    __syncwarp();
    if (lane == 0) queue_.barriers.consumer_release(state_);
    state_.advance();
    return tile;
  }
  __device__ __forceinline__ MatmulTilePosition pop_by_thread() {
    const MatmulTilePosition tile = wait();
    queue_.barriers.consumer_release(state_);
    state_.advance();
    return tile;
  }

 private:
  __device__ __forceinline__ MatmulTilePosition wait() const {
    queue_.barriers.consumer_wait(state_);
    return queue_.tiles[state_.stage()];
  }

  const MatmulTileQueue queue_;
  PipelineCursor<MatmulTileQueue::kLength> state_;
};

}  // namespace perseid::internal::cuda
