// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "op/dropout_mask.hpp"

#include "base/observe.hpp"
#include "dispatch/without_plan.hpp"
#include "op/attention_problem.hpp"
#include "op/descriptor.hpp"
#include "op/tensor_argument.hpp"

namespace perseid::internal::op {

Status fill_dropout_mask(const dispatch::Device& device, double probability, uint64_t seed,
                         uint64_t offset, const DLTensor* mask, void* stream) {
  ArgumentReader reader("dropout mask", device.dl_device(), ArgumentReader::Owner::kContext);
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
  return dispatch::write_dropout_mask(device, dropout, view, stream);
}

}  // namespace perseid::internal::op
