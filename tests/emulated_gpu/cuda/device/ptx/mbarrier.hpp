// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// src/cuda/device/ptx/mbarrier.hpp on the CPU: named barriers.
#pragma once

#include "emulated_gpu.hpp"

namespace perseid::internal::cuda::ptx {

inline void named_barrier_sync(int name, int threads) { emulated_gpu::block->meet(name, threads); }

}  // namespace perseid::internal::cuda::ptx
