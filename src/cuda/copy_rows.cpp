// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/copy_rows.hpp"

#include <algorithm>

namespace perseid::internal::cuda {
namespace {

constexpr int64_t kVector = 16, kElement = 2;  // bytes that a thread moves at once
constexpr int64_t kBlocksEach = 8;             // of a multiprocessor at once
constexpr int64_t kRowsInFlight = 4;
constexpr int64_t kMostRuns = 1 << 30;  // of a copy

CopiedRows rows_of(const TensorCopy& copy) {
  const Tensor &from = copy.from, &to = copy.to;
  const int64_t size = size_of(from.dtype);
  return {.from = from.as<const char>(),
          .to = to.as<char>(),
          .from_outer = from.stride[0] * size,
          .from_inner = from.stride[1] * size,
          .to_outer = to.stride[0] * size,
          .to_inner = to.stride[1] * size,
          .outer = static_cast<int32_t>(from.shape[0]),
          .inner = static_cast<int32_t>(from.shape[1]),
          .run = static_cast<int32_t>(from.shape[2] * size)};
}

// Whether vectors divide whatever is added to an address.
bool writes_vectors(const CopiedRows& rows) {
  return (reinterpret_cast<int64_t>(rows.to) | rows.to_outer | rows.to_inner) % kVector == 0;
}
bool takes_vectors(const CopiedRows& rows) {
  const int64_t read = reinterpret_cast<int64_t>(rows.from) | rows.from_outer | rows.from_inner;
  return (read | rows.run) % kVector == 0 && writes_vectors(rows);
}

}  // namespace

std::vector<std::string> copy_rows_kernels() {
  const auto name = [](int64_t bytes) {
    return concatenate("perseid::internal::cuda::copy_rows<", bytes, ">");
  };
  return {name(kElement), name(kVector), "perseid::internal::cuda::copy_rows<16, true>"};
}

Status load_copy_rows(Gpu& gpu) {
  const std::vector<Kernel>* kernels = nullptr;
  return gpu.load_kept(Gpu::Kept::kCopyRows, kCopyRowsHeader, copy_rows_kernels, &kernels);
}

Status copy_rows(Gpu& gpu, std::span<const TensorCopy> copies, void* stream) {
  const std::vector<Kernel>* kernels = nullptr;
  Status status = gpu.load_kept(Gpu::Kept::kCopyRows, kCopyRowsHeader, copy_rows_kernels, &kernels);
  const Gpu::Current current(gpu);
  if (status.ok()) status = current.status();
  for (size_t next = 0; status.ok() && next < copies.size();) {
    CopyRowsArguments arguments;
    bool vectors = true, gathers = true;
    int64_t longest = 0, rows = 0;
    for (; next < copies.size() && arguments.count < CopyRowsArguments::kMost; ++next) {
      if (copies[next].from.elements() == 0) continue;
      const CopiedRows& added = arguments.copies[arguments.count++] = rows_of(copies[next]);
      if (int64_t{added.outer} * added.inner > kMostRuns)
        return Status::error(PERSEID_UNSUPPORTED, "a copy of ", added.outer, " times ", added.inner,
                             " runs was needed, expected at most ", kMostRuns);
      vectors = vectors && takes_vectors(added);
      gathers = gathers && copies[next].padded && writes_vectors(added);
      longest = max(longest, int64_t{added.run});
      rows = max(rows, int64_t{added.outer} * added.inner);
    }
    if (arguments.count == 0) return {};
    const int64_t vector = vectors || gathers ? kVector : kElement;
    while (arguments.lanes > 1 && arguments.lanes / 2 * vector >= longest) arguments.lanes /= 2;
    const int64_t groups = kCopyRowsThreads / arguments.lanes;
    const int64_t each = ceil_div(rows, groups * kRowsInFlight);
    const int64_t most = kBlocksEach * gpu.facts().multiprocessors / arguments.count;
    status = gpu.launch(
        (*kernels)[vectors   ? 1
                   : gathers ? 2
                             : 0],
        {.blocks = arguments.count * max(min(each, most), int64_t{1}), .threads = kCopyRowsThreads},
        &arguments, stream);
  }
  return status;
}

}  // namespace perseid::internal::cuda
