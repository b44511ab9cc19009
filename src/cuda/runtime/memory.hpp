// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU, and a timer for its streams.
#pragma once

#include <memory>

#include "cuda/runtime/gpu.hpp"

namespace perseid::internal::cuda {

// Null for 0 bytes.
Status allocate(const Gpu& gpu, size_t bytes, void** data);
void release(const Gpu& gpu, void* data);
// Copies between host and device or within either, in stream order, and waits for the copy.
Status copy(const Gpu& gpu, void* to, const void* from, size_t bytes, void* stream);
// Waits for the work of the stream. Fails also where a kernel's wait for a chunk has failed.
Status synchronize(const Gpu& gpu, void* stream);

// Where the device reaches memory of the host, which must be page-locked, registered or managed;
// `name` is that of the argument. The context must be current.
Status device_address(const Gpu& gpu, const char* name, const void* host, void** address);

// Measures the time between two points of a stream.
class Timer {
 public:
  static Status make(std::shared_ptr<const Gpu> gpu, std::unique_ptr<Timer>* timer);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  Status start(void* stream);
  Status stop(void* stream);
  // Waits for the second point.
  Status seconds(double* seconds) const;

 private:
  explicit Timer(std::shared_ptr<const Gpu> gpu) : gpu_(std::move(gpu)) {}
  Status record(EventHandle event, void* stream);

  std::shared_ptr<const Gpu> gpu_;
  EventHandle begin_ = nullptr, end_ = nullptr;
};

}  // namespace perseid::internal::cuda
