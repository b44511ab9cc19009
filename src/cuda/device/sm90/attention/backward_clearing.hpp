// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward on sm_90a, deterministic mode: NaN and infinity at keys and values change no
// bit of gradients that do not depend on them.
//
// A weight of 0 times NaN is NaN on a tensor core. Two kinds of elements meet weights of 0:
//
//   keys and values   a warp clears those of the tile that are not finite in shared memory, once
//                     the first products of a consumer have shown that there are any
//   lse and delta     of queries that see such a key: attention_backward_prepare replaces them for
//                     the products, so that weights of these queries are 0
//
// Rows that depend on such elements are recomputed (backward_fixup.hpp): the tile's keys in the
// epilogue, queries when their sums are rounded. (Queries and gradients of out that are not finite
// are not cleared: keys that do not see them are recomputed, too.)
//
// Named barriers kClearing + consumer (160 threads): the four warps of the consumer and the
// clearing warp. They meet once for keys and once for values to vote, and a second time where an
// element was found: the consumer waits until the tile is cleared.
#pragma once

#include "cuda/device/attention/backward_fixup.hpp"
#include "cuda/device/attention/nonfinite.hpp"
#include "cuda/device/ptx/mbarrier.hpp"
#include "cuda/device/ptx/ordering.hpp"
#include "cuda/device/sm90/attention/backward_shared.hpp"

namespace perseid::internal::cuda {

inline constexpr int kClearing = 11, kClearingThreads = 128 + 32;

// Runs in one warp of the producer's warpgroup.
template <AttentionBackwardConfig C>
class BackwardClearing {
 public:
  __device__ __forceinline__ BackwardClearing(const AttentionBackwardArguments& arguments,
                                              const BackwardShared<C>& shared,
                                              const BackwardTile& tile)
      : a_(arguments), shared_(shared), tile_(tile), lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void run() const {
    find_nonfinite_queries();
    if (tile_.end <= tile_.first) return;
    if constexpr (C.split_keys) {
      for (int consumer = 0; consumer < C.kConsumers; ++consumer)
        clear(consumer, shared_.key().base + consumer * 64 * 128, C.key_chunks());
      for (int consumer = 0; consumer < C.kConsumers; ++consumer)
        clear(consumer, shared_.value().base + consumer * 64 * 128, C.value_chunks());
    } else {
      clear(0, shared_.key().base, C.key_chunks());
      clear(1, shared_.value().base, C.value_chunks());
    }
  }

 private:
  __device__ __forceinline__ void find_nonfinite_queries() const {
    const int blocks = tile_.end - tile_.first;
    bool found = false;
#pragma unroll 1
    for (int i = lane_; i < a_.group * blocks; i += 32) {
      const int head = tile_.kv_head * a_.group + i / blocks,
                block = query_block<C>(tile_, tile_.first + i % blocks);
      if (a_.nonfinite_queries[number_of_block<C>(a_, tile_, head, block)] != 0) found = true;
    }
    if (found) shared_.nonfinite() = 1;
  }
  // The 64 keys of a consumer.
  __device__ __forceinline__ void clear(int consumer, uint32_t first, int chunks) const {
    if (!ptx::named_barrier_any(kClearing + consumer, kClearingThreads, false)) return;
    bool found = false;
#pragma unroll 1
    for (int i = lane_; i < chunks * 64 * 8; i += 32) {
      const uint32_t at = first - shared_.base + i / (64 * 8) * C.keys() * 128 + i % (64 * 8) * 16;
      auto* eight = reinterpret_cast<uint4*>(shared_.memory + at);
      const uint4 before = *eight;
      if (is_finite<C.dtype>(before)) continue;
      *eight = finite_or_zero<C.dtype>(before);
      found = true;
    }
    if (found) {
      shared_.nonfinite() = 1;
      a_.nonfinite_keys[tile_.batch * a_.kv_heads + tile_.kv_head] = 1;
    }
    ptx::fence_proxy_async();
    ptx::named_barrier_any(kClearing + consumer, kClearingThreads, found);
  }

  const AttentionBackwardArguments& a_;
  const BackwardShared<C>& shared_;
  const BackwardTile& tile_;
  const int lane_;
};

// The consumer's share, in its first step.
template <AttentionBackwardConfig C>
class NonfiniteCheck {
 public:
  explicit __device__ __forceinline__ NonfiniteCheck(const ConsumerContext<C>& context)
      : c_(context) {}

  // Keys are cleared before their first product with dS. The first scores stay as they are:
  // their queries are masked, or their rows recomputed.
  __device__ __forceinline__ void check_keys(int number,
                                             const float (&scores)[C.thread_scores()]) const {
    if constexpr (C.clears_nonfinite())
      if (number == 0) vote(has_nonfinite(scores));
  }
  // The first products with values become finite, as products with the cleared tile are.
  __device__ __forceinline__ void check_values(int number,
                                               float (&products)[C.thread_scores()]) const {
    if constexpr (C.clears_nonfinite())
      if (number == 0 && vote(has_nonfinite(products))) {
#pragma unroll
        for (float& x : products) x = fabsf(x) < -minus_infinity() ? x : 0;
      }
  }
  // Where the consumer skips its first step and has no products: reads the tiles instead.
  __device__ __forceinline__ void check_tiles(int number) const {
    if constexpr (C.clears_nonfinite())
      if (number == 0) {
        vote(has_nonfinite(c_.shared.key().base, C.key_chunks()));
        vote(has_nonfinite(c_.shared.value().base, C.value_chunks()));
      }
  }

 private:
  // By the whole consumer; true once elements of the tile were cleared. What was found may have
  // been a product of finite numbers that overflowed.
  __device__ __forceinline__ bool vote(bool found) const {
    if (!ptx::named_barrier_any(kClearing + c_.thread.consumer, kClearingThreads, found))
      return false;
    return ptx::named_barrier_any(kClearing + c_.thread.consumer, kClearingThreads, false);
  }
  // A row with such an element has no finite product, so one product of each of the thread's two
  // keys shows it.
  __device__ __forceinline__ static bool has_nonfinite(const float (&d)[C.thread_scores()]) {
    return is_nonfinite(fmaf(d[0], 0, d[2] * 0));
  }
  // Among the consumer's keys of a tile of keys or values.
  __device__ __forceinline__ bool has_nonfinite(uint32_t tile, int chunks) const {
    // Keeps the compiler from holding these addresses in registers across steps.
    uint32_t first[1] = {tile - c_.shared.base +
                         static_cast<uint32_t>(c_.thread.first_key()) * 128};
    ptx::materialize(first);
    bool found = false;
#pragma unroll 1
    for (int i = 32 * c_.thread.warp + c_.thread.lane; i < chunks * 64 * 8; i += 128)
      if (!is_finite<C.dtype>(*reinterpret_cast<const uint4*>(
              c_.shared.memory + first[0] + i / (64 * 8) * C.keys() * 128 + i % (64 * 8) * 16)))
        found = true;
    return found;
  }

  const ConsumerContext<C> c_;
};

}  // namespace perseid::internal::cuda
