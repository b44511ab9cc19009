// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// src/cuda/device/ptx/cluster.hpp on the CPU: what kernels without clusters use. The blocks of a
// launch are one cluster.
#pragma once

#include "emulated_gpu.hpp"

namespace perseid::internal::cuda::ptx {

inline uint32_t block_of_cluster() { return static_cast<uint32_t>(emulated_gpu::block->index); }
inline uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(shared) -
                               emulated_gpu::block->shared.data());
}

}  // namespace perseid::internal::cuda::ptx
