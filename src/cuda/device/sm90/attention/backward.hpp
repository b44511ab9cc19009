// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward for f16 and bf16 on sm_90a. With P = softmax(scale * Q K^T, masked), from lse:
//
//   dV = P^T dO      dP = dO V^T      dS = P (dP - delta)
//   dQ = scale dS K                   dK = scale dS^T Q
//
// Three launches, each made ready while the one before it runs: delta and lse of all rows, in which
// the sums of dQ are cleared too; the products; and dQ, rounded from its sums (backward_rows.hpp).
//
// Who does what. A block has one tile of keys, whose dK and dV stay in registers while it visits
// all queries that see it, and adds what it has of dQ to sums in memory. Warpgroup 0 is the
// producer: one thread of it asks the copy engine for all loads (backward_tiles.hpp). The other
// two, the consumers, share the work by keys (backward_split_keys.hpp) or by products
// (backward_split_products.hpp). If C.deterministic, other threads of the producer's warpgroup keep
// the order of summands. C.cluster_size blocks share a tile: each has some of the query heads.
//
// Memory order. What the copy engine writes is seen by who waits for the barrier that counts it.
// What the consumers write to shared memory and tensor cores or copy engine read is fenced by each
// thread before the barrier that hands it over. A block that has added its last summands of a head
// says so by an arrival with release order; who rounds the sums has seen all arrivals, with acquire
// order, or the kernel's end (backward_rows.hpp).
//
// Limits: rows and columns count in 32 bits; scale is positive. Weights and gradients of scores are
// rounded to 16 bits before the products with them; everything else is float32. The sums of dQ get
// their summands in any order, unless C.deterministic.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/ptx/memory_order.hpp"
#include "cuda/device/sm90/attention/backward_bias.hpp"
#include "cuda/device/sm90/attention/backward_rows.hpp"
#include "cuda/device/sm90/attention/backward_split_keys.hpp"
#include "cuda/device/sm90/attention/backward_split_products.hpp"

namespace perseid::internal::cuda {

// The block's tile. `drawn` is in shared memory; a cluster has that of its first block.
template <AttentionBackwardConfig C>
__device__ __forceinline__ uint32_t tile_number(const uint32_t& drawn) {
  if constexpr (!C.deterministic) return blockIdx.x / C.cluster_size;
  if constexpr (C.cluster_size == 1) return drawn;
  ptx::cluster_arrive_and_release();
  ptx::cluster_wait();
  return ptx::load_from_block(ptx::address_in_block(&drawn, 0));
}

template <AttentionBackwardConfig C>
__global__ void __launch_bounds__(C.threads(), 1)
    attention_backward(const __grid_constant__ AttentionBackwardArguments arguments) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ uint32_t drawn;
  const BackwardShared<C> shared{memory, static_cast<uint32_t>(__cvta_generic_to_shared(memory))};
  if (threadIdx.x == 0) shared.prepare();
  ptx::wait_for_prerequisites();
  ptx::launch_dependents();  // it looks at what the kernels before have cleared
  const bool first_of_cluster = C.cluster_size == 1 || ptx::block_of_cluster() == 0;
  if (C.deterministic && first_of_cluster && threadIdx.x == 0)
    drawn = atomicAdd(arguments.tile, 1u);
  __syncthreads();
  const auto number = static_cast<int32_t>(tile_number<C>(drawn));
  BackwardTile tile = find_backward_tile<C>(arguments, number);
  if constexpr (C.shared_cursor) {
    if (threadIdx.x == 0)
      drawn = static_cast<uint32_t>(ptx::load_relaxed(position_of(arguments, tile)));
    __syncthreads();
    tile.start = static_cast<int32_t>(drawn);
  }
  if (C.lengths && tile.key >= tile.kv_rows) {
    if constexpr (C.cluster_size > 1) {  // the number in shared memory is not needed any more
      ptx::cluster_arrive();
      ptx::cluster_wait();
    }
    return;
  }
  // The same for all threads of a warp, as the compiler has to know.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    ptx::setmaxnreg_dec<C.producer_registers()>();
    if (threadIdx.x == 0) BackwardProducer<C>(arguments, shared, tile).run();
    if constexpr (C.clears_nonfinite())
      if (threadIdx.x / 32 == 1) BackwardClearing<C>(arguments, shared, tile).run();
    if constexpr (C.deterministic) {
      const DqSemaphore<C> turns(arguments, shared, tile);
      if (threadIdx.x == 32) turns.pass_on();
      if (threadIdx.x == 64) turns.look_out(0);
      if (threadIdx.x == 96) turns.look_out(1);
    }
    if constexpr (C.finishes_early() && !C.deterministic)
      if (threadIdx.x >= 96) tell_of_end<C>(arguments, tile);
  } else {
    ptx::setmaxnreg_inc<C.consumer_registers()>();
    if constexpr (C.split_keys) {
      // With pieces of unequal width each consumer has its own code.
      if constexpr (C.last_columns() == C.piece_columns())
        SplitKeysConsumer<C, C.piece_columns()>(arguments, shared, tile, group - 1).run();
      else if (group == 1)
        SplitKeysConsumer<C, C.piece_columns()>(arguments, shared, tile, 0).run();
      else
        SplitKeysConsumer<C, C.last_columns()>(arguments, shared, tile, 1).run();
    } else if (group == 1) {
      SplitProductsConsumer<C>(arguments, shared, tile, 0).run_first();
    } else {
      SplitProductsConsumer<C>(arguments, shared, tile, 1).run_second();
    }
  }
}

}  // namespace perseid::internal::cuda
