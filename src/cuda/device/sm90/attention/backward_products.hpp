// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The five products of a step of attention backward on sm_90a, as the WGMMAs of one consumer, and
// the sums of dQ. Each issue_ function issues the WGMMAs of one product and commits them as one
// group; the caller fences before and waits after (ptx/wgmma.hpp).
//
//   issue_scores     S^T = K Q^T, dP^T = V dO^T     64 keys x C.queries, operands in shared memory
//   issue_gradient   dV += P^T dO, dK += dS^T Q     64 keys x dim, left operand in registers
//   issue_dq         dQ = dS K                      64 queries x columns of a slice, dS from shared
//                                                   memory, over all keys of the tile
//
// Scores are transposed (keys are rows), so their fragments are left operands of dV and dK as they
// are. dQ needs dS with queries as rows, for all keys of the tile: store_ds writes each warp's keys
// to shared memory, from which WGMMA reads the transposed operand.
//
// dQ is summed in float32 in global memory, in slices of C.slice_columns() columns: the layout is
// that of the accumulators (AttentionBackwardProblem::sums), so each thread adds 16 contiguous
// bytes at a time.
#pragma once

#include "cuda/device/ptx/ldmatrix.hpp"
#include "cuda/device/ptx/memory.hpp"
#include "cuda/device/ptx/ordering.hpp"
#include "cuda/device/ptx/wgmma.hpp"
#include "cuda/device/sm90/attention/backward_shared.hpp"
#include "cuda/device/sm90/attention/dq_semaphore.hpp"

namespace perseid::internal::cuda {

template <int kCount>
__device__ __forceinline__ void clear_accumulators(float (&d)[kCount]) {
#pragma unroll
  for (float& x : d) x = 0;
}

// d = A B^T, plus d where `accumulate`: the consumer's 64 keys of the tile `keys` and the tile
// `queries` of a step.
template <AttentionBackwardConfig C, int kDim>
__device__ __forceinline__ void issue_scores(float (&d)[C.thread_scores()],
                                             const ConsumerThread<C>& thread,
                                             const SharedTile<C.keys(), kDim>& keys,
                                             const SharedTile<C.queries, kDim>& queries,
                                             bool accumulate = false) {
  const auto left = keys.k_major(thread.first_key());
  const auto right = queries.k_major();
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k)
    ptx::Wgmma<C.queries, C.dtype>::mma_ss(d, left.step(k), right.step(k), accumulate || k > 0);
  ptx::wgmma_commit();
}

// d += A B: P or dS in registers times the tile `rows` of a step's grad_out or query.
template <AttentionBackwardConfig C, int kDim>
__device__ __forceinline__ void issue_gradient(float (&d)[kDim / 2],
                                               const uint32_t (&left)[C.thread_scores() / 2],
                                               const SharedTile<C.queries, kDim>& rows) {
  const auto right = rows.mn_major();
#pragma unroll
  for (int k = 0; k < C.queries / 16; ++k)
    ptx::Wgmma<kDim, C.dtype>::mma_rs(d, left + 4 * k, right.step(k), true);
  ptx::wgmma_commit();
}

// ---- dQ ----

// The consumer's keys of dS^T to shared memory, then visible to WGMMA.
template <AttentionBackwardConfig C>
__device__ __forceinline__ void store_ds(const ConsumerContext<C>& context,
                                         const uint32_t (&ds)[C.thread_scores() / 2], int parity) {
  const ConsumerThread<C>& thread = context.thread;
  const auto to = context.shared.scores(parity);
  const int row = thread.warp_key() + thread.lane % 16;
#pragma unroll
  for (int j = 0; j < C.queries / 8; j += 2) {
    ptx::stmatrix_x4(to.base + to.offset(j / 8, row, j % 8 + thread.lane / 16), ds[2 * j],
                     ds[2 * j + 1], ds[2 * j + 2], ds[2 * j + 3]);
  }
  ptx::fence_proxy_async();
}

// One slice of the step's dQ: dS of its 64 queries times its columns of the tile's keys. kCount is
// half the number of columns.
template <AttentionBackwardConfig C, int kCount>
__device__ __forceinline__ void issue_dq(float (&d)[kCount], const BackwardShared<C>& shared,
                                         int parity, int slice) {
  const auto left = shared.scores(parity).mn_major(slice / C.slices_across() * 64);
  const auto right = shared.key().mn_major(slice % C.slices_across() * C.slice_columns());
#pragma unroll
  for (int k = 0; k < C.keys() / 16; ++k)
    ptx::Wgmma<2 * kCount, C.dtype>::template mma_ss<true, true>(d, left.step(k), right.step(k),
                                                                 k > 0);
  ptx::wgmma_commit();
}

// The consumer's additions to the sums of dQ. In deterministic mode wait() precedes the first
// addition of a step and arrive() follows the last (dq_semaphore.hpp).
template <AttentionBackwardConfig C>
class DqSums {
 public:
  explicit __device__ __forceinline__ DqSums(const ConsumerContext<C>& context) : c_(context) {}

  __device__ __forceinline__ void wait(int number) const {
    if constexpr (C.deterministic)
      ptx::mbarrier_wait(c_.shared.dq_granted(c_.thread.consumer), DqSemaphore<C>::parity(number));
  }
  template <int kCount>
  __device__ __forceinline__ void add(const float (&d)[kCount], const BackwardStep& step,
                                      int slice) const {
    float* to =
        c_.arguments.sums +
        number_of_block<C>(c_.arguments, c_.tile, step.head, step.block) * C.block_floats() +
        slice * C.slice_floats() + c_.thread.warp * (32 * kCount) + c_.thread.lane * 4;
    if (C.deterministic && dq_summands_before<C>(c_.arguments, c_.tile, step.block) == 0) {
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j)
        *reinterpret_cast<float4*>(to + 128 * j) =
            float4{d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]};
    } else {
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j)
        ptx::red_add_v4(to + 128 * j, d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
    }
  }
  __device__ __forceinline__ void arrive() const {
    if constexpr (C.deterministic) c_.thread.arrive(c_.shared.dq_added(c_.thread.consumer));
  }
  // After the last step.
  __device__ __forceinline__ void finish() const {
    if constexpr (C.finishes_early() && !C.deterministic)
      ptx::named_barrier_arrive(kSumsComplete, kSumsCompleteThreads);
  }

 private:
  const ConsumerContext<C> c_;
};

}  // namespace perseid::internal::cuda
