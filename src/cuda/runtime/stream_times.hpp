// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// When streams of a GPU pass points, by events.
#pragma once

#include <vector>

#include "cuda/runtime/gpu.hpp"

namespace perseid::internal::cuda {

class StreamTimes {
 public:
  explicit StreamTimes(std::shared_ptr<const Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~StreamTimes();
  StreamTimes(const StreamTimes&) = delete;
  StreamTimes& operator=(const StreamTimes&) = delete;

  // Forgets all points.
  void clear();
  // After the work queued on the stream. The point's number, from 0 on.
  int64_t mark(void* stream);
  // Seconds from the first point to each. Fails where a point has not been passed, or marked.
  Status seconds(std::vector<double>* at) const;

 private:
  std::shared_ptr<const Gpu> gpu_;
  std::vector<EventHandle> events_;  // used again
  size_t count_ = 0;
  Status status_;  // of the marks
};

}  // namespace perseid::internal::cuda
