// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The queue in shared memory through which the scheduler announces the tiles of a block to the
// producer, the consumers and the storing threads.
#pragma once

#include "cuda/device/ptx/mbarrier.hpp"
#include "cuda/device/sm90/matmul/config.hpp"
#include "cuda/device/sm90/pipeline.hpp"

namespace perseid::internal::cuda {

// The first elements of a tile. `row` is negative: no tile follows.
struct alignas(16) MatmulTilePosition {
  int32_t row, column, batch;
  int32_t unit = 0;  // 1 + its number among the units of split tiles; 0: the tile is whole

  __device__ __forceinline__ bool exists() const { return row >= 0; }
  static __device__ __forceinline__ MatmulTilePosition none() { return {-1, 0, 0}; }
};

// Readers: the producer, each consumer warp, and each storing thread. A tile is announced before
// its operands have arrived; the barrier arrived(i) says that they have, to the producer.
struct MatmulTileQueue {
  static constexpr int kLength = 4;
  using Barriers = Pipeline<kLength>;
  static constexpr int kTileBytes = kLength * static_cast<int>(sizeof(MatmulTilePosition));
  static constexpr int kBytes = kTileBytes + Barriers::kBytes + 8 * kLength;

  MatmulTilePosition* tiles;  // shared memory, and its address after the tiles
  uint32_t after_tiles;

  __device__ __forceinline__ Barriers barriers() const { return {after_tiles}; }
  __device__ __forceinline__ uint32_t arrived(int i) const {
    return after_tiles + Barriers::kBytes + 8 * i;
  }
  __device__ __forceinline__ void init(int readers) const {
    barriers().init(1, static_cast<uint32_t>(readers));
    for (int i = 0; i < kLength; ++i) ptx::mbarrier_init(arrived(i), 1);
  }
};

class MatmulTileWriter {
 public:
  __device__ __forceinline__ explicit MatmulTileWriter(const MatmulTileQueue& queue)
      : queue_(queue) {}
  __device__ __forceinline__ void announce(const MatmulTilePosition& tile) const {
    queue_.barriers().producer_acquire(state_);
    queue_.tiles[state_.stage()] = tile;
    queue_.barriers().producer_commit(state_);
  }
  // The operands of the tile that was announced last have arrived.
  __device__ __forceinline__ void operands_arrived() {
    ptx::mbarrier_arrive(queue_.arrived(state_.stage()));
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
    if (lane == 0) queue_.barriers().consumer_release(state_);
    state_.advance();
    return tile;
  }
  // What the producer waits for, and the tile that is there then.
  __device__ __forceinline__ uint32_t operands_arrived() const {
    return queue_.arrived(state_.stage());
  }
  __device__ __forceinline__ uint32_t parity() const { return state_.parity(); }
  __device__ __forceinline__ const MatmulTilePosition& next() const {
    return queue_.tiles[state_.stage()];
  }
  // By the producer: waits for the operands, too.
  __device__ __forceinline__ MatmulTilePosition pop_with_operands() {
    ptx::mbarrier_wait(queue_.arrived(state_.stage()), state_.parity());
    return pop_by_thread();
  }
  __device__ __forceinline__ MatmulTilePosition pop_by_thread() {
    const MatmulTilePosition tile = wait();
    queue_.barriers().consumer_release(state_);
    state_.advance();
    return tile;
  }

 private:
  __device__ __forceinline__ MatmulTilePosition wait() const {
    queue_.barriers().consumer_wait(state_);
    return queue_.tiles[state_.stage()];
  }

  const MatmulTileQueue queue_;
  PipelineCursor<MatmulTileQueue::kLength> state_;
};

}  // namespace perseid::internal::cuda
