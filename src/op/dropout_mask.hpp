// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Writes the mask of attention's dropout to a tensor of the device.
#pragma once

#include "dispatch/device.hpp"

namespace perseid::internal::op {

Status fill_dropout_mask(const dispatch::Device& device, double probability, uint64_t seed,
                         uint64_t offset, const DLTensor* mask, void* stream);

}  // namespace perseid::internal::op
