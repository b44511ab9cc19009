// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/matmul/whole_chunks.hpp"

#include "cuda/runtime/signals.hpp"

namespace perseid::internal::cuda {

Status WholeChunks::prepare(const MatmulProblem& problem) {
  Status status = chunks_.prepare(problem);
  if (status.ok())
    status = gpu_.load(kSignalWaitHeader, {kChunkWaitKernel, kChunkSignalKernel}, &kernels_);
  return status;
}

Status WholeChunks::begin(const MatmulArguments& arguments, void* workspace, void* stream,
                          AsyncArguments* async) const {
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  return chunks_.fill(arguments, false, workspace, stream, async);
}

Status WholeChunks::await(const AsyncArguments& async, ChunkRange<int32_t> of_a,
                          ChunkRange<int32_t> of_b, bool first, void* stream) const {
  ChunkWaitArguments arguments{.async = async,
                               .chunks = {of_a, of_b},
                               .begin = async.failed + chunks_.workspace() / sizeof(uint64_t),
                               .first = first};
  for (int operand = 0; operand < 2; ++operand) {
    DeviceArrival& arrival = arguments.async.arrivals[operand];
    ChunkRange<int32_t>& chunks = arguments.chunks[operand];
    chunks.last = min(chunks.last, arrival.chunks.count - 1);
    arrival.read = chunks;
  }
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  return gpu_.launch(kernels_[0], {.blocks = 1, .threads = 32}, &arguments, stream);
}

Status WholeChunks::depart(const AsyncArguments& async, ChunkRange<int32_t> chunks,
                           void* stream) const {
  if (async.departure.signals == nullptr || chunks.empty()) return {};
  AsyncArguments some = async;
  some.departure.signals += chunks.first;
  some.departure.chunks.count =
      min(chunks.last, async.departure.chunks.count - 1) - chunks.first + 1;
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  return gpu_.launch(kernels_[1], {.blocks = 1, .threads = 32}, &some, stream);
}

}  // namespace perseid::internal::cuda
