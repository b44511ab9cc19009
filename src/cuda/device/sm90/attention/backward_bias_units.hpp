// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Work of the kernel that sums the gradient of a repeated bias (backward_bias.hpp): shared memory,
// the splits of a tile of dBias with their units, and the producer.
#pragma once

#include "cuda/device/attention/bias_split.hpp"
#include "cuda/device/sm90/attention/backward_shared.hpp"
#include "cuda/device/sm90/attention/map_coordinates.hpp"

namespace perseid::internal::cuda {

// For each stage a unit: key, query, value, grad_out, tiles of [chunk of 64 columns][row][64]; the
// tiles of bias; lse_log2 and delta of each stage.
//
// Pipelines: scores (K and Q with lse), gradients (V and dO with delta), biases. A full phase
// completes by the producer and the bytes, an empty one by all eight consumer warps.
template <AttentionBackwardConfig C>
struct BiasShared {
  unsigned char* memory;
  uint32_t base;

  static constexpr int kStages = C.unit_stages(), kBiasStages = C.unit_bias_stages();
  static constexpr int kQuery = C.key_bytes();
  static constexpr int kValue = kQuery + C.query_bytes();
  static constexpr int kGradOut = kValue + C.value_bytes();
  static constexpr int kStage = kGradOut + C.out_bytes();
  static constexpr int kBias = kStages * kStage;
  static constexpr int kStatistics = kBias + kBiasStages * C.bias_bytes();
  static constexpr int kBarriers = kStatistics + kStages * C.statistics_bytes();
  static constexpr int kPitch = C.keys() + 1;  // of sums, which reuse the memory of the stages
  static_assert(kBarriers + 16 * (2 * kStages + kBiasStages) <= C.unit_shared_bytes());
  static_assert(C.unit_shared_bytes() <= kMostShared);
  static_assert(C.queries * kPitch * 4 <= kBias);

  __device__ __forceinline__ SharedTile<C.keys(), C.key_dim> key(int stage) const {
    return {base + stage * kStage};
  }
  __device__ __forceinline__ SharedTile<C.queries, C.key_dim> query(int stage) const {
    return {base + stage * kStage + kQuery};
  }
  __device__ __forceinline__ SharedTile<C.keys(), C.value_dim> value(int stage) const {
    return {base + stage * kStage + kValue};
  }
  __device__ __forceinline__ SharedTile<C.queries, C.value_dim> grad_out(int stage) const {
    return {base + stage * kStage + kGradOut};
  }
  __device__ __forceinline__ BiasTile<C> bias(int stage) const {
    const int at = kBias + stage * C.bias_bytes();
    return {memory + at, base + at};
  }
  __device__ __forceinline__ float* sums() const { return reinterpret_cast<float*>(memory); }
  __device__ __forceinline__ const float* lse_log2(int stage) const {
    return reinterpret_cast<const float*>(memory + kStatistics + stage * C.statistics_bytes());
  }
  __device__ __forceinline__ const float* delta(int stage) const {
    return lse_log2(stage) + C.queries;
  }
  __device__ __forceinline__ uint32_t lse_address(int stage) const {
    return base + kStatistics + stage * C.statistics_bytes();
  }
  // S^T's operands, dP^T's operands, and tiles of bias.
  using Units = Pipeline<kStages>;
  __device__ __forceinline__ Units scores() const { return {base + kBarriers}; }
  __device__ __forceinline__ Units gradients() const { return {base + kBarriers + Units::kBytes}; }
  __device__ __forceinline__ Pipeline<kBiasStages> biases() const {
    return {base + kBarriers + 2 * Units::kBytes};
  }

  __device__ __forceinline__ void prepare() const {
    scores().init(1, 4 * C.kConsumers);
    gradients().init(1, 4 * C.kConsumers);
    biases().init(1, 4 * C.kConsumers);
    ptx::mbarrier_init_fence();
  }
};

template <AttentionBackwardConfig C>
class BiasProducer {
 public:
  __device__ __forceinline__ BiasProducer(const AttentionBackwardBiasArguments& arguments,
                                          const BiasShared<C>& shared)
      : a_(arguments), shared_(shared) {}

  __device__ __forceinline__ void run() {
    for (auto block = static_cast<int32_t>(blockIdx.x); block < a_.blocks;
         block += static_cast<int32_t>(gridDim.x)) {
      const BiasSplit<C> split(a_, block);
      if (a_.mapped) load_bias(split);
      split.for_each_unit(
          a_, [&](const BackwardTile& tile, const BackwardStep& step) { load_unit(tile, step); });
    }
  }

 private:
  __device__ __forceinline__ void load_bias(const BiasSplit<C>& split) {
    const int stage = bias_.stage();
    shared_.biases().producer_acquire(bias_);
    shared_.biases().producer_expect_bytes(bias_, C.bias_bytes());
    shared_.bias(stage).load(
        a_.bias_map, shared_.biases().full(stage),
        {split.k_tile * C.keys(), split.q_tile * C.queries, split.head, split.batch, 0});
    bias_.advance();
  }
  __device__ __forceinline__ void load_unit(const BackwardTile& tile, const BackwardStep& step) {
    const int stage = units_.stage();
    const MapCoordinate keys = key_coordinate<C.lengths>(a_, tile);
    const MapCoordinate queries = query_coordinate<C.lengths>(a_, tile);
    const int key = keys.row + tile.key, query = queries.row + step.block * C.queries;
    const int64_t at = block_number<C>(a_, tile, step.head, step.block) * C.queries;

    const uint32_t scores_full = shared_.scores().full(stage);
    shared_.scores().producer_acquire(units_);
    shared_.scores().producer_expect_bytes(units_, C.key_bytes() + C.query_bytes() + C.queries * 4);
    shared_.key(stage).load(a_.key, scores_full, {0, 0, key, tile.kv_head, keys.entry});
    shared_.query(stage).load(a_.query, scores_full, {0, 0, query, step.head, queries.entry});
    ptx::bulk_load(shared_.lse_address(stage), a_.lse_log2 + at, C.queries * 4, scores_full);

    const uint32_t gradients_full = shared_.gradients().full(stage);
    shared_.gradients().producer_acquire(units_);
    shared_.gradients().producer_expect_bytes(units_,
                                              C.value_bytes() + C.out_bytes() + C.queries * 4);
    shared_.value(stage).load(a_.value, gradients_full, {0, 0, key, tile.kv_head, keys.entry});
    shared_.grad_out(stage).load(a_.grad_out, gradients_full,
                                 {0, 0, query, step.head, queries.entry});
    ptx::bulk_load(shared_.lse_address(stage) + C.queries * 4, a_.delta + at, C.queries * 4,
                   gradients_full);
    units_.advance();
  }

  const AttentionBackwardBiasArguments& a_;
  const BiasShared<C>& shared_;
  PipelineState<C.unit_stages()> units_;
  PipelineState<C.unit_bias_stages()> bias_;
};

}  // namespace perseid::internal::cuda
