// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// `perseid check collective`: products over ranks that are threads of this process, with random
// shapes, shards and delays, against the plain products, bit for bit; and a rank that is silent.
#pragma once

#include <cstdint>

#include "common.hpp"

namespace perseid::cli {

// With `ranks` ranks; 0: with 2, 3 and 5. The exit code.
int check_collective(const Common& common, int64_t ranks, uint64_t seed);

}  // namespace perseid::cli
