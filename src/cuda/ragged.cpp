// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/ragged.hpp"

#include <algorithm>

namespace perseid::internal::cuda {
namespace {

constexpr int64_t kWidest = 16;         // bytes of a load
constexpr int64_t kPieceVectors = 256;  // eight for each lane of a warp
constexpr int64_t kBlocksEach = 8;      // of a multiprocessor at once

// The widest power of two that divides whatever is added to an address.
int64_t vector_of(const RaggedRows& rows, int64_t element) {
  int64_t all = reinterpret_cast<int64_t>(rows.padded) | reinterpret_cast<int64_t>(rows.packed) |
                rows.run | rows.sequence_stride | rows.padded_stride | rows.packed_stride;
  for (int32_t d = 0; d < rows.part_rank; ++d) all |= rows.padded_part[d] | rows.packed_part[d];
  return std::max(element, std::min(kWidest, all & -all));
}

}  // namespace

std::vector<std::string> ragged_copy_kernels(int32_t vector) {
  const std::string name = concatenate("perseid::internal::cuda::copy_ragged_rows<", vector, ", ");
  return {name + "false>", name + "true>"};
}

std::vector<std::string> ragged_lengths_kernels() {
  return {"perseid::internal::cuda::sum_ragged_lengths",
          "perseid::internal::cuda::count_ragged_rows"};
}

Status copy_ragged_rows(Gpu& gpu, const RaggedRows& rows, int64_t element, bool into_packed,
                        bool zero_rest, void* stream) {
  const int64_t vector = vector_of(rows, element);
  std::vector<Kernel> kernels;
  if (Status status =
          gpu.load(kRaggedHeader, ragged_copy_kernels(static_cast<int32_t>(vector)), &kernels);
      !status.ok())
    return status;
  RaggedCopyArguments arguments{.rows = rows, .zero_rest = zero_rest};
  arguments.piece_bytes = min(rows.run, kPieceVectors * vector);
  arguments.pieces = ceil_div(rows.run, arguments.piece_bytes);
  while (arguments.lanes > 1 && arguments.lanes / 2 * vector >= arguments.piece_bytes)
    arguments.lanes /= 2;
  const int64_t items = rows.rows(into_packed) * rows.parts * arguments.pieces;
  const Gpu::Current current(gpu);
  if (!current.status().ok()) return current.status();
  return gpu.launch(kernels[into_packed],
                    {.blocks = min(ceil_div(items, kRaggedThreads / arguments.lanes),
                                   kBlocksEach * gpu.facts().multiprocessors),
                     .threads = kRaggedThreads},
                    &arguments, stream);
}

Status sum_ragged_lengths(Gpu& gpu, const RaggedLengthsArguments& arguments, void* stream) {
  std::vector<Kernel> kernels;
  if (Status status = gpu.load(kRaggedHeader, ragged_lengths_kernels(), &kernels); !status.ok())
    return status;
  const Gpu::Current current(gpu);
  if (!current.status().ok()) return current.status();
  RaggedLengthsArguments sums = arguments;
  if (arguments.lengths.rank == 2) {
    if (Status status = gpu.launch(
            kernels[1], {.blocks = arguments.batch, .threads = kRaggedThreads}, &arguments, stream);
        !status.ok())
      return status;
    sums.lengths = arguments.cu_seqlens;
    sums.lengths.data = arguments.cu_seqlens.as<char>() +
                        arguments.cu_seqlens.stride[0] * size_of(arguments.cu_seqlens.dtype);
  }
  return gpu.launch(kernels[0], {.blocks = 1, .threads = kSummingThreads}, &sums, stream);
}

}  // namespace perseid::internal::cuda
