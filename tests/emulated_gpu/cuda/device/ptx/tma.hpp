// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// src/cuda/device/ptx/tma.hpp on the CPU: what waits for chunks use.
#pragma once

namespace perseid::internal::cuda::ptx {

inline void fence_proxy_async_global() {}

}  // namespace perseid::internal::cuda::ptx
