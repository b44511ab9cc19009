// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What masked keys hold must not reach the rows that do not see them. But a weight of 0 times a
// value that is NaN or infinite is NaN, so that the tensor cores let it through wherever such a key
// shares a tile with keys that are seen. The products do not tell; their results do, at the cost of
// one multiply-add for each: attention_forward notes where some result is not finite, and computes
// each row with such a result again when it has no tiles left, key by key, reading what the row
// sees and nothing else. Where the keys were split, a kernel behind the merge does so, and ends at
// once if nothing was noted.
//
// A warp has a row, its lanes every 32nd element.
#pragma once

#include "cuda/device/ptx/barrier.hpp"
#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/sm90/attention_config.hpp"
#include "cuda/device/sm90/attention_row.hpp"
#include "cuda/device/sm90/attention_sequence.hpp"

namespace perseid::cuda {

// Row `query` of a sequence, in one head.
template <AttentionForwardConfig C>
__device__ __forceinline__ void mend_row(const AttentionForwardArguments& a,
                                         const AttentionSequence& sequence, int head, int query) {
  WarpRow<C.dtype, C.key_dim> own, key;
  WarpRow<C.dtype, C.value_dim> out, value;
  using Element = typename ElementOf<C.dtype>::Type;
  const int batch = sequence.batch, entry = entry_of<C.lengths>(a, batch);
  const int kv_head = head / (a.group << a.pack);
  Element* to = row_at<Element>(a.out_rows, entry, head, sequence.q_begin + query);
  out.load_stored(to, a.value_dim);
  if (out.is_finite()) return;

  own.load(row_at<Element>(a.query_rows, entry, head, sequence.q_begin + query), a.head_dim);
  out.clear();
  float maximum = minus_infinity(), sum = 0;
  const int begin = C.left ? max(query + sequence.left, 0) : 0;
  const int end = C.right ? min(query + sequence.right, sequence.kv_len) : sequence.kv_len;
#pragma unroll 1
  for (int k = begin; k < end; ++k) {
    if (!is_visible<C.visible>(a, batch, head, query, k)) continue;
    key.load(row_at<Element>(a.key_rows, entry, kv_head, sequence.kv_begin + k), a.head_dim);
    value.load(row_at<Element>(a.value_rows, entry, kv_head, sequence.kv_begin + k), a.value_dim);
    const float score =
        fmaf(own.product(key), a.scale_log2, bias_log2<C.bias>(a, batch, head, query, k));
    const float now = fmaxf(maximum, score);
    const float before = maximum == minus_infinity() ? 0 : ptx::approximate_exp2(maximum - now);
    // NaN stays NaN.
    const float weight = score == minus_infinity() ? 0 : ptx::approximate_exp2(score - now);
    sum = fmaf(sum, before, weight);
    maximum = now;
    out.multiply(before);
    out.add(is_kept<C.dropout>(a, batch, head, query, k) ? weight : 0, value);
  }
  if (sum == 0) out.clear();
  out.store(to, a.value_dim, sum == 0 ? 0 : dropout_factor<C.dropout>(a) / sum);
}

template <AttentionForwardConfig C>
__global__ void __launch_bounds__(32 * kRowWarps)
    attention_mend(const __grid_constant__ AttentionForwardArguments a) {
  ptx::let_next_kernel_start();
  ptx::wait_for_kernels_before();
  if (ptx::load_acquire(&a.counter->unusual) != a.launch) return;
  const int heads = a.heads << a.pack, warps = static_cast<int>(gridDim.x) * kRowWarps;
  const int warp = static_cast<int>(blockIdx.x) * kRowWarps + static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
  for (int batch = 0; batch < a.batch; ++batch) {
    const AttentionSequence sequence = find_sequence<C.lengths>(a, batch);
    const int64_t rows = int64_t{heads} * sequence.q_len;
#pragma unroll 1
    for (int64_t row = warp; row < rows; row += warps)
      mend_row<C>(a, sequence, static_cast<int>(row / sequence.q_len),
                  static_cast<int>(row % sequence.q_len));
  }
}

}  // namespace perseid::cuda
