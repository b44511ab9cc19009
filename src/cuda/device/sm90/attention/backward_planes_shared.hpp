// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Shared memory of attention backward for f32 on sm_90a (backward_planes.hpp), and the producer
// that fills it.
#pragma once

#include "cuda/device/ptx/mbarrier.hpp"
#include "cuda/device/ptx/tma.hpp"
#include "cuda/device/sm90/attention/backward_tiles.hpp"
#include "cuda/device/sm90/attention/map_coordinates.hpp"
#include "cuda/device/sm90/pipeline.hpp"
#include "cuda/device/sm90/shared_tile.hpp"

namespace perseid::internal::cuda {

// ---- Shared memory ----

//   key, value        C.keys() rows each: high halves, low halves
//   query, grad_out   C.queries rows each, C.kStages stages
//   ds                dS^T of the tile's keys, C.ds_buffers()
//   weights           split by products: W in float32, from one consumer to the other
//   numbers           of the queries of a step, C.kStages stages; of the keys
template <AttentionBackwardConfig C>
struct PlanesShared {
  unsigned char* memory;
  uint32_t base;

  using KeyTile = SharedTile<C.keys(), 2 * C.plane_length(C.key_dim)>;
  using ValueTile = SharedTile<C.keys(), 2 * C.plane_length(C.value_dim)>;
  // As TMA loads them: rows of float32 have as many bytes as their planes.
  using LoadedKeyTile = SharedTile<C.keys(), C.plane_length(C.key_dim), 4>;
  using LoadedValueTile = SharedTile<C.keys(), C.plane_length(C.value_dim), 4>;
  static_assert(LoadedKeyTile::kBytes == KeyTile::kBytes &&
                LoadedValueTile::kBytes == ValueTile::kBytes);
  using QueryTile = SharedTile<C.queries, 2 * C.plane_length(C.key_dim)>;
  using OutTile = SharedTile<C.queries, 2 * C.plane_length(C.value_dim)>;
  using ScoreTile = SharedTile<C.keys(), 2 * C.queries>;
  using Steps = Pipeline<C.kStages>;
  static constexpr int kValue = KeyTile::kBytes;
  static constexpr int kQuery = kValue + ValueTile::kBytes;
  static constexpr int kGradOut = kQuery + C.kStages * QueryTile::kBytes;
  static constexpr int kDs = kGradOut + C.kStages * OutTile::kBytes;
  static constexpr int kWeights = kDs + C.ds_buffers() * ScoreTile::kBytes;
  static constexpr int kNumbers = kWeights + C.weight_bytes();
  static constexpr int kKeyNumbers = kNumbers + C.kStages * static_cast<int>(sizeof(QueryNumbers));
  static constexpr int kLargest = kKeyNumbers + C.keys() * static_cast<int>(sizeof(RowNumbers));
  static constexpr int kLargestOfQueries = kLargest + C.kConsumers * 32;
  static constexpr int kLargestOfKeys =
      kLargestOfQueries + (C.split_keys ? C.kConsumers : 1) * C.queries * 4;
  static constexpr int kBarriers =
      kLargestOfKeys + (C.split_keys ? 1 : C.kConsumers) * C.keys() * 4;
  static constexpr int kSteps = kBarriers + 16;
  static_assert(kSteps + 2 * Steps::kBytes <= C.planes_shared_bytes());
  // Named barriers: of both consumers; of the warps of a consumer, with its number.
  static constexpr int kBothConsumers = 1, kOwnWarps = 2;

