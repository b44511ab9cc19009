// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Sums of leaves that wait in memory, where each thread of a consumer reads what it has written
// itself.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal::cuda {

// `to`: the thread's first four; those of the consumer's 128 threads lie side by side.
template <int kSums>
__device__ __forceinline__ void put_leaf_sums(const float (&sums)[kSums], float4* to) {
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i)
    to[128 * i] = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
}
template <int kSums>
__device__ __forceinline__ void add_leaf_sums(const float4* from, float (&sums)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i) {
    const float4 four = from[128 * i];
    sums[4 * i] += four.x, sums[4 * i + 1] += four.y;
    sums[4 * i + 2] += four.z, sums[4 * i + 3] += four.w;
  }
}

}  // namespace perseid::internal::cuda
