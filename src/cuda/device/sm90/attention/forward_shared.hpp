// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Shared memory of attention forward: Q, K, V, bias and staged results, the barriers of their
// pipelines, and descriptions of the Q tiles in flight.
#pragma once

#include "cuda/device/ptx/mbarrier.hpp"
#include "cuda/device/sm90/attention/forward_scheduler.hpp"

namespace perseid::internal::cuda {

// Q tiles in flight: two that have a query stage, one whose queries were released, and one whose
// epilogue is deferred.
inline constexpr int kTilesInFlight = 4;

// Addresses in shared memory. Tiles are [chunk of 64 columns][row][64].
template <AttentionForwardConfig C>
struct ForwardShared {
  unsigned char* memory;
  uint32_t base;

  static constexpr int kKeys = C.q_stages * C.consumers * C.query_bytes();
  static constexpr int kValues = kKeys + C.stages * C.key_bytes();
  static constexpr int kBias = kValues + C.stages * C.value_bytes();
  static constexpr int kOut = kBias + C.bias_stages * C.consumers * C.bias_bytes();
  static constexpr int kBarriers = kOut + C.consumers * C.out_bytes();
  static constexpr int kTiles =
      kBarriers + 8 * (2 * C.q_stages + 4 * C.stages + 2 * C.bias_stages + 1);
  static constexpr int kNonfinite =
      kTiles + kTilesInFlight * static_cast<int>(sizeof(AttentionTile));
  static_assert(C.fits() && kNonfinite + 4 <= C.shared_bytes());

  __device__ __forceinline__ uint32_t query(int stage, int consumer) const {
    return base + (stage * C.consumers + consumer) * C.query_bytes();
  }
  __device__ __forceinline__ uint32_t key(int stage) const {
    return base + kKeys + stage * C.key_bytes();
  }
  __device__ __forceinline__ uint32_t value(int stage) const {
    return base + kValues + stage * C.value_bytes();
  }
  __device__ __forceinline__ uint32_t barrier(int index) const {
    return base + kBarriers + 8 * index;
  }
  __device__ __forceinline__ uint32_t query_full(int stage) const { return barrier(stage); }
  __device__ __forceinline__ uint32_t query_empty(int stage) const {
    return barrier(C.q_stages + stage);
  }
  __device__ __forceinline__ uint32_t key_full(int stage) const {
    return barrier(2 * C.q_stages + stage);
  }
  __device__ __forceinline__ uint32_t key_empty(int stage) const {
    return barrier(2 * C.q_stages + C.stages + stage);
  }
  __device__ __forceinline__ uint32_t value_full(int stage) const {
    return barrier(2 * C.q_stages + 2 * C.stages + stage);
  }
  __device__ __forceinline__ uint32_t value_empty(int stage) const {
    return barrier(2 * C.q_stages + 3 * C.stages + stage);
  }
  __device__ __forceinline__ uint32_t bias(int stage, int consumer) const {
    return base + kBias + (stage * C.consumers + consumer) * C.bias_bytes();
  }
  // Where a warp stages its 16 rows of results for the TMA store.
  __device__ __forceinline__ uint32_t out(int consumer, int warp) const {
    return base + kOut + consumer * C.out_bytes() + warp * (C.out_bytes() / 4);
  }
  __device__ __forceinline__ uint32_t bias_full(int stage) const {
    return barrier(2 * C.q_stages + 4 * C.stages + stage);
  }
  __device__ __forceinline__ uint32_t bias_empty(int stage) const {
    return barrier(2 * C.q_stages + 4 * C.stages + C.bias_stages + stage);
  }
  // TMA has loaded values of the second pass, which the producer clears next.
  __device__ __forceinline__ uint32_t value_loaded() const {
    return barrier(2 * C.q_stages + 4 * C.stages + 2 * C.bias_stages);
  }
  // Tile number `count` of the block.
  __device__ __forceinline__ AttentionTile& tile(int count) const {
    return reinterpret_cast<AttentionTile*>(memory + kTiles)[count % kTilesInFlight];
  }

  // First tile of the block's list of tiles with non-finite results; the number of all tiles ends
  // the list.
  __device__ __forceinline__ int32_t& nonfinite_list() const {
    return *reinterpret_cast<int32_t*>(memory + kNonfinite);
  }

  __device__ __forceinline__ void prepare(int32_t tiles) const {
    nonfinite_list() = tiles;
    for (int stage = 0; stage < C.q_stages; ++stage) {
      ptx::mbarrier_init(query_full(stage), 1);
      ptx::mbarrier_init(query_empty(stage), 4 * C.consumers);
    }
    for (int stage = 0; stage < C.stages; ++stage) {
      ptx::mbarrier_init(key_full(stage), 1);
      ptx::mbarrier_init(key_empty(stage), 4 * C.consumers);
      ptx::mbarrier_init(value_full(stage), 1);
      ptx::mbarrier_init(value_empty(stage), 4 * C.consumers);
    }
    for (int stage = 0; stage < C.bias_stages; ++stage) {
      ptx::mbarrier_init(bias_full(stage), 1);
      ptx::mbarrier_init(bias_empty(stage), 4 * C.consumers);
    }
    ptx::mbarrier_init(value_loaded(), 1);
    ptx::mbarrier_init_fence();
  }
};

}  // namespace perseid::internal::cuda
