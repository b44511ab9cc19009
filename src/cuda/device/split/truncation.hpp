// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What sums of products on tensor cores lose. An instruction adds the products of 16 numbers of
// depth to each sum, and truncates it to float32: every sum becomes smaller.
//
// Measured on an H200 with mma.sync m16n8k16 of f16, random normal numbers, relative to sums in
// float64: n instructions take 1.66e-8 (n + 1.3) of the sum in the mean, for n from 1 to 16. The
// last one truncates the sum itself, those before it smaller ones. Factors of the results give
// that back. Sums that begin from zero keep n small.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal::cuda {

// The share that sums over so many numbers lose; a single product is exact.
PERSEID_INLINE constexpr float loss_of_sums(int64_t depth) {
  return depth <= 1 ? 0 : 1.66e-8f * (static_cast<float>(ceil_div(depth, 16)) + 1.3f);
}

}  // namespace perseid::internal::cuda
