// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Split-KV combine of attention forward, for few queries and many keys: a kernel computes each
// split of the keys on its own, and this one combines the splits of a row. With L the log2-sum-exp2
// of the splits and O their results:
//
//   out = sum(2^(L - max L) * O) / sum(2^(L - max L))
//
// A warp has 32 columns of a row and loads 32 splits at once, since latency dominates. It adds them
// in their order, whichever blocks computed them, and the number of splits depends on the length of
// the keys alone: a row's result does not depend on the other rows of the batch. Blocks are small,
// so that they can be resident together with those of the kernels before and after.
//
// Limits: rows of all heads, times vectors of 32 columns, count in 31 bits.
//
// In float32 and float64 L has a factor beside it: roundings of L would be seen.
#pragma once

#include "cuda/device/attention/arithmetic.hpp"
#include "cuda/device/attention/sequence.hpp"
#include "cuda/device/element.hpp"
#include "cuda/device/ptx/dependency.hpp"

namespace perseid::internal::cuda {

// By a whole block, which is launched for kRowWarps times 32 columns of a row. `stride`: between
// elements of out.
template <DType D, class Arguments>
__device__ __forceinline__ void combine_splits(const Arguments& a, int64_t stride) {
  constexpr int kSplits = 32;
  using Real = typename SumOf<D>::Type;
  using V = typename ArithmeticOf<Real>::Type;
  constexpr bool kHasWeights = D == DType::kF32 || D == DType::kF64;
  ptx::launch_dependents();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t warp = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / 32;
  const int pieces = (a.value_dim + 31) / 32;
  const auto row = static_cast<int>(warp / pieces);
  const int column = static_cast<int>(warp % pieces) * 32 + lane;
  const int heads = a.heads << a.pack_gqa, length = a.ragged ? a.total_q : a.q_len;
  const int query = row % length, head = row / length % heads, batch = row / length / heads;
  const bool own = column < a.value_dim;
  ptx::wait_for_prerequisites();
  if (row >= a.rows) return;
  // Rows behind the last sequence are padding of the packed tensor.
  if (a.ragged && query >= read_length(a.cumulative_q, a.batch, a.total_q)) return;

  Real out = 0, largest = minus_infinity(), sum = 0;  // sum: of the lane's splits
#pragma unroll 1
  for (int first = 0; first < a.num_splits; first += kSplits) {
    const int64_t at = int64_t{first} * a.rows + row;
    const Real own_sum =
        first + lane < a.num_splits ? a.split_sums[at + lane * a.rows] : minus_infinity();
    Real results[kSplits];
#pragma unroll
    for (int p = 0; p < kSplits; ++p)
      results[p] = own && first + p < a.num_splits
                       ? a.split_results[(at + p * a.rows) * a.value_dim + column]
                       : 0;
    Real now = V::max(largest, own_sum);
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      now = V::max(now, __shfl_xor_sync(0xffffffffu, now, step));
    const Real shift = now == minus_infinity() ? 0 : now;
    // Dropout may have dropped all but the smallest weights.
    const Real factor = weight_of<true>(largest - shift);
    Real weight = weight_of<true>(own_sum - shift);
    if constexpr (kHasWeights)
      if (own_sum != minus_infinity()) weight *= a.split_weights[at + lane * a.rows];
    largest = now;
    sum = V::fma(sum, factor, weight);
    out *= factor;
#pragma unroll
    for (int p = 0; p < kSplits; ++p)
      out = V::fma(__shfl_sync(0xffffffffu, weight, p), results[p], out);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);

  using Element = typename ElementOf<D>::Type;
  if (own)
    row_at<Element>(a.out_rows, batch, head, query)[column * stride] =
        round_element<D>(sum == 0 ? 0 : out / sum);
  if (column != 0 || a.lse == nullptr) return;
  Real lse = minus_infinity();
  if (sum != 0) {
    if constexpr (D == DType::kF64)
      lse = largest * internal::kLn2 + log(sum);
    else
      lse = D == DType::kF32 ? natural_logarithm(largest, sum)
                             : (largest + ptx::approximate_log2(sum)) * kLn2;
  }
  a.lse[batch * a.lse_stride[0] + head * a.lse_stride[1] + query * a.lse_stride[2]] = lse;
}

}  // namespace perseid::internal::cuda
