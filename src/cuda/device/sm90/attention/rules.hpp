// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What bias, visible mask and dropout say of one query and one key; and rows in a warp, for those
// that are computed one at a time by these rules.
#pragma once

#include "cuda/device/element.hpp"
#include "cuda/device/ptx/memory_order.hpp"
#include "cuda/device/sm90/attention/config.hpp"
#include "cuda/device/sm90/attention/sequence.hpp"
#include "cuda/device/sm90/attention/softmax.hpp"
#include "math/philox.hpp"
#include "math/score_chain.hpp"

namespace perseid::internal::cuda {

inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// Bits that are all set in an element that is NaN or infinite, and in no other.
template <DType D>
inline constexpr uint32_t kExponentBits = D == DType::kBF16 ? 0x7f80 : 0x7c00;

// Of two packed elements, those that are not finite become 0.
template <DType D>
__device__ __forceinline__ uint32_t finite_or_zero(uint32_t pair) {
  constexpr uint32_t kLow = kExponentBits<D>, kHigh = kLow << 16;
  if ((pair & kLow) == kLow) pair &= 0xffff0000u;
  return (pair & kHigh) == kHigh ? pair & 0xffffu : pair;
}
// Of eight.
template <DType D>
__device__ __forceinline__ uint4 finite_or_zero(uint4 pairs) {
  return {finite_or_zero<D>(pairs.x), finite_or_zero<D>(pairs.y), finite_or_zero<D>(pairs.z),
          finite_or_zero<D>(pairs.w)};
}
template <DType D>
__device__ __forceinline__ bool is_finite(uint4 pairs) {
  const uint4 finite = finite_or_zero<D>(pairs);
  return finite.x == pairs.x && finite.y == pairs.y && finite.z == pairs.z && finite.w == pairs.w;
}
// Of a tensor that TMA loads.
template <DType D>
__device__ __forceinline__ bool is_finite_row(const RowsInMemory& rows, int64_t entry, int64_t head,
                                              int64_t row, int32_t dim) {
  const auto* eight = reinterpret_cast<const uint4*>(row_at<uint16_t>(rows, entry, head, row));
  bool finite = true;
#pragma unroll 1
  for (int32_t i = 0; i < dim / 8; ++i) finite = finite && is_finite<D>(eight[i]);
  return finite;
}

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

// The arithmetic of the score chain (math/score_chain.hpp) in a thread.
struct FloatArithmetic {
  using Scalar = float;
  using Reg = float;
  static __device__ __forceinline__ float set1(float x) { return x; }
  static __device__ __forceinline__ float add(float a, float b) { return a + b; }
  static __device__ __forceinline__ float sub(float a, float b) { return a - b; }
  static __device__ __forceinline__ float mul(float a, float b) { return a * b; }
  static __device__ __forceinline__ float fma(float a, float b, float c) { return fmaf(a, b, c); }
};

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

// A row of a tensor in a warp: each lane has every 32nd element.
template <DType D, int kDim>
struct WarpRow {
  using Element = typename ElementOf<D>::Type;
  static constexpr int kParts = (kDim + 31) / 32;
  float part[kParts];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& each : part) each = 0;
  }
  __device__ __forceinline__ void load(const Element* row, int32_t dim) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kParts; ++i) part[i] = lane + 32 * i < dim ? widen(row[lane + 32 * i]) : 0;
  }
  __device__ __forceinline__ void store(Element* row, int32_t dim, float factor) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      if (lane + 32 * i < dim)
        row[lane + 32 * i].bits = static_cast<uint16_t>(round_pair<D>(part[i] * factor, 0));
  }
  // Elements that are finite stay as they are in memory.
  __device__ __forceinline__ void store_nonfinite(Element* row, int32_t dim, float factor) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const float element = part[i] * factor;
      if (lane + 32 * i < dim && element - element != 0)
        row[lane + 32 * i].bits = static_cast<uint16_t>(round_pair<D>(element, 0));
    }
  }
  // Added to what is there.
  __device__ __forceinline__ void add_to(Element* row, int32_t dim, float factor) const {
    WarpRow sum;
    sum.load_stored(row, dim);
    sum.add(factor, *this);
    sum.store(row, dim, 1);
  }
  template <bool kAdds>
  __device__ __forceinline__ void store_or_add(Element* row, int32_t dim, float factor) const {
    if constexpr (kAdds)
      add_to(row, dim, factor);
    else
      store(row, dim, factor);
  }
  __device__ __forceinline__ void multiply(float factor) {
#pragma unroll
    for (float& each : part) each *= factor;
  }
  __device__ __forceinline__ void add(float factor, const WarpRow& other) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) part[i] = fmaf(factor, other.part[i], part[i]);
  }
  // What the kernel itself has stored: an L1 cache may hold what was there before, if another warp
  // has read the row that ends, or begins, within the same 32 bytes.
  __device__ __forceinline__ void load_stored(const Element* row, int32_t dim) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      part[i] =
          lane + 32 * i < dim ? widen(Element{ptx::load_relaxed(&row[lane + 32 * i].bits)}) : 0;
  }
  __device__ __forceinline__ float product(const WarpRow& other) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) sum = fmaf(part[i], other.part[i], sum);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
  }
  __device__ __forceinline__ bool is_finite() const {
    float nonfinite = 0;
#pragma unroll
    for (const float each : part) nonfinite = fmaf(each, 0, nonfinite);
    return __all_sync(0xffffffffu, nonfinite == 0);
  }
  // All elements are NaN: nothing that is added can change that.
  __device__ __forceinline__ bool is_lost(int32_t dim) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    bool lost = true;
#pragma unroll
    for (int i = 0; i < kParts; ++i) lost = lost && (lane + 32 * i >= dim || part[i] != part[i]);
    return __all_sync(0xffffffffu, lost);
  }
};

}  // namespace perseid::internal::cuda
