// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A tensor as the copy engine of sm_90 knows it. The host makes it (cuda/runtime/tensor_map.hpp),
// kernels get it by value.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal::cuda {

struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// The copy engine places each row of 64 16-bit elements in 128 bytes of shared memory, and in it
// the eight pieces of 16 bytes in an order that changes from row to row (the "128-byte swizzle"):
// piece p of row r lies at p ^ (r % 8). Tiles begin at multiples of 1024 bytes.
inline constexpr int kChunk = 64;  // elements of such a row

}  // namespace perseid::internal::cuda
