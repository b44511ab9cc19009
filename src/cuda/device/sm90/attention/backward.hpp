// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward for f16 and bf16 on sm_90a. With P = softmax(scale * Q K^T, masked), from lse:
//
//   dV = P^T dO      dP = dO V^T      dS = P (dP - delta)
//   dQ = scale dS K                   dK = scale dS^T Q
//
// Three launches, each started while the one before it runs: attention_backward_prepare (delta and
// lse, backward_rows.hpp), attention_backward (the products, this file), attention_backward_finish
// (rounds dQ from its float32 sums, backward_rows.hpp). In canonical order a fourth one sums dK and
// dV (backward_leaves.hpp).
//
// Roles. A block has one tile of keys, keeps its dK and dV in registers, and iterates over all
// blocks of queries that see the tile. Warpgroup 0 is the producer: one thread issues all TMA loads
// (backward_producer.hpp), others run the dQ semaphore (dq_semaphore.hpp) and clear elements that
// are not finite (backward_clearing.hpp). Warpgroups 1 and 2 are the consumers, which share a step
// by keys (backward_split_keys.hpp) or, beyond dim 128, by products (backward_split_products.hpp).
// The blocks of a cluster share a tile: each has some of the query heads.
//
// Mainloop. A consumer's step (SplitKeysConsumer::run_step in backward_split_keys.hpp), one query
// block of one query head:
//
//   wait for               WGMMA              then
//   Q (and K once)         S^T = K Q^T
//   dO (and V once)        dP^T = V dO^T      P = 2^(S - lse) under it; dS = P (dP - delta)
//                          dV += P^T dO       dS to shared memory under it
//   dS of both consumers   dQ = dS K          release the stage of dO when dV is complete
//                          dK += dS^T Q       add dQ to its sums under it; release the stage of Q
//
// Memory order. Data written by TMA is visible after the wait for its full mbarrier. Data that
// consumers write to shared memory for WGMMA or TMA passes a proxy fence in each writing thread,
// then the barrier that hands it over. A block that has added its last summand to a head of dQ
// signals with release semantics; attention_backward_finish acquires the signals of all blocks, or
// follows the end of the grid.
//
// Limits: rows and columns count in 32 bits; scale is positive. P and dS are rounded to 16 bits
// before the products with them; everything else is float32. The sums of dQ get their summands in
// any order, unless C.deterministic.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/ptx/memory_order.hpp"
#include "cuda/device/sm90/attention/backward_bias.hpp"
#include "cuda/device/sm90/attention/backward_chunks.hpp"
#include "cuda/device/sm90/attention/backward_producer.hpp"
#include "cuda/device/sm90/attention/backward_rows.hpp"
#include "cuda/device/sm90/attention/backward_split_keys.hpp"
#include "cuda/device/sm90/attention/backward_split_products.hpp"

