// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// src/cuda/device/ptx/ordering.hpp on the CPU.
#pragma once

#include "emulated_gpu.hpp"

namespace perseid::internal::cuda::ptx {

inline int thread_number() { return threadIdx.x; }
template <int kCount>
inline void materialize(uint32_t (&)[kCount]) {}

}  // namespace perseid::internal::cuda::ptx
