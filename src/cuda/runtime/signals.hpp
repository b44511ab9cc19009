// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Signals in stream order.
#pragma once

#include "cuda/runtime/gpu.hpp"
#include "math/chunks.hpp"

namespace perseid::internal::cuda {

// Name expressions of kernels that wait and signal, and their header.
inline constexpr const char* kSignalWaitKernel = "perseid::internal::cuda::wait_for_signal";
inline constexpr const char* kChunkWaitKernel = "perseid::internal::cuda::wait_for_chunks";
inline constexpr const char* kChunkSignalKernel = "perseid::internal::cuda::signal_chunks";
inline constexpr const char* kChunkWaitsKernel = "perseid::internal::cuda::clear_chunk_waits";
inline constexpr const char* kSignalWaitHeader = "cuda/device/signal_wait.hpp";

// After the work queued on the stream, whose writes are visible to whoever sees the epoch. Needs no
// multiprocessor.
Status set_signal(const Gpu& gpu, uint32_t* signal, uint32_t epoch, void* stream);
// Work queued later waits for the first `count` signals. If one does not come, the next
// synchronisation of the stream says so. The first call loads the kernel.
Status wait_for_signal(Gpu& gpu, const Arrival& arrival, void* stream, int32_t count = 1);
// What kernels that wait need, loaded and allocated before any does.
Status prepare_waits(Gpu& gpu);
// Where the device reaches what the host gave to an arrival. The context must be current.
Status find_arrival(const Gpu& gpu, const Arrival& arrival, DeviceArrival* found,
                    WaitReport** record);

}  // namespace perseid::internal::cuda
