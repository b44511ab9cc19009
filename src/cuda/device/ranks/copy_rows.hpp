// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Copies of rows between tensors of any strides, several in one launch: what a rank gives of its
// keys and values to the memory that all ranks gather. Bound by memory. sm_80 and up.
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

// Vectors of kBytes; addresses, strides and runs are multiples of it. Each copy has equally many
// blocks, whose groups of lanes take its runs.
template <int kBytes>
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
  const int vectors = copy.run / kBytes;
  for (uint32_t row = first; row < rows; row += kInFlight * step) {
    for (int v = lane; v < vectors; v += lanes) {
      Vector held[kInFlight];
#pragma unroll
      for (uint32_t i = 0; i < kInFlight; ++i) {
        const uint32_t at = row + i * step;
        if (at < rows)
          held[i] = reinterpret_cast<const Vector*>(copy.from + at / inner * copy.from_outer +
                                                    at % inner * copy.from_inner)[v];
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
