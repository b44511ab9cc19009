// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul of f16 and bf16 on sm_90a: c = alpha * a b + bias + beta * c0, sums in float32.
//
// Warps. A persistent kernel with one block per multiprocessor. One thread of each warp of
// warpgroup 0 has a role: the producer (producer.hpp) issues the TMA loads of a and b; two storing
// threads, one per consumer, issue the TMA stores of c (epilogue.hpp); the scheduler
// (scheduler.hpp) finds the tiles, and waits for operands that arrive in chunks. The other
// warpgroups are consumers (consumer.hpp), each with 64 rows of the tile, whose accumulators are in
// its registers.
//
//                   b: 64 x columns, a stage           a cluster of two blocks
//                   +-----------------+                +---------+---------+
//                   |                 |                | part of | part of |
//     a: 64 x 64    +-----------------+                | block 0 | block 1 |  one tile of b, each
//     consumer 0    |   accumulators  |                +---------+---------+  part loaded once, to
//     consumer 1    |   accumulators  |        block 0 |                   |  both blocks
//                   +-----------------+        block 1 |                   |
//
// Tiles. Block cluster i computes tiles i, i + clusters, ... of an order (math/tile_order.hpp) in
// which tiles that run at the same time share rows of a and columns of b in the L2 cache.
//
//   consumer   | steps of tile 0 | steps of tile 1          | steps of tile 2 ...
//   epilogue                     | chunks of tile 0 |       | chunks of tile 1 |
//
// The epilogue of 16-bit results is deferred: they are rounded and packed into registers, and
// stored during the first steps of the next tile, so that the tensor cores do not wait. Results in
// float32, and those to which c0 is added, do not fit there: they are stored at the tile's end.
//
// mbarriers: who arrives in each phase. Waiters know the parity by counting.
//   inputs full[stage]      the producer, and the bytes of a and b
//   inputs empty[stage]     each consumer warp of every block of the cluster, when the products
//                           that read the stage are complete
//   outputs full[stage]     the storing thread, and the bytes of c0; one pipeline per consumer
//   outputs empty[stage]    the consumer's four warps, when their results are in the stage
//   tiles full, empty[i]    the scheduler; each reader (tiles.hpp)
//   tiles arrived[i]        the scheduler, when the chunks of the tile's operands have arrived
//
// Memory order. A consumer sees what TMA has written because it waits for the mbarrier that counts
// the bytes. It releases a stage after the products that read it are complete, which orders the
// reads before the loads that overwrite it. Results are written with ordinary stores, each lane
// executes a proxy fence, and the storing thread waits for the warps before it issues TMA stores.
// For operands that arrive in chunks, chunk_waits.hpp has the argument; the barrier `arrived`
// carries what the scheduler has acquired to the producer.
//
// Limits: rows and columns count in 32 bits; TMA takes the operands (cuda/sm90/matmul.hpp). Sums
// are in the order of k whatever the tile is: results do not depend on the configuration but for
// split tiles (split_k.hpp) and leaves (leaf_consumer.hpp), nor on the batch.
#pragma once

#include "cuda/device/sm90/matmul/consumer.hpp"
#include "cuda/device/sm90/matmul/deferred_leaf_consumer.hpp"
#include "cuda/device/sm90/matmul/leaf_consumer.hpp"
#include "cuda/device/sm90/matmul/producer.hpp"
#include "cuda/device/sm90/matmul/promoted_consumer.hpp"
#include "cuda/device/sm90/matmul/promoted_leaf_consumer.hpp"
#include "cuda/device/sm90/matmul/scheduler.hpp"
#include "cuda/device/sm90/matmul/shard_store.hpp"
#include "cuda/device/sm90/matmul/wide_shard_consumer.hpp"

namespace perseid::internal::cuda {

template <bool kOfShards, bool kOfLeaves>
struct MatmulArgumentsOf {
  using Type = Sm90MatmulArguments;
};
template <>
struct MatmulArgumentsOf<true, false> {
  using Type = Sm90ShardArguments;
};
template <>
struct MatmulArgumentsOf<false, true> {
  using Type = Sm90LeafArguments;
};
template <bool kOfShards>
struct MatmulStoreOf {
  template <Sm90MatmulConfig C>
  using Type = MatmulStore<C>;
};
template <>
struct MatmulStoreOf<true> {
  template <Sm90MatmulConfig C>
  using Type = MatmulShardStore<C>;
};

template <Sm90MatmulConfig C>
__global__ void __launch_bounds__(C.threads(), 1)
    sm90_matmul(const __grid_constant__
                typename MatmulArgumentsOf<C.deferred_parts, C.has_leaf_planes()>::Type arguments) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const MatmulShared<C> shared{memory, static_cast<uint32_t>(__cvta_generic_to_shared(memory))};
  const int warp = static_cast<int>(threadIdx.x) / 32;
  // The scheduler finds the first tile, by ten divisions, while the barriers are prepared and the
  // kernels before may still run.
  MatmulTilePosition first = MatmulTilePosition::none();
  if (!C.async && warp == 3) first = first_tile<C>(arguments);
  if (threadIdx.x == 0) shared.prepare();
  if (threadIdx.x == 32)
    for (const TensorMap* map : {&arguments.a, &arguments.b, &arguments.c})
      ptx::prefetch_tensor_map(*map);
  if constexpr (C.cluster == 1) {
    __syncthreads();
  } else {
    ptx::cluster_arrive_and_release();
    ptx::cluster_wait();
  }
  ptx::launch_dependents();
  // The shuffle tells the compiler that the value is uniform in a warp.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    if constexpr (C.consumers > 1) ptx::setmaxnreg_dec<C.producer_registers()>();
    const bool leads = threadIdx.x % 32 == 0;
    if (warp == 3 && (C.async || leads)) {
      schedule_tiles<C>(arguments, first, shared);
    } else if (leads) {
      ptx::wait_for_prerequisites();
      if (warp == 0)
        MatmulProducer<C>(arguments, shared).run();
      else if (warp <= C.consumers)
        typename MatmulStoreOf<C.deferred_parts>::template Type<C>(arguments, shared, warp - 1)
            .run();
    }
    __syncwarp();
  } else {
    if constexpr (C.consumers > 1) ptx::setmaxnreg_inc<C.consumer_registers()>();
    ptx::wait_for_prerequisites();
    if constexpr (C.has_leaf_planes())
      MatmulPromotedLeafConsumer<C>(arguments, shared, group - 1).run();
    else if constexpr (C.promote > 0)
      MatmulPromotedConsumer<C>(arguments, shared, group - 1).run();
    else if constexpr (C.is_wide())
      MatmulWideShardConsumer<C>(arguments, shared, group - 1).run();
    else if constexpr (C.leaves > 1 && C.deferred_parts)
      MatmulDeferredLeafConsumer<C>(arguments, shared, group - 1).run();
    else if constexpr (C.leaves > 1)
      MatmulLeafConsumer<C>(arguments, shared, group - 1).run();
    else
      MatmulConsumer<C>(arguments, shared, group - 1).run();
  }
  if constexpr (C.cluster > 1) {
    // No block ends while another one may arrive at its barriers.
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
}

}  // namespace perseid::internal::cuda
