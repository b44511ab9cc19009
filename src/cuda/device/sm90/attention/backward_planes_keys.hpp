// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Keys and values of a tile of attention backward for f32 on sm_90a. One block alone multiplies
// them, so that their planes (portable/attention/planes.hpp) need not lie in memory: TMA loads rows
// of float32, and the consumers' warps split some rows each, in place. A row and its planes have as
// many bytes.
#pragma once

#include "cuda/device/portable/attention/forward_planes.hpp"
#include "cuda/device/portable/attention/planes.hpp"
#include "cuda/device/sm90/attention/backward_planes_shared.hpp"

namespace perseid::internal::cuda {

template <AttentionBackwardConfig C>
class KeyRows {
  using Shared = PlanesShared<C>;
  static constexpr PlanesConfig P{C.plane_length(max(C.key_dim, C.value_dim))};
  static constexpr int kRowsAtOnce = 32 / P.lanes();
  static constexpr int kRowsOfWarp = C.keys() / (4 * C.kConsumers);
  static_assert(kRowsOfWarp % (2 * kRowsAtOnce) == 0);

 public:
  // The rows of warp number `warp` of all consumers. Returns whether one of the first `keys` of the
  // tile has numbers of its own.
  static __device__ __forceinline__ bool split(const PairsOfRows& pairs, const Shared& shared,
                                               int warp, int keys) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    bool own = false;
    // The rows of a warp are loaded before one is written.
#pragma unroll
    for (int turn = 0; turn < kRowsOfWarp / kRowsAtOnce; turn += 2) {
      const auto row = [&](int i) {
        return warp * kRowsOfWarp + (turn + i) * kRowsAtOnce + lane / P.lanes();
      };
      const auto load = [&](const PlanesOfRows& tensor, auto tile, int i) {
        return RowSplit<P>(tensor, [&](int number) {
          return number < tile.kChunks * tile.kChunkColumns
                     ? *reinterpret_cast<const float4*>(shared.memory + (tile.base - shared.base) +
                                                        tile.element_offset(row(i), number))
                     : float4{0, 0, 0, 0};
        });
      };
      const typename Shared::LoadedKeyTile loaded_keys{shared.key().base};
      const typename Shared::LoadedValueTile loaded_values{shared.value().base};
      const RowSplit<P> first[2] = {load(pairs.first, loaded_keys, 0),
                                    load(pairs.first, loaded_keys, 1)};
      const RowSplit<P> second[2] = {load(pairs.second, loaded_values, 0),
                                     load(pairs.second, loaded_values, 1)};
      __syncwarp();  // lanes overwrite what others of their row have read
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const RowNumbers numbers =
            split_pair_of_rows(pairs, first[i], second[i], second[i].largest(), 1,
                               into(shared, shared.key(), C.plane_length(C.key_dim), row(i)),
                               into(shared, shared.value(), C.plane_length(C.value_dim), row(i)));
        if (lane % P.lanes() == 0) shared.key_numbers(row(i)) = numbers;
        own = own || (row(i) < keys && !is_common(numbers));
      }
    }
    return own;
  }

 private:
  template <class Tile>
  static __device__ __forceinline__ auto into(const Shared& shared, Tile tile, int length,
                                              int row) {
    unsigned char* const to = shared.memory + (tile.base - shared.base);
    return [=](int number, const ptx::Packed<2>& high, const ptx::Packed<2>& low) {
      if (number >= length) return;
      const auto at = [&](int column) {
        return reinterpret_cast<uint2*>(to + Tile::element_offset(row, column));
      };
      *at(number) = {high.word[0], high.word[1]};
      *at(length + number) = {low.word[0], low.word[1]};
    };
  }
};

}  // namespace perseid::internal::cuda
