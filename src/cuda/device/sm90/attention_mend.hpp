// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What masked keys hold must not reach the rows that do not see them. But a weight of 0 times a
// value that is NaN or infinite is NaN, so that the tensor cores let it through wherever such a key
// shares a tile with keys that are seen. The products do not tell; their results do, at the cost of
// one multiply-add for each: attention_forward notes that some result is not finite, and then this
// kernel, which is launched behind it under every mask, computes each row with such a result again,
// key by key, reading what the row sees and nothing else. Otherwise it ends at once.
//
// A warp has a row, its lanes every 32nd element.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/sm90/attention_scores.hpp"

namespace perseid::cuda {

// Row `query` of a sequence, in one head. `tile` has the sequence.
template <AttentionForwardConfig C>
__device__ __forceinline__ void mend_row(const AttentionForwardArguments& a,
                                         const AttentionTile& tile, int head, int query) {
  using Element = typename ElementOf<C.dtype>::Type;
  constexpr int kKeyParts = (C.key_dim + 31) / 32, kValueParts = (C.value_dim + 31) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int entry = C.lengths && a.ragged ? 0 : tile.batch;
  const auto row_at = [entry](const RowsInMemory& rows, int own_head, int row) {
    return static_cast<Element*>(rows.data) + entry * rows.stride[0] + own_head * rows.stride[1] +
           row * rows.stride[2];
  };
  Element* to = row_at(a.out_rows, head, tile.q_begin + query);
  float unusual = 0;
#pragma unroll
  for (int i = lane; i < C.value_dim; i += 32)
    if (i < a.value_dim) unusual = fmaf(widen(to[i]), 0, unusual);
  if (!__any_sync(~0u, unusual != 0)) return;

  const ScoreRules<C> rules(a, 0, lane);
  const int kv_head = head / (a.group << a.pack);
  const Element* query_row = row_at(a.query_rows, head, tile.q_begin + query);
  float own[kKeyParts], out[kValueParts] = {}, maximum = minus_infinity(), sum = 0;
#pragma unroll
  for (int i = 0; i < kKeyParts; ++i)
    own[i] = lane + 32 * i < a.head_dim ? widen(query_row[lane + 32 * i]) : 0;
  const int begin = C.left ? max(query + tile.left, 0) : 0;
  const int end = C.right ? min(query + tile.right, tile.kv_len) : tile.kv_len;
#pragma unroll 1
  for (int key = begin; key < end; ++key) {
    if (!rules.is_visible(tile, head, query, key)) continue;
    const Element* key_row = row_at(a.key_rows, kv_head, tile.kv_begin + key);
    float product = 0;
#pragma unroll
    for (int i = 0; i < kKeyParts; ++i)
      if (lane + 32 * i < a.head_dim)
        product = fmaf(own[i], widen(key_row[lane + 32 * i]), product);
#pragma unroll
    for (int i = 16; i > 0; i /= 2) product += __shfl_xor_sync(~0u, product, i);
    const float score = fmaf(product, a.scale_log2, rules.bias_of(tile, head, query, key));
    const float now = fmaxf(maximum, score);
    const float before = maximum == minus_infinity() ? 0 : ptx::approximate_exp2(maximum - now);
    const float weight = now == minus_infinity() ? 0 : ptx::approximate_exp2(score - now);
    const float kept = rules.is_kept(tile, head, query, key) ? weight : 0;
    sum = fmaf(sum, before, weight);
    maximum = now;
    const Element* value_row = row_at(a.value_rows, kv_head, tile.kv_begin + key);
#pragma unroll
    for (int i = 0; i < kValueParts; ++i)
      if (lane + 32 * i < a.value_dim)
        out[i] = fmaf(out[i], before, kept * widen(value_row[lane + 32 * i]));
  }
#pragma unroll
  for (int i = 0; i < kValueParts; ++i)
    if (lane + 32 * i < a.value_dim) {
      const float result = sum == 0 ? 0 : out[i] / sum * rules.dropout_factor();
      to[lane + 32 * i].bits = static_cast<uint16_t>(round_pair<C.dtype>(result, 0));
    }
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
    AttentionTile tile{};
    find_sequence<C>(a, batch, tile);
    const int64_t rows = int64_t{heads} * tile.q_len;
#pragma unroll 1
    for (int64_t row = warp; row < rows; row += warps)
      mend_row<C>(a, tile, static_cast<int>(row / tile.q_len), static_cast<int>(row % tile.q_len));
  }
}

}  // namespace perseid::cuda
