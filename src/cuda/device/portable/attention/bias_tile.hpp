// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A tile of bias in shared memory, which TileCopy brings (rows_copy.hpp): queries are lines, keys
// elements, as in memory. Threads read what they need where they add it, so that it takes no
// registers before.
#pragma once

#include "cuda/device/element.hpp"
#include "cuda/device/portable/vector_tile.hpp"
#include "cuda/device/ptx/ldmatrix.hpp"

namespace perseid::internal::cuda {

template <DType D, int kKeys>
class BiasTile {
  static constexpr int kUnits = static_cast<int>(size_of(D)) / 2;  // of 16 bits, of an element
  static_assert(kUnits <= 2);
  static constexpr int kLine = line_length(kUnits * kKeys), kEach = kVector / kUnits;

 public:
  // The tile is at `offset` of the shared memory.
  __device__ __forceinline__ BiasTile(const unsigned char* memory, uint32_t address, int offset,
                                      int lane)
      : tile_(memory + offset), address_(address + static_cast<uint32_t>(offset)), lane_(lane) {}

  // use(x, elements x and x + 1), for the thread's kCount elements of 16 rows from `row` on and
  // columns from `column` on, both multiples of 16, in the layout of ptx/mma.hpp. Rows are queries,
  // or keys if kOfKeys.
  template <bool kOfKeys, int kCount, class Use>
  __device__ __forceinline__ void for_each_pair(int row, int column, const Use& use) const {
    if constexpr (kUnits == 1) {
      const LaneVector own = kOfKeys ? lane_vector_of_columns(lane_) : lane_vector_of_rows(lane_);
      const LaneVectors<kLine> vectors(address_, own.line, own.half);
#pragma unroll
      for (int j = 0; j < kCount / 8; ++j) {
        uint32_t words[4];
        if constexpr (kOfKeys)
          ptx::ldmatrix_x4_trans(vectors.at(column / 16 + j, row / 16), words);
        else
          ptx::ldmatrix_x4(vectors.at(row / 16, column / 16 + j), words);
#pragma unroll
        for (int m = 0; m < 4; ++m) use(8 * j + 2 * m, widen_pair<D>(words[m]));
      }
    } else {
#pragma unroll
      for (int x = 0; x < kCount; x += 2) {
        const int own = row + x / 2 % 2 * 8 + lane_ / 4, other = column + x / 4 * 8 + lane_ % 4 * 2;
        if constexpr (kOfKeys)
          use(x, float2{*at(other, own), *at(other + 1, own)});
        else
          use(x, *reinterpret_cast<const float2*>(at(own, other)));
      }
    }
  }

 private:
  __device__ __forceinline__ const float* at(int query, int key) const {
    return reinterpret_cast<const float*>(tile_ + vector_offset<kLine>(query, key / kEach)) +
           key % kEach;
  }

  const unsigned char* const tile_;
  const uint32_t address_;
  const int lane_;
};

}  // namespace perseid::internal::cuda