  __device__ __forceinline__ KeyTile key() const { return {base}; }
  __device__ __forceinline__ ValueTile value() const { return {base + kValue}; }
  __device__ __forceinline__ QueryTile query(int stage) const {
    return {base + kQuery + stage * QueryTile::kBytes};
  }
  __device__ __forceinline__ OutTile grad_out(int stage) const {
    return {base + kGradOut + stage * OutTile::kBytes};
  }
  __device__ __forceinline__ ScoreTile ds(int buffer) const {
    return {base + kDs + buffer * ScoreTile::kBytes};
  }
  // [four floats][thread of a consumer].
  __device__ __forceinline__ float4* weights() const {
    return reinterpret_cast<float4*>(memory + kWeights);
  }
  __device__ __forceinline__ const QueryNumbers& numbers(int stage) const {
    return reinterpret_cast<const QueryNumbers*>(memory + kNumbers)[stage];
  }
  __device__ __forceinline__ uint32_t numbers_address(int stage) const {
    return base + kNumbers + stage * static_cast<int>(sizeof(QueryNumbers));
  }
  __device__ __forceinline__ RowNumbers& key_numbers(int key) const {
    return reinterpret_cast<RowNumbers*>(memory + kKeyNumbers)[key];
  }
  // The largest magnitudes of what a consumer's warps split, of each warp; and where rows have
  // numbers of their own, of each query of a step, and each key of the tile. Split by products, the
  // second consumer alone splits for queries.
  __device__ __forceinline__ uint4& largest(int consumer) const {
    return reinterpret_cast<uint4*>(memory + kLargest)[2 * consumer];
  }
  __device__ __forceinline__ uint32_t* largest_of_queries(int consumer) const {
    return reinterpret_cast<uint32_t*>(memory + kLargestOfQueries) +
           (C.split_keys ? C.queries * consumer : 0);
  }
  __device__ __forceinline__ uint32_t* largest_of_keys(int consumer) const {
    return reinterpret_cast<uint32_t*>(memory + kLargestOfKeys) +
           (C.split_keys ? 0 : C.keys() * consumer);
  }
  // The factor by which products with a consumer's dS of a step are multiplied for dQ. It follows
  // largest(), so that one register has the address of both.
  __device__ __forceinline__ float& factor(int buffer, int consumer) const {
    return reinterpret_cast<float*>(memory + kLargest + 16)[8 * consumer + buffer];
  }
  __device__ __forceinline__ uint32_t key_full() const { return base + kBarriers; }
  __device__ __forceinline__ uint32_t value_full() const { return base + kBarriers + 8; }
  __device__ __forceinline__ Steps queries() const { return {base + kSteps}; }
  __device__ __forceinline__ Steps grad_outs() const { return {base + kSteps + Steps::kBytes}; }

  // By one thread, before a barrier of the block.
  __device__ __forceinline__ void prepare() const {
    ptx::mbarrier_init(key_full(), 1);
    ptx::mbarrier_init(value_full(), 1);
    queries().init(1, 4 * C.kConsumers);
    grad_outs().init(1, 4 * C.kConsumers);
    ptx::mbarrier_init_fence();
  }
};

// ---- Producer ----

// By one thread.
template <AttentionBackwardConfig C>
__device__ __forceinline__ void load_planes(const AttentionBackwardPlanesArguments& a,
                                            const PlanesShared<C>& shared,
                                            const BackwardTile& tile) {
  const MapCoordinate key = key_coordinate<C.lengths>(a, tile);
  const MapCoordinate query = query_coordinate<C.lengths>(a, tile);
  const auto load_keys = [&](uint32_t full, const auto& to, const TensorMap& map) {
    ptx::mbarrier_arrive_expect_tx(full, to.kBytes);
    to.load(map, full, {0, 0, key.row + tile.key, tile.kv_head, key.entry});
  };
  for_each_step<C>(a, tile, [&](int number, const BackwardStep& step) {
    const PipelineState<C.kStages> state{number};
    const int stage = state.stage(), row = query.row + step.block * C.queries;
    if (number == 0) {
      using Shared = PlanesShared<C>;
      load_keys(shared.key_full(), typename Shared::LoadedKeyTile{shared.key().base}, a.key);
      load_keys(shared.value_full(), typename Shared::LoadedValueTile{shared.value().base},
                a.value);
    }
    constexpr int kNumbers = sizeof(QueryNumbers);
    const auto queries = shared.queries();
    queries.producer_acquire(state);
    queries.producer_expect_bytes(state, PlanesShared<C>::QueryTile::kBytes + kNumbers);
    shared.query(stage).load(a.query, queries.full(stage), {0, 0, row, step.head, query.entry});
    ptx::bulk_load(shared.numbers_address(stage),
                   a.query_numbers + block_number<C>(a, tile, step.head, step.block), kNumbers,
                   queries.full(stage));
    const auto grad_outs = shared.grad_outs();
    grad_outs.producer_acquire(state);
    grad_outs.producer_expect_bytes(state, PlanesShared<C>::OutTile::kBytes);
    shared.grad_out(stage).load(a.grad_out, grad_outs.full(stage),
                                {0, 0, row, step.head, query.entry});
  });
}

}  // namespace perseid::internal::cuda
