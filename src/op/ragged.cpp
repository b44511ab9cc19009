// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "op/ragged.hpp"

#include "base/observe.hpp"
#include "dispatch/without_plan.hpp"
#include "op/descriptor.hpp"
#include "op/lengths.hpp"
#include "op/tensor_argument.hpp"

namespace perseid::internal::op {
namespace {

const DTypes kLengthTypes = {DType::kI32, DType::kI64};

void write_length(const Tensor& lengths, int64_t index, int64_t value) {
  if (lengths.dtype == DType::kI32)
    lengths.as<int32_t>()[index * lengths.stride[0]] = static_cast<int32_t>(value);
  else
    lengths.as<int64_t>()[index * lengths.stride[0]] = value;
}

// The rows of a sequence in a mask, all before its padding; -1 where one comes after.
int64_t counted_rows(const Tensor& mask, int64_t sequence) {
  int64_t counted = 0;
  for (int64_t i = 0; i < mask.shape[1]; ++i) {
    if (mask.as<uint8_t>()[sequence * mask.stride[0] + i * mask.stride[1]] == 0) continue;
    if (counted != i) return -1;
    ++counted;
  }
  return counted;
}

// In two passes, so that nothing is written where something is wrong.
void sum_lengths(Check& check, const Tensor& lengths, int64_t longest, int64_t total,
                 const Tensor& cu_seqlens) {
  const int64_t batch = lengths.shape[0];
  const auto length_of = [&](int64_t sequence) {
    return lengths.rank == 2 ? counted_rows(lengths, sequence) : read_length(lengths, sequence);
  };
  int64_t sum = 0;
  for (int64_t b = 0; b < batch && check.ok(); ++b) {
    const int64_t length = length_of(b);
    if (lengths.rank == 2)
      check.require(length >= 0, "lengths[", b,
                    "] has a row that counts after one that does not; put padding last");
    check.require(0 <= length && length <= longest, "lengths[", b, "] is ", length,
                  ", expected 0 to ", longest, ", the longest; pass a larger longest");
    sum += length;
    check.require(sum <= total, "lengths[", b, "] brings the sum to ", sum, ", expected at most ",
                  total, ", the total; pass a larger total");
  }
  if (!check.ok()) return;
  sum = 0;
  write_length(cu_seqlens, 0, 0);
  for (int64_t b = 0; b < batch; ++b) write_length(cu_seqlens, b + 1, sum += length_of(b));
}

// The dimensions from `first` on of padded and those after the rows of packed: contiguous ones
// become the run, the others number the parts.
void lay_out_parts(const Tensor& padded, const Tensor& packed, RaggedRows* rows) {
  const int64_t bytes = size_of(padded.dtype);
  rows->run = bytes;
  int64_t shape[kMaxDims], in_padded[kMaxDims], in_packed[kMaxDims];  // innermost first
  int32_t rank = 0;
  for (int32_t d = padded.rank - 1; d >= 2; --d) {
    const int64_t size = padded.shape[d];
    const int64_t one = padded.stride[d] * bytes, other = packed.stride[d - 1] * bytes;
    if (size == 1) continue;
    const bool continues_run = rank == 0 && one == rows->run && other == rows->run;
    const bool continues_part = rank > 0 && one == in_padded[rank - 1] * shape[rank - 1] &&
                                other == in_packed[rank - 1] * shape[rank - 1];
    if (continues_run) {
      rows->run *= size;
    } else if (continues_part) {
      shape[rank - 1] *= size;
    } else {
      shape[rank] = size;
      in_padded[rank] = one;
      in_packed[rank++] = other;
    }
  }
  rows->part_rank = rank;
  for (int32_t d = 0; d < rank; ++d) {
    rows->parts *= shape[d];
    rows->part_shape[rank - 1 - d] = shape[d];
    rows->padded_part[rank - 1 - d] = in_padded[d];
    rows->packed_part[rank - 1 - d] = in_packed[d];
  }
}

RaggedRows rows_of(const Tensor& padded, const Tensor& cu_seqlens, const Tensor& packed) {
  const int64_t bytes = size_of(padded.dtype);
  RaggedRows rows{.padded = padded.as<char>(),
                  .packed = packed.as<char>(),
                  .cu_seqlens = cu_seqlens,
                  .batch = padded.shape[0],
                  .longest = padded.shape[1],
                  .total = packed.shape[0],
                  .sequence_stride = padded.stride[0] * bytes,
                  .padded_stride = padded.stride[1] * bytes,
                  .packed_stride = packed.stride[0] * bytes};
  lay_out_parts(padded, packed, &rows);
  return rows;
}

}  // namespace

Status ragged_lengths(const dispatch::Device& device, const DLTensor* lengths, int64_t longest,
                      int64_t total, const DLTensor* cu_seqlens, void* stream) {
  ArgumentReader reader("ragged lengths", device.dl_device(), ArgumentReader::Owner::kContext);
  reader.require(longest >= 0, "longest is ", longest, ", expected at least 0");
  reader.require(total >= 0, "total is ", total, ", expected at least 0");
  const bool counts = lengths != nullptr && lengths->ndim == 2;
  const Extent rows[] = {{"batch", kAnySize}, {"longest", longest}};
  const Tensor from =
      counts ? reader.read(Access::kRead, "lengths", lengths, DType::kBool, rows)
             : reader.read(Access::kRead, "lengths", lengths, kLengthTypes, std::span(rows, 1));
  const Extent ends[] = {{"batch + 1", from.shape[0] + 1}};
  const Tensor to = reader.read(Access::kWrite, "cu_seqlens", cu_seqlens, kLengthTypes, ends);
  if (reader.ok())
    reader.require(to.dtype == DType::kI64 || total <= INT32_MAX, "total is ", total,
                   ", which int32 does not hold; pass cu_seqlens of int64");
  if (Status status = reader.finish(); !status.ok()) return status;
  const Span span(reader.subject(), "", "", false, reader.text());
  if (device.gpu != nullptr)
    return dispatch::sum_lengths_on_gpu(device, from, longest, total, to, stream);
  sum_lengths(reader, from, longest, total, to);
  return reader.result();
}

Status copy_ragged(const dispatch::Device& device, const DLTensor* padded,
                   const DLTensor* cu_seqlens, const DLTensor* packed, bool into_packed,
                   uint32_t zero_rest, void* stream) {
  ArgumentReader reader(into_packed ? "ragged pack" : "ragged unpack", device.dl_device(),
                        ArgumentReader::Owner::kContext);
  reader.require(zero_rest <= 1, "zero_rest is ", zero_rest, ", expected 0 or 1");
  const Extent any{"size", kAnySize};
  std::array<Extent, kMaxDims> extents;
  extents.fill(any);
  extents[0] = {"batch", kAnySize};
  extents[1] = {"longest", kAnySize};
  const int32_t ndim = padded == nullptr ? 2 : padded->ndim;
  const auto rank = static_cast<size_t>(clamp(ndim, 2, kMaxDims));
  const Tensor wide = reader.read(into_packed ? Access::kRead : Access::kWrite, "padded", padded,
                                  DTypes::any(), std::span(extents).first(rank));
  if (!reader.ok()) return reader.result();
  extents[1] = {"total", kAnySize};
  for (size_t d = 2; d < rank; ++d) extents[d] = {"size", wide.shape[d]};
  const Tensor narrow = reader.read(into_packed ? Access::kWrite : Access::kRead, "packed", packed,
                                    wide.dtype, std::span(extents).subspan(1, rank - 1));
  const Extent ends[] = {{"batch + 1", wide.shape[0] + 1}};
  const Tensor cumulative =
      reader.read(Access::kRead, "cu_seqlens", cu_seqlens, kLengthTypes, ends);
  if (!reader.ok()) return reader.result();
  DescriptorReader sizes(reader.subject());
  sizes.extents("padded", std::span(wide.shape, rank));
  sizes.extents("packed", std::span(narrow.shape, rank - 1));
  if (!sizes.ok()) return sizes.result();
  if (device.gpu == nullptr)
    check_cumulative(reader, "cu_seqlens", cumulative,
                     {wide.shape[1], ", the longest that padded has"},
                     {narrow.shape[0], ", the rows of packed"});
  if (Status status = reader.finish(); !status.ok()) return status;
  if (is_empty(into_packed ? narrow : wide)) return {};

  const Span span(reader.subject(), "", "", false, reader.text());
  return dispatch::copy_ragged_rows(device, rows_of(wide, cumulative, narrow), size_of(wide.dtype),
                                    into_packed, zero_rest != 0, stream);
}

}  // namespace perseid::internal::op
