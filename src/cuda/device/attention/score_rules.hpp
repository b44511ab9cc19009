// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What bias, visible mask and dropout say of one query and one key.
#pragma once

#include "cuda/device/attention/arguments.hpp"
#include "cuda/device/attention/arithmetic.hpp"
#include "cuda/device/attention/sequence.hpp"
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
__device__ __forceinline__ typename SumOf<D>::Type bias_of(const AttentionArguments& a,
                                                           int32_t batch, int32_t head,
                                                           int32_t query, int32_t key) {
  using Element = typename ElementOf<D>::Type;
  return widen(score_row<Element>(a.bias, batch, head, query)[key * a.bias.stride[3]]);
}
// As a power of two.
template <DType D>
__device__ __forceinline__ typename SumOf<D>::Type bias_log2(const AttentionArguments& a,
                                                             int32_t batch, int32_t head,
                                                             int32_t query, int32_t key) {
  using Real = typename SumOf<D>::Type;
  if constexpr (D == DType::kNone)
    return 0;
  else
    return bias_of<D>(a, batch, head, query, key) * static_cast<Real>(internal::kLog2E);
}
template <class Real>
__device__ __forceinline__ Real scale_log2_of(const AttentionArguments& a) {
  return a.scale_log2;
}
template <>
__device__ __forceinline__ double scale_log2_of<double>(const AttentionArguments& a) {
  return a.scale_log2_f64;
}

template <bool kMasked>
__device__ __forceinline__ bool is_visible(const AttentionArguments& a, int32_t batch, int32_t head,
                                           int32_t query, int32_t key) {
  if constexpr (!kMasked) return true;
  return score_row<uint8_t>(a.visible, batch, head, query)[key * a.visible.stride[3]] != 0;
}
// C: a configuration of attention.
template <auto C>
__device__ __forceinline__ bool is_seen(const AttentionArguments& a,
                                        const AttentionSequence& sequence, int32_t head,
                                        int32_t query, int32_t key) {
  return is_visible<C.visible>(a, sequence.batch, head, score_row_of<C>(a, sequence, query), key);
}

__device__ __forceinline__ Dropout dropout_of(const AttentionArguments& a) {
  if (a.dropout_numbers == nullptr) return {a.dropout_threshold, a.dropout_seed, a.dropout_offset};
  return {a.dropout_threshold, a.dropout_numbers[0], static_cast<uint32_t>(a.dropout_numbers[1])};
}
// What kept weights are multiplied by.
template <bool kDropout, class Real = float>
__device__ __forceinline__ Real dropout_factor(const AttentionArguments& a) {
  if constexpr (!kDropout) return 1;
  if constexpr (sizeof(Real) == sizeof(float)) return a.dropout_factor;
  return Real{256} / static_cast<Real>(a.dropout_threshold);
}
template <bool kDropout>
__device__ __forceinline__ bool is_kept(const AttentionArguments& a, int32_t batch, int32_t head,
                                        int32_t query, int32_t key) {
  if constexpr (!kDropout) return true;
  return dropout_keeps(dropout_of(a), int64_t{batch} * a.heads + head, query, key);
}

// The bytes of rows `row` and row + 8 of whole sequences, two words each, in a tile of columns, of
// which the thread has the pairs of this number. Rows may begin anywhere in their tile: the second
// one may be in the next. A loop, for one copy of the code.
__device__ __forceinline__ PhiloxBlock draw_rows(const Dropout& dropout, int64_t batch_head,
                                                 uint32_t row, int64_t tile_column, uint32_t pair) {
  constexpr auto kRows = static_cast<uint32_t>(kDropoutTileRows);
  const uint32_t first = row / kRows, last = (row + 8) / kRows;
  PhiloxBlock drawn{}, before{};
#pragma unroll 1
  for (uint32_t tile = first; tile <= last; ++tile) {
    before = drawn;
    drawn =
        philox4x32(dropout_counter(dropout, batch_head, tile, tile_column, row % 8 * 4 + pair),
                   static_cast<uint32_t>(dropout.seed), static_cast<uint32_t>(dropout.seed >> 32));
  }
  if (first == last) return drawn;
  return {{before.word[2], before.word[3], drawn.word[0], drawn.word[1]}};
}

}  // namespace perseid::internal::cuda
