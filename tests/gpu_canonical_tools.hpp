// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the tests of canonical order on GPUs share.
#pragma once

#include "gpu_collective_tools.hpp"

namespace collective_tools {

class GpuCanonicalOrder : public GpuRanksTest {};

// As many as share a GPU, or have one each.
inline std::vector<int32_t> rank_counts(std::vector<int32_t> counts) {
  std::erase_if(counts, [](int32_t ranks) { return count_gpus() > 1 && ranks > count_gpus(); });
  return counts;
}

}  // namespace collective_tools
