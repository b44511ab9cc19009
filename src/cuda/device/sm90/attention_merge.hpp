// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Few queries and many keys: attention_forward takes the keys in parts, and this kernel puts the
// parts of each row together. With L the logarithms of the parts' sums and O their results:
//
//   out = sum(2^(L - max L) * O) / sum(2^(L - max L))
//
// A warp has a row, its lanes every 32nd pair of elements. Parts are added in their order, however
// many blocks computed them, and there are as many as the length of the keys says: a row's result
// does not depend on which others are in the batch. Eight parts are read at once, as what takes the
// time is waiting for them.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/sm90/attention_scores.hpp"

namespace perseid::cuda {

template <DType D>
__global__ void __launch_bounds__(32 * kRowWarps)
    attention_merge(const __grid_constant__ AttentionForwardArguments a) {
  constexpr int kMostPairs = 256 / 64, kTogether = 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.x) * kRowWarps + static_cast<int>(threadIdx.x) / 32;
  ptx::let_next_kernel_start();
  const int heads = a.heads << a.pack, length = a.ragged ? a.total_q : a.q_len;
  const int query = row % length, head = row / length % heads, batch = row / length / heads;
  ptx::wait_for_kernels_before();
  if (row >= a.rows) return;
  // Rows behind the last sequence belong to nobody.
  if (a.ragged && query >= read_length(a.cumulative_q, a.batch, a.total_q)) return;

  float2 out[kMostPairs] = {};
  float largest = minus_infinity(), sum = 0;
#pragma unroll 1
  for (int first = 0; first < a.parts; first += kTogether) {
    float sums[kTogether], now = largest;
    float2 results[kTogether][kMostPairs];
#pragma unroll
    for (int p = 0; p < kTogether; ++p) {
      const int64_t at = int64_t{first + p} * a.rows + row;
      const bool there = first + p < a.parts;
      sums[p] = there ? a.part_sums[at] : minus_infinity();
      const auto* from = reinterpret_cast<const float2*>(a.part_results + at * a.value_dim);
#pragma unroll
      for (int i = 0; i < kMostPairs; ++i)
        results[p][i] =
            there && lane + 32 * i < a.value_dim / 2 ? from[lane + 32 * i] : float2{0, 0};
    }
#pragma unroll
    for (int p = 0; p < kTogether; ++p) now = fmaxf(now, sums[p]);
    const float shift = now == minus_infinity() ? 0 : now;
    const float factor = ptx::approximate_exp2(largest - shift);
    largest = now;
    sum *= factor;
#pragma unroll
    for (int i = 0; i < kMostPairs; ++i) out[i] = {out[i].x * factor, out[i].y * factor};
#pragma unroll
    for (int p = 0; p < kTogether; ++p) {
      const float weight = ptx::approximate_exp2(sums[p] - shift);
      sum += weight;
#pragma unroll
      for (int i = 0; i < kMostPairs; ++i) {
        out[i].x = fmaf(weight, results[p][i].x, out[i].x);
        out[i].y = fmaf(weight, results[p][i].y, out[i].y);
      }
    }
  }

  auto* to = static_cast<uint16_t*>(a.out_rows.data) + batch * a.out_rows.stride[0] +
             head * a.out_rows.stride[1] + query * a.out_rows.stride[2];
  const float factor = sum == 0 ? 0 : 1 / sum;
#pragma unroll
  for (int i = 0; i < kMostPairs; ++i)
    if (lane + 32 * i < a.value_dim / 2)
      *reinterpret_cast<uint32_t*>(to + 2 * (lane + 32 * i)) =
          round_pair<D>(out[i].x * factor, out[i].y * factor);
  if (lane == 0 && a.lse != nullptr)
    a.lse[batch * a.lse_stride[0] + head * a.lse_stride[1] + query * a.lse_stride[2]] =
        sum == 0 ? minus_infinity() : (largest + ptx::approximate_log2(sum)) * kLn2;
}

}  // namespace perseid::cuda
