// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What attention backward on sm_90a has to know of a score besides the product: the keys that a
// sequence has, and what bias and visible say of a query and a key.
#pragma once

#include "cuda/device/ptx/math.hpp"
#include "cuda/device/sm90/attention_backward_config.hpp"
#include "math/philox.hpp"

namespace perseid::cuda {

// Query q of the sequence sees keys [q + left, q + right), cut to [0, kv_len).
struct BackwardKeys {
  int32_t kv_len, left, right;
};

template <AttentionBackwardConfig C>
__device__ __forceinline__ BackwardKeys keys_of(const BackwardProblem& a, int32_t batch) {
  BackwardKeys keys{a.kv_len, a.left, a.right};
  if constexpr (C.lengths) {
    const int64_t at = batch * a.kv_lens_stride;
    const int64_t length = a.kv_lens_wide ? static_cast<const int64_t*>(a.kv_lens)[at]
                                          : int64_t{static_cast<const int32_t*>(a.kv_lens)[at]};
    keys.kv_len = static_cast<int32_t>(clamp(length, int64_t{0}, int64_t{a.kv_len}));
    const int32_t shift = a.bottom_right ? keys.kv_len - a.kv_len : 0;
    keys.left += shift;
    keys.right += shift;
  }
  return keys;
}

__device__ __forceinline__ int64_t place_in(const BackwardPlane& plane, int32_t batch, int32_t head,
                                            int32_t query, int32_t key) {
  return batch * plane.stride[0] + head * plane.stride[1] + query * plane.stride[2] +
         key * plane.stride[3];
}
template <AttentionBackwardConfig C>
__device__ __forceinline__ bool is_visible(const BackwardProblem& a, int32_t batch, int32_t head,
                                           int32_t query, int32_t key) {
  if constexpr (C.visible)
    return static_cast<const uint8_t*>(
               a.visible.data)[place_in(a.visible, batch, head, query, key)] != 0;
  return true;
}
// As a power of two.
template <AttentionBackwardConfig C>
__device__ __forceinline__ float bias_log2(const BackwardProblem& a, int32_t batch, int32_t head,
                                           int32_t query, int32_t key) {
  constexpr float kLog2E = 1.44269504f;
  if constexpr (C.bias != DType::kNone) {
    const int64_t at = place_in(a.bias, batch, head, query, key);
    if constexpr (C.bias == DType::kF32)
      return static_cast<const float*>(a.bias.data)[at] * kLog2E;
    else if constexpr (C.bias == DType::kBF16)
      return convert<float>(static_cast<const bf16*>(a.bias.data)[at]) * kLog2E;
    else
      return convert<float>(static_cast<const f16*>(a.bias.data)[at]) * kLog2E;
  }
  return 0;
}

__device__ __forceinline__ Dropout dropout_of(const BackwardProblem& a) {
  if (a.dropout_numbers == nullptr) return {a.dropout_threshold, a.dropout_seed, a.dropout_offset};
  return {a.dropout_threshold, a.dropout_numbers[0], static_cast<uint32_t>(a.dropout_numbers[1])};
}
// What kept weights are multiplied by.
template <AttentionBackwardConfig C>
__device__ __forceinline__ float dropout_factor(const BackwardProblem& a) {
  return C.dropout ? 256.0f / static_cast<float>(a.dropout_threshold) : 1.0f;
}
template <AttentionBackwardConfig C>
__device__ __forceinline__ bool is_kept(const BackwardProblem& a, int32_t batch, int32_t head,
                                        int32_t query, int32_t key) {
  if constexpr (C.dropout)
    return dropout_keeps(dropout_of(a), int64_t{batch} * a.kv_heads * a.group + head, query, key);
  return true;
}

}  // namespace perseid::cuda
