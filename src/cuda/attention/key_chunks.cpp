// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/key_chunks.hpp"

#include "cuda/attention/arguments.hpp"
#include "cuda/runtime/launch_number.hpp"
#include "cuda/runtime/signals.hpp"

namespace perseid::internal::cuda {

Status KeyChunks::upload(const AttentionProblem& problem) {
  const ChunkCut& cut = problem.chunks_kv;
  // Lengths are in memory of the device: their chunks are taken as if all sequences were longest.
  if (cut.present() && !has_lengths(problem)) {
    const KeyRange seen = seen_keys(problem, problem.q_len, problem.kv_len);
    const auto read = ChunkTable<int64_t>{cut.begin, cut.count}.covering(seen.begin, seen.end);
    read_ = {static_cast<int32_t>(read.first), static_cast<int32_t>(read.last)};
  }
  return table_.upload(cut);
}

Status KeyChunks::fill(const char* operation, const Arrival& arrival, void* stream,
                       AsyncArguments* async) const {
  DeviceArrival& filled = async->arrivals[0];
  if (Status status = find_arrival(gpu_, arrival, &filled, &async->reports[0]); !status.ok())
    return status;
  filled.chunks = table_.from(arrival.first);
  filled.read = read_;
  async->launch = launch_number();
  const WaitingExecution execution{
      .operation = operation, .operands = {"key", ""}, .deadline_ns = {arrival.deadline_ns, 0}};
  return gpu_.wait_reports().draw(execution, stream, &async->reports[1]);
}

Status WholeKeyChunks::prepare(const AttentionProblem& problem) {
  Status status = chunks_.upload(problem);
  if (status.ok())
    status = gpu_.load(kSignalWaitHeader, {kChunkWaitKernel, kChunkSignalKernel}, &kernels_);
  return status;
}

Status WholeKeyChunks::await(const Arrival& arrival, std::byte* workspace, void* stream) const {
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  ChunkWaitArguments arguments;
  Status status = chunks_.fill("attention forward", arrival, stream, &arguments.async);
  if (!status.ok()) return status;
  arguments.async.failed = reinterpret_cast<uint64_t*>(workspace);
  arguments.begin = arguments.async.failed + 1;
  DeviceArrival& keys = arguments.async.arrivals[0];
  keys.read.last = min(keys.read.last, keys.chunks.count - 1);
  arguments.chunks[0] = keys.read;
  return gpu_.launch(kernels_[0], {.blocks = 1, .threads = 32}, &arguments, stream);
}

}  // namespace perseid::internal::cuda
