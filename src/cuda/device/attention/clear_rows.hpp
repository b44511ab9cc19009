// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Rows of queries that lengths of their own leave out (q_lens): zeros in out or in the gradient of
// query, -inf in lse. The kernels of attention do not visit them. A block has one head of a
// sequence, a warp a row at a time. sm_80 and up.
#pragma once

#include "cuda/device/attention/arithmetic.hpp"
#include "cuda/device/attention/sequence.hpp"
#include "cuda/device/ptx/dependency.hpp"

namespace perseid::internal::cuda {

template <class Element>
__device__ __forceinline__ void clear_row(const RowsInMemory& rows, int64_t entry, int64_t head,
                                          int64_t row, int32_t columns) {
  Element* to = row_at<Element>(rows, entry, head, row);
  for (int32_t i = static_cast<int32_t>(threadIdx.x) % 32; i < columns; i += 32)
    to[i * rows.stride[3]] = 0;
}

__global__ void __launch_bounds__(kClearRowsThreads)
    clear_rows(const __grid_constant__ ClearRowsArguments a) {
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  const auto batch = static_cast<int32_t>(blockIdx.x / static_cast<uint32_t>(a.heads));
  const auto head = static_cast<int32_t>(blockIdx.x % static_cast<uint32_t>(a.heads));
  const AttentionSequence sequence = find_sequence<true>(a, batch);
  const int32_t entry = entry_of<true>(a, batch);
  const int32_t end = a.ragged ? read_length(a.cumulative_q, batch + 1, a.total_q) : a.q_len;
  for (int32_t row = sequence.q_begin + sequence.q_len + static_cast<int32_t>(threadIdx.x) / 32;
       row < end; row += kClearRowsThreads / 32) {
    if (a.element_bytes == 2) clear_row<uint16_t>(a.rows, entry, head, row, a.columns);
    if (a.element_bytes == 4) clear_row<uint32_t>(a.rows, entry, head, row, a.columns);
    if (a.element_bytes == 8) clear_row<uint64_t>(a.rows, entry, head, row, a.columns);
    if (a.lse.data == nullptr || threadIdx.x % 32 != 0) continue;
    if (a.lse_bytes == 4)
      *row_at<float>(a.lse, entry, head, row) = minus_infinity();
    else
      *row_at<double>(a.lse, entry, head, row) = minus_infinity();
  }
}

}  // namespace perseid::internal::cuda
