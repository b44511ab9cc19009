// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "op/dropout_mask.hpp"

#include "base/observe.hpp"
#include "op/attention_problem.hpp"
#include "op/descriptor.hpp"
#include "op/tensor_argument.hpp"

namespace perseid::internal::op {
namespace {

// The block of a task, whole tiles: long enough to be worth waking a thread for.
constexpr int64_t kBlockRows = 4 * kDropoutTileRows;
constexpr int64_t kBlockColumns = 128 * kDropoutTileColumns;

}  // namespace

Status fill_dropout_mask(const dispatch::Device& device, double probability, uint64_t seed,
                         uint64_t offset, const DLTensor* mask) {
  if (device.gpu != nullptr)
    return Status::error(PERSEID_UNSUPPORTED,
                         "dropout mask: written by the CPU alone; use a context of kDLCPU, whose "
                         "masks are those of every device");
  ArgumentReader reader("dropout mask");
  const Extent extents[] = {
      {"batch", kAnySize}, {"heads", kAnySize}, {"q_len", kAnySize}, {"kv_len", kAnySize}};
  const Tensor view = reader.read(Access::kWrite, "mask", mask, DType::kBool, extents);
  if (!reader.ok()) return reader.result();
  DescriptorReader sizes(reader.subject());
  sizes.extents("mask", std::span(view.shape, 4));
  if (!sizes.ok()) return sizes.result();

  const int64_t batch_heads = view.shape[0] * view.shape[1];
  const std::string flaw = dropout_flaw(probability, batch_heads, view.shape[2], view.shape[3]);
  reader.require(flaw.empty(), flaw);
  reader.require(offset <= UINT32_MAX, "offset is ", offset, ", expected less than 2^32");
  if (Status status = reader.finish(); !status.ok()) return status;
  if (is_empty(view)) return {};

  const Span span(reader.subject(), "", "", false, reader.text());
  const Dropout dropout{dropout_threshold(probability), seed, static_cast<uint32_t>(offset)};
  const int64_t row_blocks = ceil_div(view.shape[2], kBlockRows);
  const int64_t blocks = row_blocks * ceil_div(view.shape[3], kBlockColumns);
  cpu::for_each_task(*device.executor, batch_heads * blocks, [&](int64_t task, int32_t) {
    const int64_t batch_head = task / blocks;
    const int64_t row = task % blocks % row_blocks * kBlockRows;
    const int64_t column = task % blocks / row_blocks * kBlockColumns;
    uint8_t* const first = view.as<uint8_t>() + batch_head / view.shape[1] * view.stride[0] +
                           batch_head % view.shape[1] * view.stride[1] + row * view.stride[2] +
                           column * view.stride[3];
    device.kernels->dropout_mask(dropout, batch_head, row, min(kBlockRows, view.shape[2] - row),
                                 column, min(kBlockColumns, view.shape[3] - column), first,
                                 view.stride[2], view.stride[3]);
  });
  return {};
}

}  // namespace perseid::internal::op
