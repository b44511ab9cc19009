// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace perseid::internal::cuda {

// The number of a launch, even and not 0, from splitmix64: uninitialised memory is unlikely to hold
// it. Kernels tell by it what they have written to a workspace from what was there.
uint64_t launch_number();

}  // namespace perseid::internal::cuda
