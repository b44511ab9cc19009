// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// `perseid bench collective`: products over ranks against their bound, the larger of the product
// alone and the transfer alone, all measured in one run.
#pragma once

#include <cstdint>
#include <vector>

#include "common.hpp"
#include "perseid/perseid.hpp"

namespace perseid::cli {

struct CollectiveSizes {
  int64_t ranks = 2;
  int64_t m = 2048, n = 2048, k = 2048;  // m: of all ranks; n, k: of each
  bool gathers = true, reduces = true;   // which products
  int64_t chunks = 1;                    // of a gathered shard, on GPUs
  double seconds = 5;                    // of each operation
};

// Of one execution, in seconds.
struct RankTimes {
  double single, sustained;
};
// Of the fused operation, the product alone and the transfer alone, on GPUs.
std::vector<RankTimes> bench_on_gpus(const CollectiveSizes& sizes, DType dtype, bool gathers);

// The exit code.
int bench_collective(const Common& common, const CollectiveSizes& sizes);

}  // namespace perseid::cli
