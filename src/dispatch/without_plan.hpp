// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Functions that have no plan: they pick the CPU or GPU code by the device of the context. Dropout
// masks and ragged batches.
#pragma once

#include "dispatch/device.hpp"
#include "math/philox.hpp"
#include "math/ragged_rows.hpp"

namespace perseid::internal::dispatch {

// `mask`: uint8 [batch, heads, q_len, kv_len], not empty.
Status write_dropout_mask(const Device& device, const Dropout& dropout, const Tensor& mask,
                          void* stream);
// Row by row, into packed or into padded, of elements of so many bytes.
Status copy_ragged_rows(const Device& device, const RaggedRows& rows, int64_t element,
                        bool into_packed, bool zero_rest, void* stream);
// On a GPU: `lengths` [batch], or a mask [batch, longest], to cu_seqlens [batch + 1].
Status sum_lengths_on_gpu(const Device& device, const Tensor& lengths, int64_t longest,
                          int64_t total, const Tensor& cu_seqlens, void* stream);

}  // namespace perseid::internal::dispatch
