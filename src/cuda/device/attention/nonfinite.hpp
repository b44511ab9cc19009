// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Elements of 16 bits that are NaN or infinite, in packs of two and eight.
#pragma once

#include "cuda/device/attention/sequence.hpp"
#include "math/dtype.hpp"

namespace perseid::internal::cuda {

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
// Of a row of a tensor. kUnitStride: rows are multiples of 16 bytes; else any strides.
template <DType D, bool kUnitStride = true>
__device__ __forceinline__ bool is_finite_row(const RowsInMemory& rows, int64_t entry, int64_t head,
                                              int64_t row, int32_t dim) {
  bool finite = true;
  if constexpr (kUnitStride) {
    const auto* eight = reinterpret_cast<const uint4*>(row_at<uint16_t>(rows, entry, head, row));
#pragma unroll 1
    for (int32_t i = 0; i < dim / 8; ++i) finite = finite && is_finite<D>(eight[i]);
  } else {
    const auto* elements = row_at<uint16_t>(rows, entry, head, row);
#pragma unroll 1
    for (int32_t i = 0; i < dim; ++i) {
      const uint32_t element = elements[i * rows.stride[3]];
      finite = finite && finite_or_zero<D>(element) == element;
    }
  }
  return finite;
}

// Whether results of a warp tell that values are not finite. Such an element, seen or hidden, makes
// its column non-finite in all rows, since 0 times it is NaN: testing the first row of each thread
// of an accumulator is enough. Four chains of additions instead of one that is four times as long.
template <int kCount>
__device__ __forceinline__ bool sees_nonfinite_values(const float (&out)[kCount]) {
  float zero[4] = {};
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    zero[i / 4 % 2 * 2] = fmaf(out[i], 0, zero[i / 4 % 2 * 2]);
    zero[i / 4 % 2 * 2 + 1] = fmaf(out[i + 1], 0, zero[i / 4 % 2 * 2 + 1]);
  }
  return __any_sync(0xffffffffu, zero[0] + zero[1] + (zero[2] + zero[3]) != 0);
}

}  // namespace perseid::internal::cuda
