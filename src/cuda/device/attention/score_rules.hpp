// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What bias, visible mask and dropout say of one query and one key.
#pragma once

#include "cuda/device/attention/arguments.hpp"
#include "cuda/device/attention/arithmetic.hpp"
#include "cuda/device/element.hpp"
#include "math/philox.hpp"

namespace perseid::internal::cuda {

template <class Element>
__device__ __forceinline__ const Element* score_row(const ScoresInMemory& scores, int64_t batch,
                                                    int64_t head, int64_t query) {
  return static_cast<const Element*>(scores.data) + batch * scores.stride[0] +
         head * scores.stride[1] + query * scores.stride[2];
}

template <DType D>
__device__ __forceinline__ float bias_of(const AttentionArguments& a, int32_t batch, int32_t head,
                                         int32_t query, int32_t key) {
  using Element = typename ElementOf<D>::Type;
  return widen(score_row<Element>(a.bias, batch, head, query)[key * a.bias.stride[3]]);
}
// As a power of two.
template <DType D>
__device__ __forceinline__ float bias_log2(const AttentionArguments& a, int32_t batch, int32_t head,
                                           int32_t query, int32_t key) {
  if constexpr (D == DType::kNone)
    return 0;
  else
    return bias_of<D>(a, batch, head, query, key) * kLog2E;
}

template <bool kMasked>
__device__ __forceinline__ bool is_visible(const AttentionArguments& a, int32_t batch, int32_t head,
                                           int32_t query, int32_t key) {
  if constexpr (!kMasked) return true;
  return score_row<uint8_t>(a.visible, batch, head, query)[key * a.visible.stride[3]] != 0;
}

__device__ __forceinline__ Dropout dropout_of(const AttentionArguments& a) {
  if (a.dropout_numbers == nullptr) return {a.dropout_threshold, a.dropout_seed, a.dropout_offset};
  return {a.dropout_threshold, a.dropout_numbers[0], static_cast<uint32_t>(a.dropout_numbers[1])};
}
// What kept weights are multiplied by.
template <bool kDropout>
__device__ __forceinline__ float dropout_factor(const AttentionArguments& a) {
  return kDropout ? 256.0f / static_cast<float>(a.dropout_threshold) : 1.0f;
}
template <bool kDropout>
__device__ __forceinline__ bool is_kept(const AttentionArguments& a, int32_t batch, int32_t head,
                                        int32_t query, int32_t key) {
  if constexpr (!kDropout) return true;
  return dropout_keeps(dropout_of(a), int64_t{batch} * a.heads + head, query, key);
}

}  // namespace perseid::internal::cuda
