// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// src/cuda/device/ptx/dependency.hpp on the CPU.
#pragma once

namespace perseid::internal::cuda::ptx {

inline void wait_for_prerequisites() {}
inline void launch_dependents() {}

}  // namespace perseid::internal::cuda::ptx
