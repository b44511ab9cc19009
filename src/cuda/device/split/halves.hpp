// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A float32 number as two of f16, for products at float32 accuracy on tensor cores.
//
// The numbers x of a line (a row of a, a column of b) have one power of two, 2^e, that brings the
// largest just below 2^15:
//
//   x 2^e = high + low 2^-12       high = f16(x 2^e), low = f16((x 2^e - high) 2^12)
//
// With 11 bits each and low's sign they hold x to 2^-23 of itself down to 2^-28 of the line's
// largest number, and to 2^-52 of the largest below. A product of two such numbers is
//
//   (high + low 2^-12) (high' + low' 2^-12) 2^-(e + e')
//     = (high high' + (low high' + high low') 2^-12) 2^-(e + e')      without low low' 2^-24
//
// whose factors of 2^12 keep the small products apart: they are summed for themselves.
//
// Range. A line is refused, and left to multiply-add in float32, where it has a NaN or an infinity,
// where its largest number is 2^64 or more or below 2^-64 (and not 0), or where more than 1 of 256
// numbers are lost: not 0, and below 2^-28 / (min(k, 252) + 4) of the largest. What is not lost is
// held to (k + 4) 2^-24 of itself: the error that a sum of k products in float32 may have anyway.
#pragma once

#include "cuda/device/element.hpp"

namespace perseid::internal::cuda {

inline constexpr uint32_t kLowHalfExponent = 12;
inline constexpr float kLowHalfScale = 1 << kLowHalfExponent;

// ---- Of a line whose largest magnitude has these bits ----

__device__ __forceinline__ bool splits(uint32_t largest) {
  constexpr uint32_t kFirst = (127 - 64) << 23, kEnd = (127 + 64) << 23;
  return largest == 0 || (kFirst <= largest && largest < kEnd);
}
// 2^e; 1 for a line that does not split, or has nothing but zeros.
__device__ __forceinline__ float split_scale(uint32_t largest) {
  if (largest == 0 || !splits(largest)) return 1;
  return float_from_bits((127 + 14 + 127 - (largest >> 23)) << 23);
}
// 2^-e.
__device__ __forceinline__ float split_factor(uint32_t largest) {
  if (largest == 0 || !splits(largest)) return 1;
  return float_from_bits(((largest >> 23) - 14) << 23);
}
// The bits of the magnitude below which a number is lost.
__device__ __forceinline__ uint32_t lost_below(uint32_t largest, int64_t depth) {
  const auto terms = static_cast<float>(min<int64_t>(depth, 252) + 4);
  return float_bits(float_from_bits(largest) * (0x1p-28f / terms));
}

// ---- Numbers, already times 2^e ----

// Two numbers as pairs of halves, the first in the low 16 bits.
struct HalfPairs {
  uint32_t high, low;
};
__device__ __forceinline__ HalfPairs split_pair(float x, float y) {
  const uint32_t high = ptx::to_f16x2(x, y);
  const float2 kept = widen_pair<DType::kF16>(high);
  return {high, ptx::to_f16x2((x - kept.x) * kLowHalfScale, (y - kept.y) * kLowHalfScale)};
}

}  // namespace perseid::internal::cuda
