// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/memory_rate.hpp"

#include <algorithm>

namespace perseid::cuda {
namespace {

constexpr double kMeasuringSeconds = 0.06;
constexpr int kFewestRepetitions = 5, kMostRepetitions = 2000;
constexpr const char* kAdvice = "see what nvidia-smi says of the GPU";

// Two buffers and two events, given back with their scope.
struct Resources {
  const Driver& driver;
  DeviceAddress from = 0, to = 0;
  EventHandle begin = nullptr, end = nullptr;

  explicit Resources(const Driver& used) : driver(used) {}
  ~Resources() {
    if (from != 0) driver.free(from);
    if (to != 0) driver.free(to);
    if (begin != nullptr) driver.event_destroy(begin);
    if (end != nullptr) driver.event_destroy(end);
  }
  Resources(const Resources&) = delete;
  Resources& operator=(const Resources&) = delete;

  Result make(size_t bytes) {
    Result result = driver.allocate(&from, bytes);
    if (result == kSuccess) result = driver.allocate(&to, bytes);
    if (result == kSuccess) result = driver.event_create(&begin, 0);
    if (result == kSuccess) result = driver.event_create(&end, 0);
    return result;
  }
};

}  // namespace

Status measure_copy(const Gpu& gpu, uint64_t bytes, double* per_second) {
  const Driver& driver = gpu.driver();
  const Gpu::Current current(gpu);
  if (!current.status().ok()) return current.status();
  Resources own(driver);
  Result result = own.make(bytes);
  double best = 0, measured = 0;
  for (int i = 0; result == kSuccess && i < kMostRepetitions &&
                  (i < kFewestRepetitions || measured < kMeasuringSeconds);
       ++i) {
    float milliseconds = 0;
    result = driver.event_record(own.begin, nullptr);
    if (result == kSuccess) result = driver.copy_on_device(own.to, own.from, bytes, nullptr);
    if (result == kSuccess) result = driver.event_record(own.end, nullptr);
    if (result == kSuccess) result = driver.event_synchronize(own.end);
    if (result == kSuccess) result = driver.event_elapsed(&milliseconds, own.begin, own.end);
    const double seconds = static_cast<double>(milliseconds) / 1e3;
    if (seconds > 0) best = std::max(best, 2.0 * static_cast<double>(bytes) / seconds);
    measured += seconds;
  }
  *per_second = best;
  return check(driver, result, "measuring a copy", kAdvice);
}

}  // namespace perseid::cuda
