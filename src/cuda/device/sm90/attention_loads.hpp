// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the producers of attention forward and backward have in common.
#pragma once

#include "cuda/device/ptx/barrier.hpp"
#include "cuda/device/ptx/copy.hpp"

namespace perseid::cuda {

// A place in a ring of kSize, and which time round it is.
template <int kSize>
struct Ring {
  int count = 0;
  __device__ __forceinline__ int place() const { return count % kSize; }
  __device__ __forceinline__ uint32_t parity() const {
    return static_cast<uint32_t>(count / kSize) & 1;
  }
};

// Rows of one head, kChunks * 64 columns, to tiles [chunk][row][64]. kOnce: nobody reads them
// again.
template <int kChunks, bool kOnce = false>
__device__ __forceinline__ void load_rows(uint32_t to, int rows, const TensorMap& map,
                                          uint32_t barrier, int row, int head, int entry) {
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk)
    ptx::load_box<kOnce>(to + chunk * rows * 128, map, barrier,
                         {chunk * kChunk, 0, row, head, entry});
}

}  // namespace perseid::cuda
