// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward on sm_90a: NaN and infinity at keys and values leave no trace in gradients
// that do not depend on them.
//
// A weight of 0 times NaN is NaN in a tensor core. Two kinds of elements meet weights of 0:
//
//   keys and values     a warp clears those of the tile that are not finite in shared memory, when
//                       the first products of a consumer have told that there are some
//   lse and delta       of queries that see such a key: the launch before replaces them for the
//                       products, so that weights of these queries are 0
//
// What depends on such elements is computed again, row by row (backward_rows.hpp): the tile's keys
// at its end, queries when their sums are rounded. (Queries and gradients of out that are not
// finite are not cleared: keys that do not see them are computed again, too.)
//
// Named barriers kClearing + consumer (160 threads): the consumer and the warp, twice for keys and
// twice for values where something is found, else once. The consumer waits until tiles are cleared.
#pragma once

#include "cuda/device/ptx/ldmatrix.hpp"
#include "cuda/device/ptx/mbarrier.hpp"
#include "cuda/device/sm90/attention/backward_rows.hpp"

namespace perseid::internal::cuda {

inline constexpr int kClearing = 11;

// Runs in one warp beside the producer.
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
        clear(consumer, shared_.key() + consumer * 64 * 128, C.key_chunks());
      for (int consumer = 0; consumer < C.kConsumers; ++consumer)
        clear(consumer, shared_.value() + consumer * 64 * 128, C.value_chunks());
    } else {
      clear(0, shared_.key(), C.key_chunks());
      clear(1, shared_.value(), C.value_chunks());
    }
  }

 private:
  __device__ __forceinline__ void find_nonfinite_queries() const {
    const int blocks = tile_.end - tile_.first;
    bool found = false;
#pragma unroll 1
    for (int i = lane_; i < a_.group * blocks; i += 32) {
      const int head = tile_.kv_head * a_.group + i / blocks, block = tile_.first + i % blocks;
      if (a_.nonfinite_queries[block_number<C>(a_, tile_, head, block)] != 0) found = true;
    }
    if (found) shared_.nonfinite() = 1;
  }
  // 64 keys of a tile, those of a consumer.
  __device__ __forceinline__ void clear(int consumer, uint32_t first, int chunks) const {
    if (!ptx::named_barrier_any(kClearing + consumer, 128 + 32, false)) return;
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
    ptx::named_barrier_sync(kClearing + consumer, 128 + 32);
  }

  const AttentionBackwardArguments& a_;
  const BackwardShared<C>& shared_;
  const BackwardTile& tile_;
  const int lane_;
};

}  // namespace perseid::internal::cuda
