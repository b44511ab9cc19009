// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The producer of attention backward on sm_90a: one thread issues all TMA loads of a tile.
//
//   once       K before the first step, V after its queries
//   each step  Q with lse_log2, the bias if TMA can address it, dO with delta
//
// Loads of a step run up to C.kStages steps ahead of the consumers. A full barrier completes when
// the producer has arrived and all announced bytes have been written.
#pragma once

#include "cuda/device/sm90/attention/backward_shared.hpp"

namespace perseid::internal::cuda {

template <AttentionBackwardConfig C>
class BackwardProducer {
 public:
  __device__ __forceinline__ BackwardProducer(const AttentionBackwardArguments& arguments,
                                              const BackwardShared<C>& shared,
                                              const BackwardTile& tile)
      : a_(arguments), shared_(shared), tile_(tile) {}

  __device__ __forceinline__ void run() {
    for_each_step<C>(a_, tile_, [&](int number, const BackwardStep& step) {
      const PipelineState<C.kStages> stage = stage_of<C>(number);
      const int s = stage.stage();
      if constexpr (C.shared_cursor) {
        constexpr int kSteps = 8;  // between updates of the cursor
        if (number % kSteps == 0)
          ptx::store_relaxed(cursor_of(a_, tile_),
                             static_cast<uint64_t>(step.head % a_.group * tile_.end + step.block));
      }
      if (number == 0) load_keys<C.key_chunks()>(shared_.key_full(), shared_.key(), a_.key);
      ptx::mbarrier_wait(shared_.query_empty(s), stage.parity() ^ 1);
      load_rows_of_step<C.key_chunks()>(shared_.query_full(s), shared_.query(s), a_.query,
                                        shared_.lse_log2(s), a_.finite_lse_log2, step);
      if constexpr (C.bias_stages > 0)
        if (a_.bias_mapped) load_bias(number, step);
      if (number == 0) load_keys<C.value_chunks()>(shared_.value_full(), shared_.value(), a_.value);
      ptx::mbarrier_wait(shared_.out_empty(s), stage.parity() ^ 1);
      load_rows_of_step<C.value_chunks()>(shared_.out_full(s), shared_.grad_out(s), a_.grad_out,
                                          shared_.delta(s), a_.finite_delta, step);
    });
  }

 private:
  template <int kChunks>
  __device__ __forceinline__ void load_keys(uint32_t full, uint32_t to, const TensorMap& map) {
    ptx::mbarrier_arrive_expect_tx(full, C.keys() * 128 * kChunks);
    const MapCoordinate first = key_coordinate<C.lengths>(a_, tile_);
    load_rows<kChunks>(to, C.keys(), map, full, first.row + tile_.key, tile_.kv_head, first.entry);
  }
  // Rows of a step, and one statistic of each: lse with queries, delta with gradients of out.
  template <int kChunks>
  __device__ __forceinline__ void load_rows_of_step(uint32_t full, uint32_t to,
                                                    const TensorMap& map,
                                                    const float* statistics_to,
                                                    const float* statistics,
                                                    const BackwardStep& step) {
    const int64_t at = block_number<C>(a_, tile_, step.head, step.block) * C.queries;
    ptx::mbarrier_arrive_expect_tx(full, C.queries * (128 * kChunks + 4));
    const MapCoordinate first = query_coordinate<C.lengths>(a_, tile_);
    load_rows<kChunks>(to, C.queries, map, full, first.row + step.block * C.queries, step.head,
                       first.entry);
    ptx::bulk_load(shared_.address(statistics_to), statistics + at, C.queries * 4, full);
  }

  __device__ __forceinline__ void load_bias(int number, const BackwardStep& step) {
    const PipelineState<C.bias_stages> stage{number};
    const uint32_t full = shared_.bias_full(stage.stage());
    ptx::mbarrier_wait(shared_.bias_empty(stage.stage()), stage.parity() ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, C.bias_bytes());
#pragma unroll
    for (int key = 0; key < C.keys(); key += BiasTile<C>::kChunkKeys)
      ptx::tma_load(shared_.bias(stage.stage()).chunk(key), a_.bias_map, full,
                    {tile_.key + key, step.block * C.queries, step.head * a_.bias_head,
                     tile_.batch * a_.bias_batch, 0});
  }

  const AttentionBackwardArguments& a_;
  const BackwardShared<C>& shared_;
  const BackwardTile& tile_;
};

}  // namespace perseid::internal::cuda
