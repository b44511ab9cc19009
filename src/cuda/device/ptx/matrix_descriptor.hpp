// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Descriptors of wgmma's operands in shared memory. sm_90a; pure arithmetic, on the host too.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal::cuda::ptx {

// Rows of 128 bytes with the 128-byte swizzle; eight rows are 1024 bytes. `between_chunks` (the
// leading dimension byte offset): bytes from one chunk of 128 bytes to the next, of an MN-major
// operand; ignored of a K-major one.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout-matrix-descriptor
PERSEID_INLINE constexpr uint64_t make_descriptor(uint32_t address, uint32_t between_chunks = 16) {
  constexpr uint64_t kEightRows = 1024, kSwizzle128 = 1;
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) |
         static_cast<uint64_t>(between_chunks >> 4) << 16 | kEightRows >> 4 << 32 |
         kSwizzle128 << 62;
}
// The same operand `bytes` further on, a multiple of 16.
PERSEID_INLINE constexpr uint64_t advance_descriptor(uint64_t descriptor, int bytes) {
  return descriptor + static_cast<uint64_t>(bytes >> 4);
}

}  // namespace perseid::internal::cuda::ptx
