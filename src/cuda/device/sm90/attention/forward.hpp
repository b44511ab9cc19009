// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward for f16 and bf16 on sm_90a: out = softmax(scale * query key^T, masked) value,
// and the logarithm of each row's sum.
//
// Warps. A persistent kernel with one block per multiprocessor, which computes Q tiles until none
// is left (forward_scheduler.hpp). Warpgroup 0 is the producer (forward_producer.hpp): its first
// warp finds the tiles, and one thread issues all TMA loads. The other warpgroups are consumers
// (forward_consumer.hpp). Each has 64 rows of the Q tile; its scores S, weights P and results O are
// in registers.
//
//   Q 64 x key_dim (shared)     times  K keys x key_dim (shared), transposed  =  S 64 x keys
//   P 64 x keys (registers)     times  V keys x value_dim (shared)           +=  O 64 x value_dim
//
// Pipeline. A Q tile visits its KV tiles n from the last to the first (kv_tiles.hpp):
//
//   prologue    S(last) | softmax
//   mainloop              S(n), O += P(n+1) V(n+1) | softmax of S(n), under the product
//   epilogue                                         O += P(first) V(first) | divide, store
//
// The next tile's prologue overlaps with this tile's epilogue (Epilogue in config.hpp). The
// consumers form a ping-pong order: one issues its two products only after the one before it has
// issued its own, so that the softmax of one runs under the products of the others.
//
// Beyond 256 columns a Q tile has results of one part of them, and computes all scores; K and V
// arrive in pieces, which all consumers multiply at the same time (C.in_pieces()).
//
// Clusters. Under a causal mask long sequences are computed by clusters of two blocks, which have
// neighbouring Q tiles of a head and visit the same KV tiles: each loads half of the columns of K
// and V for both (multicast), which halves what the L2 cache sends. A stage is filled again when
// the consumers of both blocks have released it. The block whose rows end earlier skips the first
// KV tile, as consumers do whose rows see nothing of one. The first block draws the tiles of both.
//
// mbarriers of the pipelines: who arrives in each phase. Waiters know the parity by counting.
//   query_full[stage]              the producer and the bytes of Q; announces a tile, or the end
//   query_empty[stage]             each consumer warp, when the tile's last scores are complete
//   key_full, value_full[stage]    the producer and the bytes
//   key_empty, value_empty[stage]  each consumer warp, when its product is complete or skipped; in
//                                  each block of a cluster
//   ticket[2]                      of a cluster: the producer, and the bytes that the first block's
//                                  producer sends
//   bias_full, bias_empty[stage]   the same for the bias of a K tile
//   value_loaded                   the producer and the bytes of V, in a second pass
// Named barriers: kPingPong + c is the order's barrier of consumer c (128 threads that wait, 128
// that arrive); kPassEnds joins all consumers at the end of a pass; kConsumerWarps + c joins the
// warps of consumer c.
//
// Memory order. A consumer sees what TMA has written because it waits for the mbarrier that counts
// the bytes. The epilogue stages results with ordinary stores: each lane executes a proxy fence,
// the warp synchronizes, and one lane issues the TMA store. The warp writes there again only after
// that store has read the rows.
//
// Limits: rows and columns count in 32 bits; scale is positive. Weights are rounded to 16 bits
// before their product with values, but not in their sum; everything else is float32.
#pragma once

#include "cuda/device/portable/attention/planes.hpp"
#include "cuda/device/ptx/cluster.hpp"
#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/sm90/attention/forward_combine.hpp"
#include "cuda/device/sm90/attention/forward_consumer.hpp"
#include "cuda/device/sm90/attention/forward_producer.hpp"

namespace perseid::internal::cuda {

template <AttentionForwardConfig C>
__global__ void __launch_bounds__(C.threads(), 1)
    attention_forward(const __grid_constant__ AttentionForwardArguments arguments) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const ForwardShared<C> shared{memory, static_cast<uint32_t>(__cvta_generic_to_shared(memory))};
  if (threadIdx.x == 0) {
    shared.prepare(arguments.tiles);
    for (const TensorMap* map : {&arguments.query, &arguments.key, &arguments.value})
      ptx::prefetch_tensor_map(*map);
  }
  if constexpr (C.cluster == 1) {
    __syncthreads();
  } else {
    ptx::cluster_arrive_and_release();
    ptx::cluster_wait();
  }
  ptx::launch_dependents();
  // Lengths may be written by a kernel before.
  if constexpr (C.split && !C.lengths)
    if (threadIdx.x == 0) ForwardProducer<C>(arguments, shared).prefetch_first_tiles();
  ptx::wait_for_prerequisites();
  // The shuffle tells the compiler that the value is uniform in a warp.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    if constexpr (C.consumers > 1) ptx::setmaxnreg_dec<C.producer_registers()>();
    ForwardProducer<C> producer(arguments, shared);
    if (threadIdx.x >= 32) return;
    producer.run();
    if constexpr (C.second_pass()) producer.run_second_pass();
  } else {
    if constexpr (C.consumers > 1) ptx::setmaxnreg_inc<C.consumer_registers()>();
    if constexpr (ForwardConsumer<C>::kHasCommon) {
      if (*arguments.uncommon != arguments.launch) {
        ForwardConsumer<C, true>(arguments, shared, group - 1).run();
        return;
      }
    }
    ForwardConsumer<C>(arguments, shared, group - 1).run();
  }
  // Until here another block may arrive at this one's barriers.
  if constexpr (C.cluster > 1) {
    __syncwarp();
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
}

}  // namespace perseid::internal::cuda
