// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The bias of a block's tiles in attention forward on sm_80 and up, if C.copies_bias(): copied to
// one of two stages in shared memory, and read from there by warps.
#pragma once

#include "cuda/device/attention/arithmetic.hpp"
#include "cuda/device/attention/query_tile.hpp"
#include "cuda/device/portable/attention/bias_tile.hpp"
#include "cuda/device/portable/attention/config.hpp"
#include "cuda/device/portable/attention/rows_copy.hpp"

namespace perseid::internal::cuda {

// Where that of keys n is in shared memory.
template <PortableForwardConfig C>
__device__ __forceinline__ int bias_offset(int n) {
  return C.bias_offset() + n % 2 * C.bias_bytes();
}

template <PortableForwardConfig C>
class ForwardBias {
  using Copy = TileCopy<C.copies_bias() ? C.bias : C.operand(), C.block_rows(), C.keys, C.threads>;

 public:
  __device__ __forceinline__ ForwardBias(const PortableForwardArguments& arguments,
                                         const QueryTile& tile)
      : copy_(arguments.bias, tile.batch, tile.head, score_row_of<C>(arguments, tile, 0),
              arguments.kv_len, arguments.bias.vectors) {}

  // Begins to copy that of keys n.
  __device__ __forceinline__ void copy(unsigned char* memory, uint32_t address,
                                       const QueryTile& tile, int n) const {
    if constexpr (C.copies_bias())
      copy_.copy(memory, address, bias_offset<C>(n), tile.query, tile.q_len, n * C.keys);
  }

 private:
  const Copy copy_;
};

// That of keys n and of a warp's rows, from `row` of the block on.
template <PortableForwardConfig C>
class BiasOfRows {
 public:
  __device__ __forceinline__ BiasOfRows(const unsigned char* memory, uint32_t address, int row,
                                        int n, int lane)
      : tile_(memory, address, bias_offset<C>(n), lane), row_(row) {}

  // Of 16 rows from 16 * i on.
  template <class Pairs>
  __device__ __forceinline__ void load(int i, Pairs& pairs) const {
    for_each_pair(i, [&](int x, float2 both) { pairs.at[x / 2 % 2][x / 4] = {both.x, both.y}; });
  }
  // Scores before their products, which other products may still run beside.
  template <int kTiles>
  __device__ __forceinline__ void begin(const PortableForwardArguments& arguments,
                                        float (&scores)[kTiles][C.keys / 2]) const {
    if constexpr (C.begins_with_bias()) {
      const float unscale = kLog2E * ptx::approximate_reciprocal(arguments.scale_log2);
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
        for_each_pair(i, [&](int x, float2 both) {
          scores[i][x] = both.x * unscale;
          scores[i][x + 1] = both.y * unscale;
        });
    }
  }

 private:
  template <class Use>
  __device__ __forceinline__ void for_each_pair(int i, const Use& use) const {
    tile_.template for_each_pair<false, C.keys / 2>(row_ + 16 * i, 0, use);
  }

  const BiasTile<C.copies_bias() ? C.bias : C.operand(), C.keys> tile_;
  const int row_;
};

}  // namespace perseid::internal::cuda
