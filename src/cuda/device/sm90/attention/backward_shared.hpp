// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Shared memory of attention backward on sm_90a, its tile of bias, and the context of a consumer's
// thread. Every tile is a SharedTile: [chunk of 128 bytes][row][128 bytes], swizzled.
#pragma once

#include "cuda/device/attention/softmax.hpp"
#include "cuda/device/ptx/ldmatrix.hpp"
#include "cuda/device/sm90/attention/backward_tiles.hpp"
#include "cuda/device/sm90/pipeline.hpp"
#include "cuda/device/sm90/shared_tile.hpp"

namespace perseid::internal::cuda {

// ---- Tile of bias ----

// A tile of bias or of its gradient, C.queries x C.keys(): [chunk of keys in 128
// bytes][query][128 bytes]. Fragments of scores are transposed (keys are rows), so 16-bit elements
// go through transposing ldmatrix and stmatrix; 32-bit elements are accessed one by one, without
// bank conflicts.
template <AttentionBackwardConfig C>
struct BiasTile : SharedTile<C.queries, C.keys(), C.bias == DType::kF32 ? 4 : 2> {
  using Tile = SharedTile<C.queries, C.keys(), C.bias == DType::kF32 ? 4 : 2>;
  static constexpr bool kWide = C.bias == DType::kF32;
  static constexpr int kChunkKeys = Tile::kChunkColumns;

  unsigned char* memory;  // of the same bytes

  __device__ __forceinline__ BiasTile(unsigned char* memory, uint32_t base)
      : Tile{base}, memory(memory) {}

  // Elements i to i + 7 of a thread's fragment, i a multiple of 8: two groups of eight queries. The
  // warp has 16 keys from `key` on.
  __device__ __forceinline__ void load_fragment(int key, int lane, int i, float (&to)[8]) const {
    if constexpr (kWide) {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        to[e] = *reinterpret_cast<const float*>(memory + wide_offset(key, lane, i, e));
    } else {
      uint32_t pairs[4];
      ptx::ldmatrix_x4_trans(this->base + pair_offset(key, lane, i), pairs);
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const float2 pair = widen_pair<C.bias>(pairs[p]);
        to[2 * p] = pair.x;
        to[2 * p + 1] = pair.y;
      }
    }
  }
  __device__ __forceinline__ void store_fragment(int key, int lane, int i,
                                                 const float (&from)[8]) const {
    if constexpr (kWide) {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        *reinterpret_cast<float*>(memory + wide_offset(key, lane, i, e)) = from[e];
    } else {
      const auto pair = [&](int p) { return round_pair<C.bias>(from[2 * p], from[2 * p + 1]); };
      const uint32_t pairs[4] = {pair(0), pair(1), pair(2), pair(3)};
      store_fragment_pairs(key, lane, i, pairs);
    }
  }
  __device__ __forceinline__ void store_fragment_pairs(int key, int lane, int i,
                                                       const uint32_t (&pairs)[4]) const {
    ptx::stmatrix_x4_trans(this->base + pair_offset(key, lane, i), pairs[0], pairs[1], pairs[2],
                           pairs[3]);
  }

 private:
  static __device__ __forceinline__ int pair_offset(int key, int lane, int i) {
    const int query = 8 * (i / 4 + lane / 16) + lane % 8;
    const int unit = key % kChunkKeys / 8 + lane / 8 % 2;
    return Tile::offset(key / kChunkKeys, query, unit);
  }
  static __device__ __forceinline__ int wide_offset(int key, int lane, int i, int e) {
    const int row = 2 * (lane % 4) + e % 2;
    const int own = key + e / 2 % 2 * 8 + lane / 4;
    return Tile::offset(own / kChunkKeys, 8 * (i / 4 + e / 4) + row, own % kChunkKeys / 4) +
           own % 4 * 4;
  }
};

// ---- Shared memory of the products ----

//   key, value        C.keys() rows each; their gradients are staged here by the epilogue
//   query, grad_out   C.queries rows each, C.kStages stages
//   scores            dS^T, rounded: C.keys() rows, one for even and one for odd steps
//   weights           split by products: P in float32, from one consumer to the other
//   bias              C.queries x C.keys(), C.bias_stages stages
//   statistics        lse_log2 and delta of C.queries queries, C.kStages stages
//
// Mbarriers, with what completes a phase:
//   key_full, value_full         the producer and the bytes; once
//   queries, grad_outs, biases   pipelines: full, the producer and the bytes; empty, all eight
//                                consumer warps, after their last read of the stage
//   dq_granted, dq_added, dq_released   see dq_semaphore.hpp
template <AttentionBackwardConfig C>
struct BackwardShared {
  unsigned char* memory;
  uint32_t base;

  static constexpr int kValue = C.key_bytes();
  static constexpr int kQuery = kValue + C.value_bytes();
  static constexpr int kGradOut = kQuery + C.kStages * C.query_bytes();
  static constexpr int kScores = kGradOut + C.kStages * C.out_bytes();
  static constexpr int kWeights = kScores + 2 * C.score_bytes();
  static constexpr int kBias = kWeights + C.weight_bytes();
  static constexpr int kStatistics = kBias + C.bias_stages * C.bias_bytes();
  static constexpr int kBarriers = kStatistics + C.kStages * C.statistics_bytes();
  using Steps = Pipeline<C.kStages>;
  using Biases = Pipeline<C.bias_stages>;
  static constexpr int kSteps = kBarriers + 16;  // after those of keys and values
  static constexpr int kBiases = kSteps + 2 * Steps::kBytes;
  static constexpr int kSemaphores = kBiases + Biases::kBytes;
  static constexpr int kNonfinite = kSemaphores + 3 * 8 * C.dq_semaphores();
  static_assert(kNonfinite + 4 <= C.shared_bytes());