namespace perseid::internal::cuda {

// ---- Tile scheduler ----

// The block's tile, by raster order (backward_tiles.hpp): static, or in deterministic mode fetched
// from a counter. `fetched` is in shared memory; a cluster uses that of its first block.
template <AttentionBackwardConfig C>
__device__ __forceinline__ uint32_t tile_number(const AttentionBackwardArguments& arguments,
                                                const uint32_t& fetched) {
  if constexpr (!C.deterministic)
    return C.clusters ? blockIdx.x >> arguments.cluster_log2 : blockIdx.x;
  if constexpr (!C.clusters) return fetched;
  ptx::cluster_arrive_and_release();
  ptx::cluster_wait();
  // A shuffle, so that the compiler knows it to be uniform: WGMMA in a loop whose bounds are not is
  // serialised.
  return __shfl_sync(0xffffffffu, ptx::load_from_block(ptx::address_in_block(&fetched, 0)), 0);
}

// By all threads of the block; `word` is one word of shared memory.
template <AttentionBackwardConfig C>
__device__ __forceinline__ BackwardTile schedule_tile(const AttentionBackwardArguments& arguments,
                                                      uint32_t& word) {
  const bool first_of_cluster = !C.clusters || ptx::block_of_cluster() == 0;
  if (C.deterministic && first_of_cluster && threadIdx.x == 0) word = atomicAdd(arguments.tile, 1u);
  __syncthreads();
  const auto number = static_cast<int32_t>(tile_number<C>(arguments, word));
  BackwardTile tile = find_backward_tile<C>(arguments, number);
  if constexpr (C.shared_cursor) {
    if (threadIdx.x == 0)
      word = static_cast<uint32_t>(ptx::load_relaxed(cursor_of(arguments, tile)));
    __syncthreads();
    tile.start = static_cast<int32_t>(word);
  }
  return tile;
}

// ---- Roles ----

// The producer's warpgroup: each warp has a task of its own.
template <AttentionBackwardConfig C>
__device__ __forceinline__ void run_producer(const AttentionBackwardArguments& arguments,
                                             const BackwardShared<C>& shared,
                                             const BackwardTile& tile) {
  if (threadIdx.x == 0) BackwardProducer<C>(arguments, shared, tile).run();
  if constexpr (C.clears_nonfinite())
    if (threadIdx.x / 32 == 1) BackwardClearing<C>(arguments, shared, tile).run();
  if constexpr (C.deterministic) {
    const DqSemaphore<C> semaphore(arguments, shared, tile);
    if (threadIdx.x == 32) semaphore.release();
    if (threadIdx.x == 64) semaphore.acquire(0);
    if (threadIdx.x == 96) semaphore.acquire(1);
  }
  if constexpr (C.finishes_early() && !C.deterministic)
    if (threadIdx.x >= 96) signal_completion<C>(arguments, tile);
}

template <class Consumer, AttentionBackwardConfig C>
__device__ __forceinline__ void run_consumer(const ConsumerContext<C>& context) {
  Consumer consumer(context);
  consumer.prologue();
  consumer.mainloop();
  consumer.epilogue();
}

template <AttentionBackwardConfig C>
__device__ __forceinline__ void run_consumers(const AttentionBackwardArguments& arguments,
                                              const BackwardShared<C>& shared,
                                              const BackwardTile& tile, int consumer) {
  const auto context = [&](int number) {
    return ConsumerContext<C>{arguments, shared, tile, {number}};
  };
  if constexpr (!C.split_keys) {
    if (consumer == 0)
      run_consumer<GradValueConsumer<C>>(context(0));
    else
      run_consumer<GradKeyConsumer<C>>(context(1));
  } else if constexpr (C.last_columns() == C.slice_columns()) {
    run_consumer<SplitKeysConsumer<C, C.slice_columns()>>(context(consumer));
  } else if (consumer == 0) {  // slices of dQ of unequal width: a mainloop for each
    run_consumer<SplitKeysConsumer<C, C.slice_columns()>>(context(0));
  } else {
    run_consumer<SplitKeysConsumer<C, C.last_columns()>>(context(1));
  }
}

// ---- Entry ----

template <AttentionBackwardConfig C>
__global__ void __launch_bounds__(C.threads(), 1)
    attention_backward(const __grid_constant__ AttentionBackwardArguments arguments) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ uint32_t word;
  const BackwardShared<C> shared{memory, static_cast<uint32_t>(__cvta_generic_to_shared(memory))};
  if (threadIdx.x == 0) shared.prepare();
  ptx::wait_for_prerequisites();
  ptx::launch_dependents();  // the next launch reads counters that the previous one has cleared
  const BackwardTile tile = schedule_tile<C>(arguments, word);
  if (C.lengths && tile.key >= tile.kv_rows) {
    if constexpr (C.clusters) {  // other blocks have read `word`
      ptx::cluster_arrive();
      ptx::cluster_wait();
    }
    return;
  }
  if constexpr (C.async)
    if (threadIdx.x == 0) await_keys<C>(arguments, tile);
  // A shuffle, so that the compiler knows it to be uniform in a warp.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    ptx::setmaxnreg_dec<C.producer_registers()>();
    run_producer(arguments, shared, tile);
  } else {
    ptx::setmaxnreg_inc<C.consumer_registers()>();
    run_consumers(arguments, shared, tile, group - 1);
  }
}

}  // namespace perseid::internal::cuda
