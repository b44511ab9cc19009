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
#include "cuda/device/ptx/mbarrier.hpp"
#include "cuda/device/softmax/access.hpp"

namespace perseid::internal::cuda {

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
struct alignas(2 * sizeof(Real)) Statistics {
  Real maximum, sum;
  static __device__ __forceinline__ Statistics nothing() { return {minus_infinity<Real>(), 0}; }
};

template <class Real>
__device__ __forceinline__ Statistics<Real> merge_two(const Statistics<Real>& a,
                                                      const Statistics<Real>& b) {
  const Real maximum = maximum_of(a.maximum, b.maximum);
  // Not left to the compiler, which may contract one copy of an unrolled loop unlike another.
  return {maximum, fma(a.sum, weight(a.maximum, maximum), b.sum * weight(b.maximum, maximum))};
}

template <int kLanes, class Real>
__device__ __forceinline__ Real sum_of_lanes(Real value) {
#pragma unroll
  for (int other = kLanes / 2; other > 0; other /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, other);
  return value;
}

template <int kLanes, class Real>
__device__ __forceinline__ Real maximum_of_lanes(Real value) {
  if constexpr (kLanes == 32 && sizeof(Real) == 4) {
    // In the order of integers; every NaN is the largest.
    const int bits = __float_as_int(value);
    const int ordered = __reduce_max_sync(0xffffffffu, bits ^ (bits >> 31 & 0x7fffffff));
    return __int_as_float(ordered ^ (ordered >> 31 & 0x7fffffff));
  } else {
#pragma unroll
    for (int other = kLanes / 2; other > 0; other /= 2)
      value = maximum_of(value, __shfl_xor_sync(0xffffffffu, value, other));
    return value;
  }
}

template <int kLanes, class Real>
__device__ __forceinline__ Statistics<Real> merge_lanes(Statistics<Real> own) {
  const Real maximum = maximum_of_lanes<kLanes>(own.maximum);
  return {maximum, sum_of_lanes<kLanes>(own.sum * weight(own.maximum, maximum))};
}

// The merge over all threads of a row. In a block: through shared memory and __syncthreads. In a
// cluster every warp sends its part to all blocks, and each block has a barrier of one phase:
//   1. one thread makes the barrier, arrives at it and has it expect the bytes of all parts;
//   2. a barrier of the cluster (arrived at construction, waited for before the first part is sent)
//      says that all blocks have done so;
//   3. the phase completes when all parts have arrived.
// From 3 on a block reads only its own memory, which no other block writes any more, so that each
// may exit when it is done. No thread waits for its other accesses.
template <SoftmaxConfig C, class Real>
class RowReduction {
 public:
  struct Shared {
    Statistics<Real> part[C.blocks * C.warps];
    uint64_t barrier;
  };

  __device__ __forceinline__ explicit RowReduction(Shared& shared) : shared_(shared) {
    if constexpr (C.blocks > 1) {
      if (threadIdx.x == 0) {
        const uint32_t barrier = ptx::shared_address(&shared_.barrier);
        ptx::mbarrier_init(barrier, 1);
        ptx::mbarrier_init_fence();
        ptx::mbarrier_arrive_expect_tx(barrier, sizeof shared_.part);
      }
      __syncwarp();
      ptx::cluster_arrive();
    }
  }

  __device__ __forceinline__ Statistics<Real> merge(Statistics<Real> own) {
    own = merge_lanes<C.lanes>(own);
    if constexpr (C.warps * C.blocks == 1) return own;
    exchange(own);
    auto whole = Statistics<Real>::nothing();
    for (int i = lane() % kLanes; i < kParts; i += 32) whole = merge_two(whole, shared_.part[i]);
    return merge_lanes<kLanes>(whole);
  }

  __device__ __forceinline__ Real sum(Real own) {
    own = sum_of_lanes<C.lanes>(own);
    if constexpr (C.warps * C.blocks == 1) return own;
    exchange({Real(0), own});
    Real whole = 0;
    for (int i = lane() % kLanes; i < kParts; i += 32) whole += shared_.part[i].sum;
    return sum_of_lanes<kLanes>(whole);
  }

 private:
  static constexpr int kParts = C.warps * C.blocks;
  // Lanes among which the parts are shared out: a power of two.
  static constexpr int kLanes = kParts > 16  ? 32
                                : kParts > 8 ? 16
                                : kParts > 4 ? 8
                                : kParts > 2 ? 4
                                             : kParts;
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ __forceinline__ void exchange(const Statistics<Real>& own) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if constexpr (C.blocks > 1) {
      const int rank = static_cast<int>(ptx::block_of_cluster()) * C.warps + warp;
      ptx::cluster_wait();
      if (lane() < C.blocks) {
        const auto block = static_cast<uint32_t>(lane());
        ptx::send(ptx::address_in_block(&shared_.part[rank], block),
                  ptx::address_in_block(&shared_.barrier, block), own.maximum, own.sum);
      }
      ptx::mbarrier_wait_cluster(ptx::shared_address(&shared_.barrier), 0);
    } else {
      if (lane() == 0) shared_.part[warp] = own;
      __syncthreads();
    }
  }

  Shared& shared_;
};

}  // namespace perseid::internal::cuda
