// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Elements of 16 or 64 bits that are NaN or infinite, in words and in vectors of 16 bytes.
#pragma once

#include "cuda/device/attention/arithmetic.hpp"
#include "cuda/device/attention/sequence.hpp"
#include "math/dtype.hpp"

namespace perseid::internal::cuda {

// An element as bits.
template <DType D>
struct BitsOf {
  using Type = uint16_t;
};
template <>
struct BitsOf<DType::kF32> {
  using Type = uint32_t;
};
template <>
struct BitsOf<DType::kF64> {
  using Type = uint64_t;
};

// Bits that are all set in an element that is NaN or infinite, and in no other; of float64 in its
// upper word.
template <DType D>
inline constexpr uint32_t kExponentBits = D == DType::kBF16 ? 0x7f80 : 0x7c00;
template <>
inline constexpr uint32_t kExponentBits<DType::kF64> = 0x7ff00000;

// Elements of the packed pair that are not finite become 0.
template <DType D>
__device__ __forceinline__ uint32_t finite_or_zero(uint32_t pair) {
  constexpr uint32_t kLow = kExponentBits<D>, kHigh = kLow << 16;
  if ((pair & kLow) == kLow) pair &= 0xffff0000u;
  return (pair & kHigh) == kHigh ? pair & 0xffffu : pair;
}
// The same for 16 bytes of elements.
template <DType D>
__device__ __forceinline__ uint4 finite_or_zero(uint4 pairs) {
  if constexpr (D == DType::kF64) {
    constexpr uint32_t kBits = kExponentBits<D>;
    if ((pairs.y & kBits) == kBits) pairs.x = pairs.y = 0;
    if ((pairs.w & kBits) == kBits) pairs.z = pairs.w = 0;
    return pairs;
  }
  return {finite_or_zero<D>(pairs.x), finite_or_zero<D>(pairs.y), finite_or_zero<D>(pairs.z),
          finite_or_zero<D>(pairs.w)};
}
template <DType D>
__device__ __forceinline__ bool is_finite(uint4 pairs) {
  const uint4 finite = finite_or_zero<D>(pairs);
  return finite.x == pairs.x && finite.y == pairs.y && finite.z == pairs.z && finite.w == pairs.w;
}
// Reads a row of a tensor. kUnitStride: rows are multiples of 16 bytes; else any strides.
template <DType D, bool kUnitStride = true>
__device__ __forceinline__ bool is_finite_row(const RowsInMemory& rows, int64_t entry, int64_t head,
                                              int64_t row, int32_t dim) {
  bool finite = true;
  if constexpr (D == DType::kF64) {
    const auto* elements = row_at<double>(rows, entry, head, row);
#pragma unroll 1
    for (int32_t i = 0; i < dim; ++i) {
      const double element = elements[i * rows.stride[3]];
      finite = finite && element - element == 0;
    }
  } else if constexpr (kUnitStride) {
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
template <class Real, int kCount>
__device__ __forceinline__ bool sees_nonfinite_values(const Real (&out)[kCount]) {
  using V = typename ArithmeticOf<Real>::Type;
  Real zero[4] = {};
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    zero[i / 4 % 2 * 2] = V::fma(out[i], 0, zero[i / 4 % 2 * 2]);
    zero[i / 4 % 2 * 2 + 1] = V::fma(out[i + 1], 0, zero[i / 4 % 2 * 2 + 1]);
  }
  return __any_sync(0xffffffffu, zero[0] + zero[1] + (zero[2] + zero[3]) != 0);
}

}  // namespace perseid::internal::cuda
