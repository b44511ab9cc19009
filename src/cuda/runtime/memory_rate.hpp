// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The rate of copies within a GPU's memory.
#pragma once

#include "cuda/runtime/gpu.hpp"

namespace perseid::internal::cuda {

// Bytes read plus bytes written per second, the best of several copies of `bytes` bytes.
Status measure_copy(const std::shared_ptr<const Gpu>& gpu, uint64_t bytes, double* per_second);

}  // namespace perseid::internal::cuda
