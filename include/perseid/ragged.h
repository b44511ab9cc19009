// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/** \file
 * Ragged batches: from lengths and padded tensors to the cumulative lengths and packed tensors that
 * attention takes, and back. Included by perseid.h.
 *
 * With zero_rest = 1, pack is the adjoint of unpack, so the gradient of either is the other. On a
 * GPU each function queues its work on the stream and the host reads no lengths, so a call may be
 * captured in a CUDA graph; the first call of each function loads its kernels and must come before.
 */
#ifndef PERSEID_RAGGED_H_
#define PERSEID_RAGGED_H_

#include "perseid/context.h"
#include "perseid/dlpack.h"
#include "perseid/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Writes {0, l0, l0 + l1, ...}, the cumulative lengths of a batch.
 * lengths: int32 or int64 [batch], the rows of each sequence; or bool or uint8 [batch, longest],
 * where true marks the rows that count: each sequence's rows come first, padding after them.
 * cu_seqlens: int32 or int64 [batch + 1], of the same device. No length may be above `longest`,
 * their sum not above `total`, and no row may count after one that does not: on a CPU that is
 * INVALID_ARGUMENT; on a GPU, whose numbers the host does not read, lengths and sums are cut, and a
 * sequence ends at its first row that does not count. Errors: DEVICE_ERROR.
 * \snippet operations.c ragged */
PERSEID_API perseid_status perseid_ragged_lengths(perseid_context_t context,
                                                  const DLTensor* lengths, int64_t longest,
                                                  int64_t total, const DLTensor* cu_seqlens,
                                                  void* stream);
/** packed[cu_seqlens[b] + i] = padded[b, i] for the rows i of each sequence b.
 * padded: [batch, longest, ...]; packed: [total, ...], of the same dtype and dimensions from there
 * on; any strides, those of packed without overlap. cu_seqlens: int32 or int64 [batch + 1], as
 * perseid_ragged_lengths writes it. zero_rest: 1: rows of packed past the last sequence become 0;
 * 0: they stay as they are. Errors: DEVICE_ERROR.
 * \snippet operations.c ragged */
PERSEID_API perseid_status perseid_ragged_pack(perseid_context_t context, const DLTensor* padded,
                                               const DLTensor* cu_seqlens, const DLTensor* packed,
                                               uint32_t zero_rest, void* stream);
/** padded[b, i] = packed[cu_seqlens[b] + i] for the rows i of each sequence b, as in
 * perseid_ragged_pack. zero_rest: 1: padding becomes 0; 0: it stays as it is.
 * \snippet operations.c ragged */
PERSEID_API perseid_status perseid_ragged_unpack(perseid_context_t context, const DLTensor* packed,
                                                 const DLTensor* cu_seqlens, const DLTensor* padded,
                                                 uint32_t zero_rest, void* stream);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PERSEID_RAGGED_H_ */
