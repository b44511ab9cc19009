// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax of a tile of scores that lies in accumulator registers: 16 rows of a warp, in the layout
// of ptx/mma.hpp and ptx/wgmma.hpp. A thread has parts of two rows, the four lanes of a quad share
// them.
//
// Weights are 2^(scale_log2 * (score - m)). m follows the largest score of its row, but not at
// once: sums and results stay as they are while a new largest weight is at most half of the sum
// before it. The true maximum is not needed, since m cancels when the row is divided by its sum.
// But it decides how weights are rounded to 16 bits: the maximum's own weight is 2^0, which is
// exact. So m follows at once in peaked rows; where all weights are small shares, rounding errors
// average out. (Following at a quarter or an eighth is not more accurate and takes 1 and 2 %
// longer.) No weight exceeds 2^kMostLag, which both 16-bit types hold as exactly as 1.
#pragma once

#include "cuda/device/attention/arithmetic.hpp"
#include "cuda/device/element.hpp"
#include "cuda/device/ptx/math.hpp"
#include "math/dtype.hpp"
#include "math/least_score.hpp"

namespace perseid::internal::cuda {

inline constexpr float kMostLag = 8;  // powers of two
// kLeastScore in units of log2.
inline constexpr float kLeastPower = kLeastScore * 1.4426950408889634f;

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
template <class Real>
__device__ __forceinline__ Real quad_sum(Real x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// The thread's kCount elements of a row that lie in [begin, end), as bits; columns count from its
// first one, and it has two of every eight.
template <bool kLeft, int kCount>
__device__ __forceinline__ uint32_t elements_between(int begin, int end) {
  static_assert(kCount <= 32);
  const auto before = [](int column) {
    const auto after_first = static_cast<uint32_t>(max(column, 0));
    const uint32_t count = after_first / 8 * 2 + min(after_first % 8, 2u);
    return count >= 32 ? ~0u : (1u << count) - 1;
  };
  return kLeft ? before(end) & ~before(begin) : before(end);
}
// Scores whose bits are not set become -inf, or weights `hidden`.
template <int kCount>
__device__ __forceinline__ void hide_scores(float (&scores)[kCount], const uint32_t (&seen)[2],
                                            float hidden = minus_infinity()) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int element = i / 4 * 2 + i % 2;
    if ((seen[i / 2 % 2] & 1u << element) == 0) scores[i] = hidden;
  }
}

// The two rows of a thread.
struct RowStatistics {
  float maximum[2];  // m
  float limit[2];    // m follows scores above it
  float sum[2];      // of the thread's own columns
};

// Scores may exceed m from here on until their weight is half of the row's sum. Whole quads call
// it.
__device__ __forceinline__ float limit_of(const RowStatistics& rows, int r, float scale_log2) {
  const float unscale = fminf(ptx::approximate_reciprocal(scale_log2), 0x1.fffffep127f);
  const float lag = ptx::approximate_log2(quad_sum(rows.sum[r])) - 1;
  return fmaf(fminf(fmaxf(lag, 0), kMostLag), unscale, rows.maximum[r]);
}
__device__ __forceinline__ void set_limits(RowStatistics& rows, float scale_log2) {
#pragma unroll
  for (int r = 0; r < 2; ++r) rows.limit[r] = limit_of(rows, r, scale_log2);
}

// The largest of the thread's scores of each row.
template <int kCount>
__device__ __forceinline__ void largest_scores(const float (&scores)[kCount], float (&of_row)[2]) {
  float largest[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
  for (int i = 4; i < kCount; ++i) largest[i % 4] = fmaxf(largest[i % 4], scores[i]);
#pragma unroll
  for (int r = 0; r < 2; ++r) of_row[r] = fmaxf(largest[2 * r], largest[2 * r + 1]);
}
// What a row's sums are to be multiplied by when m has followed.
template <bool kDropout>
__device__ __forceinline__ float follow_factor(float before, float now, float scale_log2) {
  return weight_of<kDropout>((before - (now == minus_infinity() ? 0 : now)) * scale_log2);
}
// The addend of scaled scores in the exponent.
template <bool kDropout>
__device__ __forceinline__ float power_shift(float maximum, float scale_log2) {
  const float top = maximum * scale_log2;
  return top <= kLeastPower ? 0 : -top * kPowerPart<kDropout>;
}

// Turns scores into weights. `factor`: what earlier sums and results of the rows are to be
// multiplied by.
template <bool kFirst, bool kDropout, int kCount>
__device__ __forceinline__ void online_softmax(float (&scores)[kCount], float scale_log2,
                                               RowStatistics& rows, float (&factor)[2]) {
  float largest[2], shift[2];
  largest_scores(scores, largest);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float now = quad_max(largest[r]);
    const float before = rows.maximum[r];
    if constexpr (kFirst) {
      factor[r] = 1;
    } else {
      now = now > rows.limit[r] ? now : before;
      factor[r] = follow_factor<kDropout>(before, now, scale_log2);
    }
    rows.maximum[r] = now;
    shift[r] = power_shift<kDropout>(now, scale_log2);
  }
  const float scale = scale_log2 * kPowerPart<kDropout>;
  float sum[4] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    scores[i] = weight_of_part<kDropout>(fmaf(scores[i], scale, shift[i / 2 % 2]));
    sum[i % 4] = i < 4 ? scores[i] : sum[i % 4] + scores[i];
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float own = sum[2 * r] + sum[2 * r + 1];
    rows.sum[r] = kFirst ? own : rows.sum[r] * factor[r] + own;
  }
}

// Weights as the left operand of the product with values.
template <DType D, int kCount>
__device__ __forceinline__ void round_weights(const float (&scores)[kCount],
                                              uint32_t (&weights)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) weights[i] = round_pair<D>(scores[2 * i], scores[2 * i + 1]);
}

// Returns at once if m has followed in no row of the warp, unless all rows are to get new limits.
// Otherwise only rows in which it has followed get one, so that a row's bits do not depend on its
// neighbours.
template <int kCount>
__device__ __forceinline__ void rescale(float (&out)[kCount], const float (&factor)[2],
                                        float scale_log2, RowStatistics& rows,
                                        bool all_limits = false) {
  if (!__any_sync(0xffffffffu, factor[0] != 1 || factor[1] != 1 || all_limits)) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) out[i] *= factor[i / 2 % 2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float limit = limit_of(rows, r, scale_log2);
    rows.limit[r] = factor[r] != 1 || all_limits ? limit : rows.limit[r];
  }
}

}  // namespace perseid::internal::cuda
