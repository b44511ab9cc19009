// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Gradients of attention backward in f16 and bf16 on sm_90 and up where two warps share 32 keys.
// Each computes the scores of half of a step's queries, and sums half of the columns of dK and dV:
//
//              first warp           second warp
//   S, dP      queries 0 to 31      32 to 63         of the step
//   dV, dK     columns 0 to 63      64 to 127        over all of its queries
//
// Shared memory bounds the step. One of 64 queries x 128 keys takes 752 KB where each warp has 16
// keys, which reads every row of Q and dO twice; it takes 576 of pairs, 48 for what they exchange.
//
// Exchange. A lane gives its weights to the same lane of the other warp, and reads the other's dS
// where it is shared for dQ. What the warp has itself it multiplies before it waits for the other.
// The barrier of the pair orders stores before loads. The next step's stores follow when all warps
// have ended this one (`unaligned_steps` in backward.hpp). Pairs meet in steps that they skip, too.
#pragma once

#include "cuda/device/portable/attention/backward_warps.hpp"

namespace perseid::internal::cuda {

template <PortableBackwardConfig C>
class PortableBackwardHalves : protected PortableBackwardWarps<C> {
  using Warps = PortableBackwardWarps<C>;
  using Block = PortableBackwardBlock<C>;
  static_assert(C.unaligned() && !C.streams() && C.rows == 32 && C.columns == 64 &&
                C.key_dim == 128 && C.value_dim == 128);

 protected:
  using typename Block::Scores;
  using typename Warps::Weights;
  using Warps::kTiles, Warps::memory_, Warps::address_, Warps::first_, Warps::second_;
  using Warps::lane, Warps::row_warp, Warps::sharer, Warps::warp;
  using Warps::Warps;

  // The columns' tensors are at those offsets.
  __device__ __forceinline__ void add_gradients(int step, int, int first, int second,
                                                const Scores& scores, const Scores& products) {
    Weights weights, ds;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      round_weights<C.dtype>(scores[i], weights[i]);
      round_weights<C.dtype>(products[i], ds[i]);
    }
    give(weights);
    this->share_ds(step, ds);
    const int own = sharer();
    add_products(own, first, second, weights, ds);
    meet();
    take(weights);
    QuerySums<C>(memory_, address_, warp(), lane())
        .load(step, row_warp() * C.rows, C.own_columns() * (1 - own), ds);
    add_products(1 - own, first, second, weights, ds);
  }
  // Of a step of which the pair's keys see nothing.
  __device__ __forceinline__ void skip_gradients(int step) const {
    this->share_ds(step, {});
    meet();
  }

 private:
  // Waits for both warps of the pair.
  static __device__ __forceinline__ void meet() { ptx::named_barrier_sync(1 + row_warp(), 64); }
  // Of one of the halves of the step's queries.
  __device__ __forceinline__ void add_products(int half, int first, int second,
                                               const Weights& weights, const Weights& ds) {
    multiply_weights<C.dtype>(weights, depth_vectors(second, half), second_);
    multiply_weights<C.dtype>(ds, depth_vectors(first, half), first_);
  }
  // The warp's columns, 128 bytes of a line.
  __device__ __forceinline__ LaneVectors<128> depth_vectors(int offset, int half) const {
    const LaneVector own = lane_vector_of_rows(lane());
    return {address_ + static_cast<uint32_t>(offset + 128 * sharer()),
            C.own_columns() * half + own.line, own.half};
  }
  // Vectors of a lane are 512 bytes apart.
  __device__ __forceinline__ uint4* exchange(int of_warp) const {
    return reinterpret_cast<uint4*>(memory_ + C.exchange_offset()) + of_warp * kVectors * 32 +
           lane();
  }
  __device__ __forceinline__ void give(const Weights& own) const {
    uint4* const to = exchange(warp());
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const uint32_t* from = own[v / kRow] + 4 * (v % kRow);
      to[32 * v] = {from[0], from[1], from[2], from[3]};
    }
  }
  __device__ __forceinline__ void take(Weights& others) const {
    const uint4* const from = exchange(warp() ^ 1);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const uint4 four = from[32 * v];
      uint32_t* to = others[v / kRow] + 4 * (v % kRow);
      to[0] = four.x;
      to[1] = four.y;
      to[2] = four.z;
      to[3] = four.w;
    }
  }

  static constexpr int kRow = C.own_columns() / 16;  // vectors of 16 rows that a lane has
  static constexpr int kVectors = kTiles * kRow;
};

}  // namespace perseid::internal::cuda
