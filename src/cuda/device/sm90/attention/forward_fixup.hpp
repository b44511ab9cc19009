// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Fixup of attention forward: NaN and infinity of values that a row sees.
//
// The second pass over a Q tile (forward_consumer.hpp) clears non-finite elements of values, so
// that those of hidden keys leave no trace. A row that sees such an element then needs what the
// formula says: a warp computes the row once more, key by key, and stores its non-finite results.
// Without split-KV the consumers do this after their second pass; with split-KV the kernel
// attention_fixup runs after attention_combine and returns at once if no tile was listed.
//
// A warp has a row, a lane every 32nd element.
#pragma once

#include "cuda/device/attention/nonfinite.hpp"
#include "cuda/device/attention/score_rules.hpp"
#include "cuda/device/attention/sequence.hpp"
#include "cuda/device/attention/warp_row.hpp"
#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/ptx/memory_order.hpp"
#include "cuda/device/sm90/attention/config.hpp"
#include "math/score_chain.hpp"

namespace perseid::internal::cuda {

// Keys that the masks of rows let a query see: [begin, end).
template <AttentionForwardConfig C>
struct SeenKeys {
  int begin, end;

  __device__ __forceinline__ SeenKeys(const AttentionSequence& sequence, int query)
      : begin(C.left ? max(query + sequence.left, 0) : 0),
        end(C.right ? min(query + sequence.right, sequence.kv_len) : sequence.kv_len) {}
};

// Whether the row sees a non-finite element of values. A lane tests every 32nd key.
template <AttentionForwardConfig C>
__device__ __forceinline__ bool sees_nonfinite(const AttentionForwardArguments& a,
                                               const AttentionSequence& sequence, int head,
                                               int query) {
  const int batch = sequence.batch, entry = entry_of<C.lengths>(a, batch);
  const int kv_head = head / (a.group << a.pack_gqa);
  const SeenKeys<C> keys(sequence, query);
  bool found = false;
#pragma unroll 1
  for (int k = keys.begin + static_cast<int>(threadIdx.x) % 32; k < keys.end && !found; k += 32) {
    if (!is_visible<C.visible>(a, batch, head, query, k)) continue;
    found =
        !is_finite_row<C.dtype>(a.value_rows, entry, kv_head, sequence.kv_begin + k, a.value_dim);
  }
  return __any_sync(0xffffffffu, found);
}

// Computes row `query` of one head again. Not inlined, to keep its code out of the kernel's loops.
template <AttentionForwardConfig C>
__device__ __noinline__ void fixup_row(const AttentionForwardArguments& a,
                                       const AttentionSequence& sequence, int head, int query) {
  WarpRow<C.dtype, C.key_dim> own, key;
  WarpRow<C.dtype, C.value_dim> out, value;
  using Element = typename ElementOf<C.dtype>::Type;
  const int batch = sequence.batch, entry = entry_of<C.lengths>(a, batch);
  const int kv_head = head / (a.group << a.pack_gqa);
  Element* to = row_at<Element>(a.out_rows, entry, head, sequence.q_begin + query);
  out.load_stored(to, a.value_dim);
  if (out.is_lost(a.value_dim) || !sees_nonfinite<C>(a, sequence, head, query)) return;

  own.load(row_at<Element>(a.query_rows, entry, head, sequence.q_begin + query), a.head_dim);
  out.clear();
  float maximum = minus_infinity(), sum = 0;
  const SeenKeys<C> keys(sequence, query);
#pragma unroll 1
  for (int k = keys.begin; k < keys.end; ++k) {
    if (!is_visible<C.visible>(a, batch, head, query, k)) continue;
    key.load(row_at<Element>(a.key_rows, entry, kv_head, sequence.kv_begin + k), a.head_dim);
    value.load(row_at<Element>(a.value_rows, entry, kv_head, sequence.kv_begin + k), a.value_dim);
    const float score = score_log2<FloatArithmetic>(own.product(key), a.scale_log2,
                                                    bias_log2<C.bias>(a, batch, head, query, k),
                                                    Modifier<C.modifier, float>{a.modifier});
    const float now = fmaxf(maximum, score);
    const float factor = maximum == minus_infinity() ? 0 : ptx::approximate_exp2(maximum - now);
    // A NaN score keeps a NaN weight.
    const float weight = score == minus_infinity() ? 0 : ptx::approximate_exp2(score - now);
    sum = fmaf(sum, factor, weight);
    maximum = now;
    out.multiply(factor);
    out.add(is_kept<C.dropout>(a, batch, head, query, k) ? weight : 0, value);
  }
  if (sum == 0) return;
  out.store_nonfinite(to, a.value_dim, dropout_factor<C.dropout>(a) / sum);
}

template <AttentionForwardConfig C>
__global__ void __launch_bounds__(32 * kRowWarps)
    attention_fixup(const __grid_constant__ AttentionForwardArguments a) {
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  if (ptx::load_acquire(&a.counter->nonfinite) != a.launch) return;
  const int heads = a.heads << a.pack_gqa, warps = static_cast<int>(gridDim.x) * kRowWarps;
  const int warp = static_cast<int>(blockIdx.x) * kRowWarps + static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
  for (int batch = 0; batch < a.batch; ++batch) {
    const AttentionSequence sequence = find_sequence<C.lengths>(a, batch);
    const int64_t rows = int64_t{heads} * sequence.q_len;
#pragma unroll 1
    for (int64_t row = warp; row < rows; row += warps)
      fixup_row<C>(a, sequence, static_cast<int>(row / sequence.q_len),
                   static_cast<int>(row % sequence.q_len));
  }
}

}  // namespace perseid::internal::cuda
