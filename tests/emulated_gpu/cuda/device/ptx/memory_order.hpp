// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// src/cuda/device/ptx/memory_order.hpp on the CPU: what attention uses.
#pragma once

#include "emulated_gpu.hpp"

namespace perseid::internal::cuda::ptx {

inline uint16_t load_relaxed(const uint16_t* from) { return *from; }
inline uint32_t load_relaxed(const uint32_t* from) { return *from; }
inline uint64_t load_relaxed(const uint64_t* from) { return *from; }

}  // namespace perseid::internal::cuda::ptx