  using KeyTile = SharedTile<C.keys(), C.key_dim>;
  using ValueTile = SharedTile<C.keys(), C.value_dim>;
  using QueryTile = SharedTile<C.queries, C.key_dim>;
  using OutTile = SharedTile<C.queries, C.value_dim>;
  using ScoreTile = SharedTile<C.keys(), C.queries>;  // of dS^T

  __device__ __forceinline__ KeyTile key() const { return {base}; }
  __device__ __forceinline__ ValueTile value() const { return {base + kValue}; }
  __device__ __forceinline__ QueryTile query(int stage) const {
    return {base + kQuery + stage * QueryTile::kBytes};
  }
  __device__ __forceinline__ OutTile grad_out(int stage) const {
    return {base + kGradOut + stage * OutTile::kBytes};
  }
  __device__ __forceinline__ ScoreTile scores(int parity) const {
    return {base + kScores + parity * ScoreTile::kBytes};
  }
  __device__ __forceinline__ float4* weights() const {
    return reinterpret_cast<float4*>(memory + kWeights);
  }
  __device__ __forceinline__ BiasTile<C> bias(int stage) const {
    const int at = kBias + stage * C.bias_bytes();
    return {memory + at, base + at};
  }
  __device__ __forceinline__ const float* lse_log2(int stage) const {
    return reinterpret_cast<const float*>(memory + kStatistics + stage * C.statistics_bytes());
  }
  __device__ __forceinline__ const float* delta(int stage) const {
    return lse_log2(stage) + C.queries;
  }
  __device__ __forceinline__ uint32_t address(const float* statistics) const {
    return base +
           static_cast<uint32_t>(reinterpret_cast<const unsigned char*>(statistics) - memory);
  }

  // Not 0: a key or value of the tile, or lse or delta of one of its queries, is not finite.
  __device__ __forceinline__ uint32_t& nonfinite() const {
    return *reinterpret_cast<uint32_t*>(memory + kNonfinite);
  }

  __device__ __forceinline__ uint32_t key_full() const { return base + kBarriers; }
  __device__ __forceinline__ uint32_t value_full() const { return base + kBarriers + 8; }
  __device__ __forceinline__ Steps queries() const { return {base + kSteps}; }
  __device__ __forceinline__ Steps grad_outs() const { return {base + kSteps + Steps::kBytes}; }
  __device__ __forceinline__ Biases biases() const { return {base + kBiases}; }
  __device__ __forceinline__ uint32_t dq_granted(int consumer) const {
    return base + kSemaphores + 8 * consumer;
  }
  __device__ __forceinline__ uint32_t dq_added(int consumer) const {
    return dq_granted(C.dq_semaphores() + consumer);
  }
  __device__ __forceinline__ uint32_t dq_released(int consumer) const {
    return dq_granted(2 * C.dq_semaphores() + consumer);
  }

  // By one thread, before a barrier of the block.
  __device__ __forceinline__ void prepare() const {
    nonfinite() = 0;
    ptx::mbarrier_init(key_full(), 1);
    ptx::mbarrier_init(value_full(), 1);
    queries().init(1, 4 * C.kConsumers);
    grad_outs().init(1, 4 * C.kConsumers);
    biases().init(1, 4 * C.kConsumers);
    for (int consumer = 0; consumer < C.dq_semaphores(); ++consumer) {
      ptx::mbarrier_init(dq_granted(consumer), 1);
      ptx::mbarrier_init(dq_added(consumer), 4);
      ptx::mbarrier_init(dq_released(consumer), 1);
    }
    ptx::mbarrier_init_fence();
  }
};

// The stage of a step, and the parity of the phase in which it is full.
template <AttentionBackwardConfig C>
__device__ __forceinline__ PipelineState<C.kStages> stage_of(int step) {
  return {step};
}

// ---- Threads of a consumer ----

// One thread of a consumer warpgroup. Fragments of scores and of gradients of keys have 64 keys as
// rows, 16 to each warp (ptx/wgmma.hpp).
template <AttentionBackwardConfig C>
struct ConsumerThread {
  int consumer;
  int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  int lane = static_cast<int>(threadIdx.x) % 32;

  // The first key, in the tile, of the consumer and of the warp.
  __device__ __forceinline__ int first_key() const { return C.split_keys ? 64 * consumer : 0; }
  __device__ __forceinline__ int warp_key() const { return first_key() + 16 * warp; }
  // The first of the thread's two keys, in the sequence; the other is eight keys further.
  __device__ __forceinline__ int own_key(const BackwardTile& tile) const {
    return tile.key + warp_key() + lane / 4;
  }
  // The warp arrives, after all of its threads.
  __device__ __forceinline__ void arrive(uint32_t barrier) const {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(barrier);
  }
  // The warp no longer reads the stage.
  template <int kStages>
  __device__ __forceinline__ void release(const Pipeline<kStages>& pipeline,
                                          const PipelineState<kStages>& state) const {
    __syncwarp();
    if (lane == 0) pipeline.consumer_release(state);
  }
};

// What all parts of a consumer work on.
template <AttentionBackwardConfig C>
struct ConsumerContext {
  const AttentionBackwardArguments& arguments;
  const BackwardShared<C>& shared;
  const BackwardTile& tile;
  ConsumerThread<C> thread;

  // For a tile that is loaded once, before the first step. Without steps nothing is loaded.
  __device__ __forceinline__ void wait_once(uint32_t barrier) const {
    if (tile.end > tile.first) ptx::mbarrier_wait(barrier, 0);
  }
};

}  // namespace perseid::internal::cuda
