// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/dropout_mask.hpp"

namespace perseid::internal::cuda {
namespace {

// Blocks of a multiprocessor at once; more tiles are taken in turns.
constexpr int64_t kBlocksEach = 8;

}  // namespace

Status write_dropout_mask(Gpu& gpu, const Dropout& dropout, const Tensor& mask, void* stream) {
  std::vector<Kernel> kernels;
  if (Status status = gpu.load(kDropoutMaskHeader, {kDropoutMaskKernel}, &kernels); !status.ok())
    return status;
  const DropoutMaskArguments arguments{mask, dropout};
  const int64_t tiles = mask.shape[0] * mask.shape[1] * ceil_div(mask.shape[2], kDropoutTileRows) *
                        ceil_div(mask.shape[3], kDropoutTileColumns);
  const Gpu::Current current(gpu);
  if (!current.status().ok()) return current.status();
  return gpu.launch(
      kernels[0],
      {.blocks = min(ceil_div(tiles, kDropoutMaskWarps), kBlocksEach * gpu.facts().multiprocessors),
       .threads = 32 * kDropoutMaskWarps},
      &arguments, stream);
}

}  // namespace perseid::internal::cuda
