// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// src/cuda/device/ptx/mbarrier.hpp on the CPU.
#pragma once

#include "emulated_gpu.hpp"

namespace perseid::internal::cuda::ptx {

inline void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  emulated_gpu::block->initialize(barrier, static_cast<int>(arrivals));
}
inline void mbarrier_arrive(uint32_t barrier) { emulated_gpu::block->arrive(barrier, {}); }
inline void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  emulated_gpu::block->wait(barrier, parity);
}
inline void named_barrier_sync(int name, int threads) { emulated_gpu::block->meet(name, threads); }

}  // namespace perseid::internal::cuda::ptx
