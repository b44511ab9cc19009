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
#include "cuda/device/sm90/attention/map_coordinates.hpp"

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
      if (number == 0) load_keys(shared_.key_full(), shared_.key(), a_.key);
      shared_.queries().producer_acquire(stage);
      load_rows_of_step(shared_.queries(), stage, shared_.query(s), a_.query, shared_.lse_log2(s),
                        a_.finite_lse_log2, step);
      if constexpr (C.bias_stages > 0)
        if (a_.bias_mapped) load_bias(number, step);
      if (number == 0) load_keys(shared_.value_full(), shared_.value(), a_.value);
      shared_.grad_outs().producer_acquire(stage);
      load_rows_of_step(shared_.grad_outs(), stage, shared_.grad_out(s), a_.grad_out,
                        shared_.delta(s), a_.finite_delta, step);
    });
  }

 private:
  template <class Tile>
  __device__ __forceinline__ void load_keys(uint32_t full, const Tile& to, const TensorMap& map) {
    ptx::mbarrier_arrive_expect_tx(full, Tile::kBytes);
    const MapCoordinate first = key_coordinate<C.lengths>(a_, tile_);
    to.load(map, full, {0, 0, first.row + tile_.key, tile_.kv_head, first.entry});
  }
  // Rows of a step, and one statistic of each: lse with queries, delta with gradients of out.
  template <class Tile>
  __device__ __forceinline__ void load_rows_of_step(const Pipeline<C.kStages>& pipeline,
                                                    const PipelineState<C.kStages>& state,
                                                    const Tile& to, const TensorMap& map,
                                                    const float* statistics_to,
                                                    const float* statistics,
                                                    const BackwardStep& step) {
    const int64_t at = number_of_block<C>(a_, tile_, step.head, step.block) * C.queries;
    pipeline.producer_expect_bytes(state, Tile::kBytes + C.queries * 4);
    MapCoordinate first = query_coordinate<C.lengths>(a_, tile_);
    if (is_in_second_piece<C>(tile_, step.block)) first.entry += tile_.q_len;
    const uint32_t full = pipeline.full(state.stage());
    to.load(map, full,
            {0, 0, first.row + first_query<C>(tile_, step.block), step.head, first.entry});
    ptx::bulk_load(shared_.address(statistics_to), statistics + at, C.queries * 4, full);
  }

  __device__ __forceinline__ void load_bias(int number, const BackwardStep& step) {
    const PipelineState<C.bias_stages> stage{number};
    shared_.biases().producer_acquire(stage);
    shared_.biases().producer_expect_bytes(stage, C.bias_bytes());
    shared_.bias(stage.stage())
        .load(a_.bias_map, shared_.biases().full(stage.stage()),
              {tile_.key, step.block * C.queries, step.head * a_.bias_head,
               tile_.batch * a_.bias_batch, 0});
  }

  const AttentionBackwardArguments& a_;
  const BackwardShared<C>& shared_;
  const BackwardTile& tile_;
};

}  // namespace perseid::internal::cuda
