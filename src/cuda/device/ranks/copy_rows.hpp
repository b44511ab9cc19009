// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Copies of rows between tensors of any strides, several in one launch: what a rank gives of its
// keys and values to the memory that all ranks gather, and operands of a product that TMA cannot
// load. Bound by memory. sm_80 and up.
#pragma once

#include "math/portable.hpp"
#if defined(__CUDACC_RTC__)
#include "cuda/device/ptx/dependency.hpp"
#endif

namespace perseid::internal::cuda {

// [outer, inner] runs of bytes that lie side by side, fewer than 2^31. Strides in bytes.
struct CopiedRows {
  const char* from = nullptr;
  char* to = nullptr;
  int64_t from_outer = 0, from_inner = 0, to_outer = 0, to_inner = 0;
  int32_t outer = 0, inner = 0, run = 0;
};
struct CopyRowsArguments {
  static constexpr int kMost = 32;
  CopiedRows copies[kMost];
  int32_t count = 0;
  int32_t lanes = 32;  // that copy a run together: a power of two
};

inline constexpr int kCopyRowsThreads = 256;

#if defined(__CUDACC_RTC__)
template <int kBytes>
struct CopiedVector;
template <>
struct CopiedVector<2> {
  using Type = uint16_t;
};
template <>
struct CopiedVector<16> {
  using Type = uint4;
};

// Elements of 2 bytes as a vector: from an address that is a multiple of 2, after `before` bytes of
// a run and before `left` of it. Reads nothing outside the run.
__device__ __forceinline__ uint4 gather_vector(const char* from, int before, int left) {
  uint32_t words[4] = {};
  const bool shifted = reinterpret_cast<uint64_t>(from) % 4 != 0;
  if (shifted ? before > 0 && left >= 18 : left >= 16) {
    const auto* const aligned = reinterpret_cast<const uint32_t*>(from - (shifted ? 2 : 0));
    uint32_t read[5] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) read[i] = aligned[i];
    if (shifted) read[4] = aligned[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(read[i], read[i + 1], shifted ? 16 : 0);
  } else {
    const auto* const elements = reinterpret_cast<const uint16_t*>(from);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (2 * i < left) words[i / 2] |= uint32_t{elements[i]} << 16 * (i % 2);
  }
  return {words[0], words[1], words[2], words[3]};
}

// Vectors of kBytes; addresses, strides and runs are multiples of it. Each copy has equally many
// blocks, whose groups of lanes take its runs. kGather: of 16 bytes, but addresses and strides of
// `from` and runs are multiples of 2; zeros follow a run in its last vector.
template <int kBytes, bool kGather = false>
__global__ void __launch_bounds__(kCopyRowsThreads)
    copy_rows(const __grid_constant__ CopyRowsArguments arguments) {
  using Vector = typename CopiedVector<kBytes>::Type;
  constexpr uint32_t kInFlight = 4;
  ptx::wait_for_prerequisites();
  const int count = arguments.count, lanes = arguments.lanes;
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const CopiedRows& copy = arguments.copies[block % count];
  const int lane = thread % lanes, groups = kCopyRowsThreads / lanes;
  const auto inner = static_cast<uint32_t>(copy.inner);
  const uint32_t rows = static_cast<uint32_t>(copy.outer) * inner;
  const auto step = static_cast<uint32_t>(static_cast<int>(gridDim.x) / count * groups);
  const auto first = static_cast<uint32_t>(block / count * groups + thread / lanes);
  const int vectors = (copy.run + (kGather ? kBytes - 1 : 0)) / kBytes;
  for (uint32_t row = first; row < rows; row += kInFlight * step) {
    for (int v = lane; v < vectors; v += lanes) {
      Vector held[kInFlight];
#pragma unroll
      for (uint32_t i = 0; i < kInFlight; ++i) {
        const uint32_t at = row + i * step;
        if (at >= rows) continue;
        const char* const from =
            copy.from + at / inner * copy.from_outer + at % inner * copy.from_inner;
        if constexpr (kGather)
          held[i] = gather_vector(from + v * kBytes, v * kBytes, copy.run - v * kBytes);
        else
          held[i] = reinterpret_cast<const Vector*>(from)[v];
      }
#pragma unroll
      for (uint32_t i = 0; i < kInFlight; ++i) {
        const uint32_t at = row + i * step;
        if (at < rows)
          reinterpret_cast<Vector*>(copy.to + at / inner * copy.to_outer +
                                    at % inner * copy.to_inner)[v] = held[i];
      }
    }
  }
}
#endif

}  // namespace perseid::internal::cuda
