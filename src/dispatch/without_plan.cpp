// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "dispatch/without_plan.hpp"

#include "cpu/ragged.hpp"
#include "cuda/attention/dropout_mask.hpp"
#include "cuda/ragged.hpp"

namespace perseid::internal::dispatch {
namespace {

// The block of a task, whole tiles: long enough to be worth waking a thread for.
constexpr int64_t kBlockRows = 4 * kDropoutTileRows;
constexpr int64_t kBlockColumns = 128 * kDropoutTileColumns;

}  // namespace

Status write_dropout_mask(const Device& device, const Dropout& dropout, const Tensor& mask,
                          void* stream) {
  if (device.gpu != nullptr) return cuda::write_dropout_mask(*device.gpu, dropout, mask, stream);
  const int64_t row_blocks = ceil_div(mask.shape[2], kBlockRows);
  const int64_t blocks = row_blocks * ceil_div(mask.shape[3], kBlockColumns);
  cpu::for_each_task(
      *device.executor, mask.shape[0] * mask.shape[1] * blocks, [&](int64_t task, int32_t) {
        const int64_t batch_head = task / blocks;
        const int64_t row = task % blocks % row_blocks * kBlockRows;
        const int64_t column = task % blocks / row_blocks * kBlockColumns;
        uint8_t* const first = mask.as<uint8_t>() + batch_head / mask.shape[1] * mask.stride[0] +
                               batch_head % mask.shape[1] * mask.stride[1] + row * mask.stride[2] +
                               column * mask.stride[3];
        device.kernels->dropout_mask(dropout, batch_head, row, min(kBlockRows, mask.shape[2] - row),
                                     column, min(kBlockColumns, mask.shape[3] - column), first,
                                     mask.stride[2], mask.stride[3]);
      });
  return {};
}

Status copy_ragged_rows(const Device& device, const RaggedRows& rows, int64_t element,
                        bool into_packed, bool zero_rest, void* stream) {
  if (device.gpu != nullptr)
    return cuda::copy_ragged_rows(*device.gpu, rows, element, into_packed, zero_rest, stream);
  cpu::copy_ragged_rows(*device.executor, rows, into_packed, zero_rest);
  return {};
}

Status sum_lengths_on_gpu(const Device& device, const Tensor& lengths, int64_t longest,
                          int64_t total, const Tensor& cu_seqlens, void* stream) {
  return cuda::sum_ragged_lengths(*device.gpu,
                                  {lengths, cu_seqlens, lengths.shape[0], longest, total}, stream);
}

}  // namespace perseid::internal::dispatch
