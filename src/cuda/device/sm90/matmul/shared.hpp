// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Shared memory of matmul on sm_90: the stages of a and b, the stages of results, their pipelines,
// and the queue of tiles.
#pragma once

#include "cuda/device/sm90/matmul/tiles.hpp"
#include "cuda/device/sm90/shared_tile.hpp"

namespace perseid::internal::cuda {

template <Sm90MatmulConfig C>
struct MatmulShared {
  unsigned char* memory;
  uint32_t base;  // its shared memory address, a multiple of 1024

  static constexpr int kStages = C.stages();
  using Inputs = Pipeline<kStages>;
  using Outputs = Pipeline<C.out_stages>;
  // Rows lie along the dimension that is not contiguous in memory.
  static constexpr int kElement = static_cast<int>(size_of(C.in));
  using AKMajor = SharedTile<C.loaded_rows(), C.depth(), kElement>;
  using AMMajor = SharedTile<C.depth(), C.rows(), kElement>;
  using BKMajor = SharedTile<C.columns, C.depth(), kElement>;
  using BNMajor = SharedTile<C.depth(), C.columns, kElement>;
  // A chunk of a consumer's results.
  using Out = SwizzledRows<64, C.out_row_bytes()>;
  static_assert((C.a_m_major ? AMMajor::kBytes : AKMajor::kBytes) == C.a_bytes() &&
                BKMajor::kBytes == C.b_bytes() && Out::kBytes == C.out_stage_bytes());
  static_assert(kElement == 1 || BNMajor::kBytes == C.b_bytes());

  static constexpr int kB = kStages * C.a_bytes();
  static constexpr int kOut = kB + kStages * C.b_bytes();
  static constexpr int kLeaves = kOut + C.out_bytes();
  static constexpr int kInputBarriers = kLeaves + C.leaf_bytes();
  static constexpr int kOutputBarriers = kInputBarriers + Inputs::kBytes;
  static constexpr int kTiles = kOutputBarriers + C.consumers * Outputs::kBytes;
  static constexpr int kSplits = kTiles + MatmulTileQueue::kBytes;
  static constexpr int kParts = kSplits + 16;
  static_assert(C.fits() && kTiles % 16 == 0 && kParts + 8 * C.consumers <= C.shared_bytes());

  __device__ __forceinline__ uint32_t a(int stage) const { return base + stage * C.a_bytes(); }
  __device__ __forceinline__ uint32_t b(int stage) const { return base + kB + stage * C.b_bytes(); }
  __device__ __forceinline__ Out out(int consumer, int stage) const {
    return {base + kOut + (consumer * C.out_stages + stage) * C.out_stage_bytes()};
  }
  // Where the stages of a and b are, after the last products.
  __device__ __forceinline__ Out last_out(int consumer, int chunk) const {
    static_assert(C.consumers * C.out_chunks() * Out::kBytes <= kOut || !C.deferred_epilogue());
    return {base + (consumer * C.out_chunks() + chunk) * Out::kBytes};
  }
  // Where a thread of a consumer puts sums aside, four each time.
  __device__ __forceinline__ float4* leaf_sums(int consumer, int thread) const {
    return reinterpret_cast<float4*>(memory + kLeaves) + consumer * (16 * C.columns) + thread;
  }
  // The operands of product k of a stage: 32 bytes of K each.
  __device__ __forceinline__ uint64_t a_operand(int consumer, int stage, int k) const {
    if constexpr (C.a_m_major)
      return AMMajor{a(stage)}.mn_major(64 * consumer).step(k);
    else
      return AKMajor{a(stage)}.k_major(64 * consumer).step(k);
  }
  __device__ __forceinline__ uint64_t b_operand(int stage, int k) const {
    if constexpr (C.b_n_major)
      return BNMajor{b(stage)}.mn_major().step(k);
    else
      return BKMajor{b(stage)}.k_major().step(k);
  }
  // A consumer's warp no longer reads a stage: in every block whose loads write to it.
  __device__ __forceinline__ void release_inputs(const PipelineCursor<kStages>& cursor,
                                                 int lane) const {
    if constexpr (C.cluster == 1) {
      if (lane == 0) inputs().consumer_release(cursor);
    } else {
      if (lane < C.cluster) inputs().consumer_release_in_block(cursor, lane);
    }
  }
  // The producer fills a stage; each consumer warp of every block of the cluster releases it, since
  // each block's loads of b write to all of them.
  __device__ __forceinline__ Inputs inputs() const { return {base + kInputBarriers}; }
  // The storing thread gives a stage to a consumer, with c0 in it where there is one; the four
  // warps of the consumer release it when the results are in it.
  __device__ __forceinline__ Outputs outputs(int consumer) const {
    return {base + kOutputBarriers + consumer * Outputs::kBytes};
  }
  __device__ __forceinline__ MatmulTileQueue tiles() const {
    return {reinterpret_cast<MatmulTilePosition*>(memory + kTiles),
            base + kTiles + MatmulTileQueue::kTileBytes};
  }
  // Split-K: a barrier whose first phase ends when the counters of the block's units are ready.
  __device__ __forceinline__ uint32_t counters_ready() const { return base + kSplits; }
  // Whether the consumer's tile is stored.
  __device__ __forceinline__ int& stores(int consumer) const {
    return reinterpret_cast<int*>(memory + kSplits + 8)[consumer];
  }

  // A phase for each tile of the own shard: the consumer's storing thread arrives when the parts of
  // the other ranks are here.
  __device__ __forceinline__ uint32_t parts_arrived(int consumer) const {
    return base + kParts + 8 * consumer;
  }

  // Dynamic schedule: the producer arrives once for each tile, shortly before its last loads.
  __device__ __forceinline__ uint32_t wants_tile() const { return base + kParts; }

  // By one thread, before a barrier of the cluster.
  __device__ __forceinline__ void prepare() const {
    inputs().init(1, 4 * C.consumers * C.cluster);
    for (int consumer = 0; consumer < C.consumers; ++consumer) outputs(consumer).init(1, 4);
    // The producer, and four warps and a storing thread for each consumer.
    tiles().init(1 + 5 * C.consumers);
    if constexpr (C.split_k) ptx::mbarrier_init(counters_ready(), 1);
    for (int consumer = 0; C.parts > 0 && consumer < C.consumers; ++consumer)
      ptx::mbarrier_init(parts_arrived(consumer), 1);
    if constexpr (C.takes_tiles()) ptx::mbarrier_init(wants_tile(), 1);
    ptx::mbarrier_init_fence();
  }
};

}  // namespace perseid::internal::cuda
