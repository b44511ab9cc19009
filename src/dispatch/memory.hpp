// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Memory of a device and a timer for its streams, one interface for CPU and GPU.
#pragma once

#include <chrono>
#include <memory>

#include "cuda/runtime/memory.hpp"
#include "dispatch/device.hpp"
#include "math/chunks.hpp"

namespace perseid::internal::dispatch {

// Null for 0 bytes.
Status allocate(const Device& device, size_t bytes, void** data);
void release(const Device& device, void* data);
Status copy(const Device& device, void* to, const void* from, size_t bytes, void* stream);
Status synchronize(const Device& device, void* stream);

// In stream order; on the CPU at once. `missing` is filled where a wait on the CPU fails.
Status set_signal(const Device& device, uint32_t* signal, uint32_t epoch, void* stream);
Status wait_for_signal(const Device& device, const Arrival& arrival, void* stream,
                       Missing* missing);

// Measures the time between two points of a stream; on the CPU, of the calling thread.
class Timer {
 public:
  static Status make(const Device& device, std::unique_ptr<Timer>* timer);
  Status start(void* stream);
  Status stop(void* stream);
  Status seconds(double* seconds) const;

 private:
  std::unique_ptr<cuda::Timer> gpu_;
  std::chrono::steady_clock::time_point begin_, end_;
  bool started_ = false, stopped_ = false;
};

}  // namespace perseid::internal::dispatch
