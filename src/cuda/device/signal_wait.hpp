// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Waits for signals in stream order, with a deadline, and signals: one block. sm_70 and up.
#pragma once

#include "cuda/device/chunk_waits.hpp"
#include "cuda/device/ptx/dependency.hpp"

namespace perseid::internal::cuda {

// One warp: all chunks of both operands. The kernels after it see what their signals published.
__global__ void wait_for_signal(const __grid_constant__ AsyncArguments arguments) {
  ptx::wait_for_prerequisites();
  for (int operand = 0; operand < 2; ++operand) {
    ArrivalWaits<> waits(arguments, operand);
    waits.start();
    waits.await({0, arguments.arrivals[operand].chunks.count - 1}, {});
  }
}

// One warp: the chunks of both operands that the kernels after it need.
__global__ void wait_for_chunks(const __grid_constant__ ChunkWaitArguments arguments) {
  ptx::wait_for_prerequisites();
  const uint64_t begin = arguments.first ? ptx::nanoseconds() : ptx::load_relaxed(arguments.begin);
  if (arguments.first && threadIdx.x == 0) ptx::store_relaxed(arguments.begin, begin);
  for (int operand = 0; operand < 2; ++operand) {
    ArrivalWaits<> waits(arguments.async, operand);
    waits.start_at(begin);
    waits.await(arguments.chunks[operand], {});
  }
}

// All chunks of the output, which the kernels before have written; none if a wait has failed.
__global__ void signal_chunks(const __grid_constant__ AsyncArguments arguments) {
  ptx::wait_for_prerequisites();
  if (ptx::load_relaxed(arguments.failed) == stamp_of(arguments)) return;
  const DeviceDeparture& departure = arguments.departure;
  const uint32_t epoch = read_epoch(departure.epoch_ptr, departure.epoch);
  for (int chunk = static_cast<int>(threadIdx.x); chunk < departure.chunks.count;
       chunk += static_cast<int>(blockDim.x))
    ptx::store_release_system(departure.signals + chunk, epoch);
}

__global__ void clear_chunk_waits(const __grid_constant__ ChunkWaitsArguments arguments) {
  ptx::wait_for_prerequisites();
  for (int chunk = static_cast<int>(threadIdx.x); chunk < arguments.count;
       chunk += static_cast<int>(blockDim.x))
    arguments.waits[chunk] = {};
  if (threadIdx.x == 0) arguments.waits[arguments.count].until = ptx::nanoseconds();
}

}  // namespace perseid::internal::cuda
