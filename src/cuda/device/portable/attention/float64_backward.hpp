// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward in float64, pair by pair: the recomputation of rows that the kernels of other
// types keep for elements that are not finite (attention/backward_fixup.hpp), for all rows. sm_80
// and up.
//
// Launches: float64_attention_backward_prepare (lse in units of log2 and delta of each query), and
// one of float64_attention_backward for each of GradientsOf. A warp computes a row of gradients: dQ
// of a query over its keys, or dK and dV of a key over its queries. For the gradient of a bias it
// computes elements of a tile, unit by unit (attention/bias_split.hpp). Nothing is summed in memory
// but splits, in their order: every gradient is deterministic.
//
// Hidden keys and queries are never read, so that they leave no trace.
//
// Speed: a pair costs a warp two products of rows with their exchanges. Blocks have 16 rows, so
// that those of neighbours find each other's rows in the caches. Numerics: everything is float64.
#pragma once

#include "cuda/device/attention/backward_fixup.hpp"
#include "cuda/device/attention/bias_split.hpp"
#include "cuda/device/portable/attention/backward_scores.hpp"
#include "cuda/device/portable/attention/float64_config.hpp"
#include "cuda/device/ptx/dependency.hpp"

namespace perseid::internal::cuda {

// lse and delta of a block of C.queries queries; clears the counters of splits. A query that sees
// no key, or lies behind the last, gets lse_log2 = +inf and delta = 0.
template <Float64BackwardConfig C>
__global__ void __launch_bounds__(C.threads)
    float64_attention_backward_prepare(const __grid_constant__ Float64Arguments a) {
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  const auto thread = static_cast<int64_t>(threadIdx.x);
  const int64_t number = blockIdx.x, all = int64_t{gridDim.x} * C.threads;
  for (int64_t i = number * C.threads + thread; i < a.bias_blocks; i += all) a.arrived[i] = 0;
  const QueryBlock block = find_block<C>(a, number);
  const AttentionSequence& sequence = block.sequence;
  const int32_t entry = entry_of<C.lengths>(a, sequence.batch);
#pragma unroll 1
  for (int row = static_cast<int>(thread) / 32; row < C.queries; row += C.warps) {
    const int32_t query = block.query + row, at = sequence.q_begin + query;
    double lse = minus_infinity(), delta = 0;
    if (query < sequence.q_len) {
      lse = *row_at<const double>(a.lse_rows, entry, block.head, at);
      WarpRow<C.dtype, C.value_dim> out, grad_out;
      out.load(row_at<double>(a.out_rows, entry, block.head, at), a.value_dim,
               a.out_rows.stride[3]);
      grad_out.load(row_at<double>(a.grad_out_rows, entry, block.head, at), a.value_dim,
                    a.grad_out_rows.stride[3]);
      delta = out.product(grad_out);
      if (a.grad_lse.data != nullptr)
        delta -= *row_at<const double>(a.grad_lse, entry, block.head, at);
    }
    if (thread % 32 != 0) continue;
    const bool empty = lse == minus_infinity();
    a.lse_log2[number * C.queries + row] = empty ? -minus_infinity() : lse * internal::kLog2E;
    a.delta[number * C.queries + row] = empty ? 0 : delta;
  }
}

// A split of a tile of dBias.
template <Float64BackwardConfig C>
__device__ __forceinline__ void sum_bias(const Float64Arguments& a, unsigned char* memory) {
  using Reduction = BiasReduction<C, WholeBlock, Float64Arguments>;
  auto* const sums = reinterpret_cast<double*>(memory);
  const int warp = WholeBlock::thread() / 32;
  for (int i = WholeBlock::thread(); i < C.queries * Reduction::kPitch; i += WholeBlock::kCount)
    sums[i] = 0;
  __syncthreads();
  const BiasSplit<C> split(a, static_cast<int32_t>(blockIdx.x));
  split.for_each_unit(a, [&](const BackwardTile& tile, const BackwardStep& step) {
#pragma unroll 1
    for (int i = warp; i < C.queries * C.keys(); i += C.warps) {
      const int32_t query = step.block * C.queries + i / C.keys(), key = tile.key + i % C.keys();
      const QueriesOfKey<C> queries(a, tile, key);
      if (query >= tile.q_len || query < queries.begin || query >= queries.end ||
          !is_visible<C.visible>(a, tile.batch, step.head, query, key))
        continue;
      const double ds = compute_ds<C>(a, tile, step.head, query, key);
      if (WholeBlock::thread() % 32 == 0)
        sums[i / C.keys() * Reduction::kPitch + i % C.keys()] += ds;
    }
  });
  __syncthreads();
  Reduction(a, sums, reinterpret_cast<volatile uint32_t*>(memory + C.flag_offset())).store(split);
}

template <Float64BackwardConfig C>
__device__ __forceinline__ void compute_gradients(const Float64Arguments& a,
                                                  unsigned char* memory) {
  if constexpr (C.of_bias()) {
    sum_bias<C>(a, memory);
  } else {
    BackwardRows own{};
    if (!find_rows<C>(a, static_cast<int32_t>(blockIdx.x), own)) return;
    const int32_t end = min(own.row + C.block_rows(), C.of_keys() ? own.kv_rows : own.q_len);
#pragma unroll 1
    for (int32_t row = own.row + static_cast<int32_t>(threadIdx.x) / 32; row < end; row += C.warps)
      if constexpr (C.of_keys())
        fix_up_key<C>(a, own.batch, own.kv_head, row);
      else
        fix_up_query<C>(a, own, own.head, row);
  }
}

template <Float64BackwardConfig C>
__global__ void __launch_bounds__(C.threads)
    float64_attention_backward(const __grid_constant__ Float64Arguments arguments) {
  extern __shared__ __align__(128) unsigned char sums_memory[];
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  compute_gradients<C>(arguments, sums_memory);
}

}  // namespace perseid::internal::cuda
