// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// `perseid bench collective`: products over ranks against their bound, the larger of the product
// alone and the transfer alone, all measured in one run.
#pragma once

#include <cstdint>

#include "common.hpp"

namespace perseid::cli {

struct CollectiveSizes {
  int64_t ranks = 2;
  int64_t m = 2048, n = 2048, k = 2048;  // m: of all ranks; n, k: of each
  double seconds = 5;                    // of each operation
};

// The exit code.
int bench_collective(const Common& common, const CollectiveSizes& sizes);

}  // namespace perseid::cli
