// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// From what threads know of a row to what all of them know: the maximum m and the sum s of
// exp(z - m). Every sum has a fixed order, so that results repeat bit by bit.
//
// Statistics merge as (m1, s1) + (m2, s2) = (m, s1 * exp(m1 - m) + s2 * exp(m2 - m)). Two details:
// - exp(m1 - m) counts as 1 where m1 = m, infinite ones included. A part of a row whose elements
//   are all -inf has m = -inf and, if something in it is visible, s = 1, else s = 0. So (-inf, 0)
//   remains where a row is empty and nowhere else.
// - A maximum that is NaN stays NaN, and makes the sum NaN.
#pragma once

#include "cuda/device/ptx/cluster.hpp"
#include "cuda/device/softmax/access.hpp"

namespace perseid::cuda {

__device__ __forceinline__ float maximum_of(float a, float b) { return ptx::max_or_nan(a, b); }
__device__ __forceinline__ double maximum_of(double a, double b) { return a > b || a != a ? a : b; }

__device__ __forceinline__ float exponential(float x) {
  return ptx::approximate_exp2(x * 1.4426950408889634f);
}
__device__ __forceinline__ double exponential(double x) { return exp(x); }

// exp(part - whole) for the merge.
template <class Real>
__device__ __forceinline__ Real weight(Real part, Real whole) {
  return part == whole ? Real(1) : exponential(part - whole);
}

template <class Real>
__device__ __forceinline__ constexpr Real minus_infinity() {
  return -static_cast<Real>(__builtin_bit_cast(float, 0x7f800000u));
}

template <class Real>
struct Statistics {
  Real maximum = minus_infinity<Real>();
  Real sum = 0;
};

template <int kLanes, class Real>
__device__ __forceinline__ Real sum_of_lanes(Real value) {
#pragma unroll
  for (int other = kLanes / 2; other > 0; other /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, other);
  return value;
}

template <int kLanes, class Real>
__device__ __forceinline__ Statistics<Real> merge_lanes(Statistics<Real> own) {
  Real maximum = own.maximum;
#pragma unroll
  for (int other = kLanes / 2; other > 0; other /= 2)
    maximum = maximum_of(maximum, __shfl_xor_sync(0xffffffffu, maximum, other));
  return {maximum, sum_of_lanes<kLanes>(own.sum * weight(own.maximum, maximum))};
}

// The merge over all threads of a row. In a cluster every warp writes to all blocks, and a barrier
// of the cluster stands where __syncthreads stands in a block:
//   1. all blocks have started (arrived at construction, waited for before the first write);
//   2. all writes are there (every thread arrives after its writes; release and acquire).
// After 2 a block reads its own memory only, so that another may have left.
template <SoftmaxConfig C, class Real>
class RowReduction {
 public:
  struct Shared {
    Real maximum[C.blocks * C.warps];
    Real sum[C.blocks * C.warps];
  };

  __device__ __forceinline__ explicit RowReduction(Shared& shared) : shared_(shared) {
    if constexpr (C.blocks > 1) ptx::cluster_arrive();
  }

  __device__ __forceinline__ Statistics<Real> merge(Statistics<Real> own) {
    own = merge_lanes<C.lanes>(own);
    if constexpr (C.warps * C.blocks == 1) return own;
    exchange(own);
    Statistics<Real> whole;
    for (int i = lane(); i < C.warps * C.blocks; i += 32) {
      const Statistics<Real> next{shared_.maximum[i], shared_.sum[i]};
      const Real maximum = maximum_of(whole.maximum, next.maximum);
      whole = {maximum, whole.sum * weight(whole.maximum, maximum) +
                            next.sum * weight(next.maximum, maximum)};
    }
    return merge_lanes<32>(whole);
  }

  __device__ __forceinline__ Real sum(Real own) {
    own = sum_of_lanes<C.lanes>(own);
    if constexpr (C.warps * C.blocks == 1) return own;
    exchange({Real(0), own});
    Real whole = 0;
    for (int i = lane(); i < C.warps * C.blocks; i += 32) whole += shared_.sum[i];
    return sum_of_lanes<32>(whole);
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ __forceinline__ void exchange(const Statistics<Real>& own) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if constexpr (C.blocks > 1) {
      const int place = static_cast<int>(ptx::block_of_cluster()) * C.warps + warp;
      ptx::cluster_wait();
      if (lane() < C.blocks) {
        const auto block = static_cast<uint32_t>(lane());
        ptx::store_in_block(ptx::address_in_block(&shared_.maximum[place], block), own.maximum);
        ptx::store_in_block(ptx::address_in_block(&shared_.sum[place], block), own.sum);
      }
      __syncwarp();
      ptx::cluster_arrive();
      ptx::cluster_wait();
    } else {
      if (lane() == 0) {
        shared_.maximum[warp] = own.maximum;
        shared_.sum[warp] = own.sum;
      }
      __syncthreads();
    }
  }

  Shared& shared_;
};

}  // namespace perseid::cuda
