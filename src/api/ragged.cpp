// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// perseid_ragged_*.
#include "op/ragged.hpp"

#include "api/guard.hpp"
#include "api/handles.hpp"

using perseid::internal::Status;
using perseid::internal::api::guarded;
using perseid::internal::api::null_argument;

extern "C" {

perseid_status perseid_ragged_lengths(perseid_context_t context, const DLTensor* lengths,
                                      int64_t longest, int64_t total, const DLTensor* cu_seqlens,
                                      void* stream) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("perseid_ragged_lengths", "context");
    return perseid::internal::op::ragged_lengths(*context->device, lengths, longest, total,
                                                 cu_seqlens, stream);
  });
}

perseid_status perseid_ragged_pack(perseid_context_t context, const DLTensor* padded,
                                   const DLTensor* cu_seqlens, const DLTensor* packed,
                                   uint32_t zero_rest, void* stream) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("perseid_ragged_pack", "context");
    return perseid::internal::op::copy_ragged(*context->device, padded, cu_seqlens, packed, true,
                                              zero_rest, stream);
  });
}

perseid_status perseid_ragged_unpack(perseid_context_t context, const DLTensor* packed,
                                     const DLTensor* cu_seqlens, const DLTensor* padded,
                                     uint32_t zero_rest, void* stream) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("perseid_ragged_unpack", "context");
    return perseid::internal::op::copy_ragged(*context->device, padded, cu_seqlens, packed, false,
                                              zero_rest, stream);
  });
}

}  // extern "C"
