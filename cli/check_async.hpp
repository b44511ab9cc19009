// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// `perseid check matmul --async`: products over chunks that arrive in random orders, with random
// delays, against the plain product, bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "common.hpp"
#include "harness/problem.hpp"

namespace perseid::cli {

// The exit code.
int check_async(const Common& common, const std::vector<harness::Problem>& problems, uint64_t seed);

}  // namespace perseid::cli
