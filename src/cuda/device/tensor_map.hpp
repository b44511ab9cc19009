// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// TMA's description of a tensor, sm_90 and up. The host makes it (cuda/runtime/tensor_map.hpp),
// kernels get it by value.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal::cuda {

struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// TMA writes each row of 64 16-bit elements to 128 bytes of shared memory with the 128-byte swizzle
// (sm90/shared_tile.hpp).
inline constexpr int kChunk = 64;  // elements of such a row

}  // namespace perseid::internal::cuda
