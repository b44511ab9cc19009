// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What sums of products on tensor cores lose. An instruction adds the products of 16 numbers of
// depth to each sum, and truncates it to float32: every sum becomes smaller.
//
// The last of n instructions takes half a unit in the last place in the mean, 4.3e-8 of the sum.
// Those before it truncate smaller sums: in random order, and where all products have one sign,
// each takes half as much of the final one. So n instructions take (n + 1) times 2.15e-8, which
// factors of the results give back. Sums that begin from zero keep n small.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal::cuda {

// Of mma.sync m16n8k16 and of wgmma m64nNk16, of f16 (tests/gpu_float32_errors_test.cpp holds
// them).
inline constexpr float kMmaLoss = 2.15e-8f, kWgmmaLoss = 2.15e-8f;

// The share that sums over so many numbers lose; a single product is exact.
PERSEID_INLINE constexpr float loss_of_sums(float loss, int64_t depth) {
  return depth <= 1 ? 0 : loss * static_cast<float>(ceil_div(depth, 16) + 1);
}

}  // namespace perseid::internal::cuda
