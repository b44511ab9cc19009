// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/memory_rate.hpp"

#include <algorithm>
#include <array>

#include "cuda/runtime/memory.hpp"

namespace perseid::internal::cuda {
namespace {

constexpr double kMeasuringSeconds = 0.02;
constexpr int kMostRounds = 200;
// Copies in flight at once, so that the GPU never waits for the host between them.
constexpr size_t kQueued = 8;

struct Buffer {
  const Gpu& gpu;
  void* data = nullptr;

  explicit Buffer(const Gpu& used) : gpu(used) {}
  ~Buffer() { release(gpu, data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

}  // namespace

Status measure_copy(const std::shared_ptr<const Gpu>& gpu, uint64_t bytes, double* per_second) {
  Buffer from(*gpu), to(*gpu);
  if (Status status = allocate(*gpu, bytes, &from.data); !status.ok()) return status;
  if (Status status = allocate(*gpu, bytes, &to.data); !status.ok()) return status;
  std::array<std::unique_ptr<Timer>, kQueued> timers;
  for (auto& timer : timers)
    if (Status status = Timer::make(gpu, &timer); !status.ok()) return status;

  const Gpu::Current current(*gpu);
  if (!current.status().ok()) return current.status();
  double best = 0, measured = 0;
  for (int round = 0; round < kMostRounds && measured < kMeasuringSeconds; ++round) {
    for (auto& timer : timers) {
      if (Status status = timer->start(nullptr); !status.ok()) return status;
      const Result result =
          gpu->driver().copy(reinterpret_cast<DeviceAddress>(to.data),
                             reinterpret_cast<DeviceAddress>(from.data), bytes, nullptr);
      if (Status status = check(gpu->driver(), result, "measuring a copy",
                                "see what nvidia-smi says of the GPU");
          !status.ok())
        return status;
      if (Status status = timer->stop(nullptr); !status.ok()) return status;
    }
    for (const auto& timer : timers) {
      double seconds = 0;
      if (Status status = timer->seconds(&seconds); !status.ok()) return status;
      measured += seconds;
      if (seconds > 0) best = std::max(best, 2.0 * static_cast<double>(bytes) / seconds);
    }
  }
  *per_second = best;
  return {};
}

}  // namespace perseid::internal::cuda
