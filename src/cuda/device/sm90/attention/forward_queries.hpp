// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Queries of attention forward in float32, if C.splits_queries. A Q tile is multiplied by one block
// alone, so that its planes (portable/attention/planes.hpp) need not lie in memory: TMA loads rows
// of float32, and each warp of a consumer splits its 16 rows in place. A row and its planes have as
// many bytes:
//
//   float32   chunk 0: numbers 0 .. 31     chunk 1: 32 .. 63     ...
//   planes    high halves 0 .. key_dim - 1, then low halves
//
// The bits are those of planes that a kernel has written before.
#pragma once

#include "cuda/device/portable/attention/planes.hpp"
#include "cuda/device/sm90/attention/forward_shared.hpp"

namespace perseid::internal::cuda {

template <AttentionForwardConfig C>
class QueryRows {
  using Planes = typename ForwardShared<C>::Query;
  using Loaded = typename ForwardShared<C>::LoadedQuery;
  static constexpr PlanesConfig P{C.key_dim};
  // Up to dim 64 all rows at once. Beyond, two turns together, in a loop, since unrolled it makes
  // the kernel spill.
  static constexpr int kLanes = C.key_dim <= kChunk ? 2 : P.lanes();
  static constexpr int kRowsAtOnce = 32 / kLanes, kTogether = kRowsAtOnce == 16 ? 1 : 2;
  static_assert(16 % (kRowsAtOnce * kTogether) == 0);

 public:
  // The warp's rows of a consumer's tile at `memory`. `factor`: of products with the lane's two
  // rows in the accumulator layout, NaN of a row that is refused.
  static __device__ __forceinline__ void split(const PlanesOfRows& tensor, unsigned char* memory,
                                               int warp, int lane, float (&factor)[2]) {
    // Numbers of a row that is refused may become NaN in its planes, which no other row's products
    // have.
#pragma unroll 1
    for (int first = 0; first < 16; first += kRowsAtOnce * kTogether) {
      const auto row = [&](int i) { return 16 * warp + first + i * kRowsAtOnce + lane / kLanes; };
      const auto load = [&](int i) {
        return RowSplit<P, kLanes>(tensor, [&](int number) {
          return number < C.key_dim ? *reinterpret_cast<const float4*>(
                                          memory + Loaded::element_offset(row(i), number))
                                    : float4{0, 0, 0, 0};
        });
      };
      const auto put = [&](int i) {
        return [=](int number, const ptx::Packed<2>& high, const ptx::Packed<2>& low) {
          if (number >= C.key_dim) return;
          const auto at = [=](int column) {
            return reinterpret_cast<uint2*>(memory + Planes::element_offset(row(i), column));
          };
          *at(number) = {high.word[0], high.word[1]};
          *at(C.key_dim + number) = {low.word[0], low.word[1]};
        };
      };
      const auto split_loaded = [&](const auto&... rows) {
        const FirstRow own[] = {FirstRow::of(rows, tensor)...};
        __syncwarp();
        int i = 0;
        ((rows.split(own[i].scale, true, put(i)),
          give(own[i].factor, first / kRowsAtOnce + i, lane, factor), ++i),
         ...);
      };
      if constexpr (kTogether == 1)
        split_loaded(load(0));
      else
        split_loaded(load(0), load(1));
    }
  }

 private:
  // The factors of the rows of a turn, to the lanes that have their scores.
  static __device__ __forceinline__ void give(float own, int turn, int lane, float (&factor)[2]) {
    float of_row = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + 8 * r;
      if (r == 0 || kRowsAtOnce > 8)  // the same one otherwise
        of_row = __shfl_sync(0xffffffffu, own, row % kRowsAtOnce * kLanes);
      if (row / kRowsAtOnce == turn) factor[r] = of_row;
    }
  }
};

}  // namespace perseid::internal::cuda
