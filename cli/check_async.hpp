// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// `perseid check [matmul|attention] --async`: operands in chunks that arrive in random orders, with
// random delays. A product is that of the plan without chunks, bit for bit. Attention is that of
// the same plan with all chunks present, bit for bit, and as near to float64 as the plan without
// chunks.
#pragma once

#include <cstdint>
#include <vector>

#include "common.hpp"
#include "harness/problem.hpp"

namespace perseid::cli {

// The exit code.
int check_async(const Common& common, const std::vector<harness::Problem>& problems, uint64_t seed);

}  // namespace perseid::cli
