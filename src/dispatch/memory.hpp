// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Memory of a device and the time that its streams take, the same on the CPU and on a GPU.
#pragma once

#include <chrono>
#include <memory>

#include "cuda/runtime/memory.hpp"
#include "dispatch/device.hpp"

namespace perseid::internal::dispatch {

// Null for 0 bytes.
Status allocate(const Device& device, size_t bytes, void** data);
void release(const Device& device, void* data);
Status copy(const Device& device, void* to, const void* from, size_t bytes, void* stream);
Status synchronize(const Device& device, void* stream);

// Between two points of a stream; of the calling thread, on the CPU.
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
