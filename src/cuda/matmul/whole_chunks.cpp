// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/matmul/whole_chunks.hpp"

#include "cuda/runtime/signals.hpp"

namespace perseid::internal::cuda {

Status WholeChunks::prepare(const MatmulProblem& problem) {
  Status status = chunks_.prepare(problem);
  if (status.ok())
    status = gpu_.load(kSignalWaitHeader, {kSignalWaitKernel, kChunkSignalKernel}, &kernels_);
  return status;
}

Status WholeChunks::await(const MatmulArguments& arguments, void* workspace, void* stream,
                          AsyncArguments* async) const {
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  if (Status status = chunks_.fill(arguments, false, workspace, stream, async); !status.ok())
    return status;
  return gpu_.launch(kernels_[0], {.blocks = 1, .threads = 32}, async, stream);
}

Status WholeChunks::depart(const AsyncArguments& async, void* stream) const {
  if (async.departure.signals == nullptr) return {};
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  return gpu_.launch(kernels_[1], {.blocks = 1, .threads = 32}, &async, stream);
}

}  // namespace perseid::internal::cuda
