// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Shared memory that configurations of both directions of portable attention count with.
#pragma once

#include "cuda/device/portable/vector_tile.hpp"
#include "math/dtype.hpp"

namespace perseid::internal::cuda {

// Of a block on the GPUs that have least, compute capability 8.6, 8.9 and 12.0.
inline constexpr int kLeastShared = 101376;

// Bytes of a tile of bias (bias_tile.hpp).
constexpr int bias_tile_bytes(DType dtype, int queries, int keys) {
  if (dtype == DType::kNone) return 0;
  return 2 * queries * line_length(static_cast<int>(size_of(dtype)) / 2 * keys);
}

}  // namespace perseid::internal::cuda
