// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// How long kernels wait for chunks (device/chunk_waits.hpp), from one point of a stream on.
#pragma once

#include <vector>

#include "cuda/runtime/gpu.hpp"

namespace perseid::internal::cuda {

class ChunkWaitTimes {
 public:
  // Allocates and loads what begin() needs; read() says what failed.
  ChunkWaitTimes(std::shared_ptr<Gpu> gpu, int64_t count);
  ~ChunkWaitTimes();
  ChunkWaitTimes(const ChunkWaitTimes&) = delete;
  ChunkWaitTimes& operator=(const ChunkWaitTimes&) = delete;

  // Forgets all waits, in the order of the stream.
  void begin(void* stream);
  // One for each of `count` chunks, for kernels; null where something failed.
  ChunkWait* data() const { return status_.ok() ? waits_ : nullptr; }
  int64_t count() const { return count_; }

  // Nanoseconds after begin(), from the first block's begin to the last one's end.
  struct Wait {
    int64_t begin = 0, end = 0;
    int64_t waited = 0;  // by a block of the launch, on average
  };
  // Of work that has ended.
  Status read(std::vector<Wait>* waits) const;

 private:
  std::shared_ptr<Gpu> gpu_;
  int64_t count_;
  std::vector<Kernel> kernels_;
  ChunkWait* waits_ = nullptr;  // one more: its `until` is when they began
  Status status_;
};

}  // namespace perseid::internal::cuda
