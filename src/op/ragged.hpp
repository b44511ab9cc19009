// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ragged batches: cumulative lengths, packing and unpacking (perseid/ragged.h).
#pragma once

#include "dispatch/device.hpp"

namespace perseid::internal::op {

Status ragged_lengths(const dispatch::Device& device, const DLTensor* lengths, int64_t longest,
                      int64_t total, const DLTensor* cu_seqlens, void* stream);
// From padded into packed, or back.
Status copy_ragged(const dispatch::Device& device, const DLTensor* padded,
                   const DLTensor* cu_seqlens, const DLTensor* packed, bool into_packed,
                   uint32_t zero_rest, void* stream);

}  // namespace perseid::internal::op
