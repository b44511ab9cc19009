// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Few queries and many keys: attention_forward takes the keys in parts, and this kernel puts the
// parts of each row together. With L the logarithms of the parts' sums and O their results:
//
//   out = sum(2^(L - max L) * O) / sum(2^(L - max L))
//
// A warp has 32 columns of a row, and reads 32 parts at once: what takes the time is waiting for
// them. Parts are added in their order, however many blocks computed them, and there are as many as
// the length of the keys says: a row's result does not depend on which others are in the batch.
// Blocks are small enough to lie beside those of the kernels before and after.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/sm90/attention_scores.hpp"

namespace perseid::cuda {

template <DType D>
__global__ void __launch_bounds__(32 * kRowWarps, 8)
    attention_merge(const __grid_constant__ AttentionForwardArguments a) {
  constexpr int kTogether = 32;
  ptx::let_next_kernel_start();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t warp = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / 32;
  const int pieces = (a.value_dim + 31) / 32;
  const auto row = static_cast<int>(warp / pieces);
  const int column = static_cast<int>(warp % pieces) * 32 + lane;
  const int heads = a.heads << a.pack, length = a.ragged ? a.total_q : a.q_len;
  const int query = row % length, head = row / length % heads, batch = row / length / heads;
  const bool own = column < a.value_dim;
  ptx::wait_for_kernels_before();
  if (row >= a.rows) return;
  // Rows behind the last sequence belong to nobody.
  if (a.ragged && query >= read_length(a.cumulative_q, a.batch, a.total_q)) return;

  float out = 0, largest = minus_infinity(), sum = 0;  // sum: of the lane's parts
#pragma unroll 1
  for (int first = 0; first < a.parts; first += kTogether) {
    const int64_t at = int64_t{first} * a.rows + row;
    const float own_sum =
        first + lane < a.parts ? a.part_sums[at + lane * a.rows] : minus_infinity();
    float results[kTogether];
#pragma unroll
    for (int p = 0; p < kTogether; ++p)
      results[p] =
          own && first + p < a.parts ? a.part_results[(at + p * a.rows) * a.value_dim + column] : 0;
    float now = fmaxf(largest, own_sum);
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, step));
    const float shift = now == minus_infinity() ? 0 : now;
    const float factor = ptx::approximate_exp2(largest - shift);
    const float weight = ptx::approximate_exp2(own_sum - shift);
    largest = now;
    sum = fmaf(sum, factor, weight);
    out *= factor;
#pragma unroll
    for (int p = 0; p < kTogether; ++p)
      out = fmaf(__shfl_sync(0xffffffffu, weight, p), results[p], out);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);

  if (own)
    row_at<uint16_t>(a.out_rows, batch, head, query)[column] =
        static_cast<uint16_t>(round_pair<D>(sum == 0 ? 0 : out / sum, 0));
  if (column == 0 && a.lse != nullptr)
    a.lse[batch * a.lse_stride[0] + head * a.lse_stride[1] + query * a.lse_stride[2]] =
        sum == 0 ? minus_infinity() : (largest + ptx::approximate_log2(sum)) * kLn2;
}

}  // namespace perseid::cuda
