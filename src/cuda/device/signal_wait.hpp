// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A wait in stream order for signals, with a deadline: one thread of one block. sm_70 and up.
#pragma once

#include "cuda/device/chunk_waits.hpp"
#include "cuda/device/ptx/dependency.hpp"

namespace perseid::internal::cuda {

// Of all chunks of arrivals[0]. The kernels after it see what its signal published.
__global__ void wait_for_signal(const __grid_constant__ AsyncArguments arguments) {
  ptx::wait_for_prerequisites();
  ArrivalWaits(arguments, 0).await({0, arguments.arrivals[0].chunks.count - 1});
}

}  // namespace perseid::internal::cuda
