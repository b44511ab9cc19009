// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ceilings of a device, measured: the rates that kernels are compared with.
#pragma once

#include "dispatch/device.hpp"

namespace perseid::internal::dispatch {

// `ceiling` is a perseid_ceiling. All workers at once; the best of several repetitions, together at
// least 50 ms.
Status measure_ceiling(const Device& device, int32_t ceiling, uint64_t bytes, double* per_second);

}  // namespace perseid::internal::dispatch
