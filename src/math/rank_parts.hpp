// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The parts of a sum over ranks, where one rank's part is the product that a kernel computes.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal {

// float32 [rank, batch, row, column], of which columns lie side by side; nothing is read of `own`.
struct RankParts {
  const float* data = nullptr;
  int64_t of_rank = 0, batch = 0, row = 0;  // strides
  int32_t ranks = 1, own = 0;
};

}  // namespace perseid::internal
