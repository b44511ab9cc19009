// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Split-K of matmul (matmul.hpp): several blocks, or one block at several times, compute the splits
// of a tile (math/split_k.hpp).
//
//   consumer   | steps of a split | sums to the workspace | counts | all splits are counted:
//                                                                    adds their sums, epilogue
//
// The consumer that counts last adds the sums in ascending order of k, whichever split is its own,
// so that bits repeat. It finds all of them: no block waits for another one. The two consumers of a
// block have different rows of the tile, and counters of their own.
//
// Counters. A counter holds the upper bits of the launch's number and how many splits are counted.
// The scheduler prepares those of its block's units before they are counted, of units that it takes
// before it announces them; whichever block of a tile comes first replaces what lies there. The
// last split clears the counter: a captured launch has the same number in each replay.
//
// Memory order. The threads of a consumer write their sums; a barrier orders them before the
// thread that counts, with release and acquire order. The last count acquires the sums of all, and
// a barrier shows them to the threads that read.
#pragma once

#include "cuda/device/ptx/memory_order.hpp"
#include "cuda/device/sm90/matmul/shared.hpp"

namespace perseid::internal::cuda {

// The steps along k of a tile, or of a split of it.
template <Sm90MatmulConfig C>
__device__ __forceinline__ StepRange steps_of(const Sm90MatmulArguments& arguments,
                                              const MatmulTilePosition& tile) {
  if constexpr (C.split_k) {
    const int splits = arguments.splits.split.splits;
    if (tile.unit != 0)
      return steps_of_split(arguments.k_steps, C.group(), splits, (tile.unit - 1) % splits);
  }
  return {0, arguments.k_steps};
}

struct MatmulSplitCounter {
  static constexpr uint64_t kCount = 0xffffff;
  uint64_t* at;

  // The counter of a unit's tile.
  template <Sm90MatmulConfig C>
  static __device__ __forceinline__ MatmulSplitCounter of(const MatmulSplits& splits, int unit,
                                                          int consumer) {
    return {splits.counters + (unit - 1) / splits.split.splits * C.consumers + consumer};
  }
  __device__ __forceinline__ void prepare(uint64_t launch) const {
    const uint64_t zero = launch & ~kCount;
    for (uint64_t seen = ptx::load_relaxed(at); (seen & ~kCount) != zero;) {
      const uint64_t before = ptx::compare_and_swap(at, seen, zero);
      if (before == seen) return;
      seen = before;
    }
  }
  // Whether all splits are counted.
  __device__ __forceinline__ bool count(int splits) const {
    if (static_cast<int>(ptx::fetch_add(at, 1) & kCount) + 1 < splits) return false;
    ptx::store_relaxed(at, 0);
    return true;
  }
};

// A consumer's part of split tiles.
template <Sm90MatmulConfig C>
class MatmulConsumerSplits {
  using Shared = MatmulShared<C>;
  static constexpr int kSums = C.columns / 2, kFours = kSums / 4, kThreads = 128;
  static constexpr int kStride = C.consumers * kFours * kThreads;  // from unit to unit
  static constexpr int kTogether = kFours <= 16 ? 32 / kFours : 1;

 public:
  __device__ __forceinline__ MatmulConsumerSplits(const Sm90MatmulArguments& arguments,
                                                  const Shared& shared, int consumer)
      : splits_(arguments.splits), shared_(shared), consumer_(consumer) {}

  // Whether `sums`, those of the tile's split, were the last ones: they are those of all of k then.
  __device__ __forceinline__ bool complete(const MatmulTilePosition& tile,
                                           float (&sums)[kSums]) const {
    const int thread = static_cast<int>(threadIdx.x) % kThreads, barrier = 2 + consumer_;
    float4* const own = sums_of(tile.unit - 1) + thread;
#pragma unroll
    for (int i = 0; i < kSums; i += 4)
      __stcg(own + i / 4 * kThreads, float4{sums[i], sums[i + 1], sums[i + 2], sums[i + 3]});
    ptx::named_barrier_sync(barrier, kThreads);
    const int splits = splits_.split.splits;
    bool last = false;
    if (thread == 0) {
      ptx::mbarrier_wait(shared_.counters_ready(), 0);
      last = MatmulSplitCounter::of<C>(splits_, tile.unit, consumer_).count(splits);
    }
    if (!ptx::named_barrier_any(barrier, kThreads, last)) return false;

    const float4* const from = sums_of((tile.unit - 1) / splits * splits) + thread;
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
      const float4 four = __ldcg(from + i / 4 * kThreads);
      sums[i] = four.x, sums[i + 1] = four.y, sums[i + 2] = four.z, sums[i + 3] = four.w;
    }
    int split = 1;
    if constexpr (kTogether > 1)
      for (; split + kTogether <= splits; split += kTogether)
        add<kTogether>(from + split * kStride, sums);
    for (; split < splits; ++split) add<1>(from + split * kStride, sums);
    return true;
  }

 private:
  __device__ __forceinline__ float4* sums_of(int unit) const {
    return reinterpret_cast<float4*>(splits_.sums) + static_cast<int64_t>(unit) * kStride +
           consumer_ * (kFours * kThreads);
  }
  // Adds so many splits, the first at `from`. Loads are in flight together, as far as there are
  // registers.
  template <int kCount>
  static __device__ __forceinline__ void add(const float4* from, float (&sums)[kSums]) {
    constexpr int kGroup = kFours > 24 ? kFours / 2 : kFours;
#pragma unroll
    for (int first = 0; first < kFours; first += kGroup) {
      float4 fours[kCount * kGroup];
#pragma unroll
      for (int i = 0; i < kCount * kGroup; ++i)
        fours[i] = __ldcg(from + i / kGroup * kStride + (first + i % kGroup) * kThreads);
#pragma unroll
      for (int i = 0; i < kCount * kGroup; ++i) {
        const int at = 4 * (first + i % kGroup);
        sums[at] += fours[i].x, sums[at + 1] += fours[i].y;
        sums[at + 2] += fours[i].z, sums[at + 3] += fours[i].w;
      }
      ptx::fence_operand(sums);
    }
  }

  const MatmulSplits& splits_;
  const Shared& shared_;
  const int consumer_;
};

}  // namespace perseid::internal::cuda
