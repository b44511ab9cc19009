// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward for f16 and bf16 on sm_90a: out = softmax(scale * query key^T, masked) value,
// and the logarithm of each row's sum.
//
// Who does what. One block for each multiprocessor, which takes tiles of queries until none is left
// (forward_tiles.hpp). Warpgroup 0 is the producer (forward_producer.hpp): one thread of it finds
// the tiles and asks the copy engine for all loads. Each other warpgroup, a consumer
// (forward_consumer.hpp), has 64 query rows of the tile; its scores S, weights P and results O live
// in registers.
//
//   queries 64 x key_dim (shared)  times  keys x key_dim (shared), transposed  =  S 64 x keys
//   P 64 x keys (registers)        times  keys x value_dim (shared)           +=  O 64 x value_dim
//
// The way of a tile, keys from the last to the first. In step n a consumer
//
//   begins     S(n) = Q K(n)^T, then O += P(n+1) V(n+1)
//   waits for  S(n), edits and masks it (forward_scores.hpp), and takes its softmax
//   waits for  O, rounds the weights to P(n), rescales O where a maximum grew
//
// With two query q_stages the step over the end of a tile is the same: S is of the next tile's
// first keys while O takes the last product of this one, so that the tensor cores do not run dry.
// The results leave (forward_epilogue.hpp) at the end of that step, beside the products of the
// other consumers; where there is one other, which may have none then, a step later, when the next
// scores have begun. With one stage the next queries come late, and the results leave under their
// first scores. Consumers take turns: one may begin its two products only when the one before it
// has begun its own, so that the softmax of one runs under the products of the others.
//
// Barriers in shared memory: who arrives in each phase. Waiters know the parity by counting.
//   query_full[stage]            the producer and the tile's bytes; announces a tile too
//   query_empty[stage]           each consumer warp, when the tile's last scores are there
//   key_full, value_full[stage]    the producer and the bytes
//   key_empty, value_empty[stage]  each consumer warp, when its product is complete or passed over
// Named barriers: 1 + c is the turn of consumer c (256 threads: those that wait for it and those
// that pass it on); 5 + c joins the warps of consumer c (128 threads).
//
// Memory order. The copy engine's writes are seen by who waits for the barrier that counts them.
// Results are written by ordinary stores: each lane fences before its warp meets and one lane asks
// for the store, which waits until that has read them before the warp writes there again.
//
// Limits: rows and columns count in 32 bits; scale is positive. Weights are rounded to 16 bits
// before their product with values, as their sum is not; everything else is float32.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/sm90/attention/forward_consumer.hpp"
#include "cuda/device/sm90/attention/forward_rows.hpp"

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
  __syncthreads();
  ptx::launch_dependents();
  // Lengths may be what a kernel before writes.
  if constexpr (C.split && !C.lengths)
    if (threadIdx.x == 0) ForwardProducer<C>(arguments, shared).ask_ahead();
  ptx::wait_for_prerequisites();
  // The same for all threads of a warp, as the compiler has to know.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    if constexpr (C.consumers > 1) ptx::setmaxnreg_dec<C.producer_registers()>();
    ForwardProducer<C> producer(arguments, shared);
    if (threadIdx.x >= 32) return;
    producer.run();
    if constexpr (C.masked()) producer.run_second_pass();
  } else {
    if constexpr (C.consumers > 1) ptx::setmaxnreg_inc<C.consumer_registers()>();
    ForwardConsumer<C>(arguments, shared, group - 1).run();
  }
}

}  // namespace perseid::internal::cuda
