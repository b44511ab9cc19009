// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "dispatch/ceiling.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <vector>

#include "cuda/runtime/memory_rate.hpp"

namespace perseid::internal::dispatch {
namespace {

constexpr double kMeasuringSeconds = 0.06;
constexpr int kFewestRepetitions = 5;
constexpr double kTaskSeconds = 3e-4;
// More tasks than workers, so that a worker that starts late costs little.
constexpr int64_t kTasksPerWorker = 16;
constexpr int64_t kShortTasks = 2;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One task as function(task) -> work done; the best rate of all tasks together. Every other
// repetition has `fewer` tasks: a short one may fall between two turns of other processes.
template <class Function>
double best_rate(const Device& device, int64_t all, int64_t fewer, const Function& function) {
  std::vector<double> work(static_cast<size_t>(all));
  double best = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kFewestRepetitions || seconds_since(start) < kMeasuringSeconds; ++i) {
    const int64_t tasks = i % 2 == 0 ? all : fewer;
    const auto repetition = std::chrono::steady_clock::now();
    cpu::for_each_task(*device.executor, tasks, [&](int64_t task, int32_t) {
      work[static_cast<size_t>(task)] = function(task);
    });
    const double elapsed = seconds_since(repetition);
    double sum = 0;
    for (int64_t task = 0; task < tasks; ++task) sum += work[static_cast<size_t>(task)];
    best = max(best, sum / elapsed);
  }
  return best;
}

double peak_rate(const Device& device, double (*peak)(int64_t)) {
  // The loop's length that takes about kTaskSeconds. Bounded, in case the clock stands still.
  int64_t iterations = 64;
  for (double elapsed = 0; elapsed < kTaskSeconds && iterations < int64_t{1} << 40;
       iterations *= 2) {
    const auto start = std::chrono::steady_clock::now();
    peak(iterations);
    elapsed = seconds_since(start);
  }
  return best_rate(device, device.workers() * kTasksPerWorker, device.workers() * kShortTasks,
                   [&](int64_t) { return peak(iterations); });
}

struct FreeAligned {
  void operator()(std::byte* memory) const {
    ::operator delete (memory, std::align_val_t{cpu::kWorkspaceAlignment});
  }
};
using Buffer = std::unique_ptr<std::byte, FreeAligned>;

Buffer allocate(size_t bytes) {
  return Buffer(
      static_cast<std::byte*>(::operator new (bytes, std::align_val_t{cpu::kWorkspaceAlignment})));
}

// An array of `bytes` in pieces, one per task; a task repeats its piece until it is long enough to
// be timed.
double memory_rate(const Device& device, uint64_t bytes, bool copying) {
  constexpr uint64_t kSmallPiece = 1 << 20;
  const auto workers = static_cast<uint64_t>(device.workers());
  const bool large = bytes / (workers * kTasksPerWorker) >= kSmallPiece;
  const uint64_t pieces = large ? workers * kTasksPerWorker : workers;
  const uint64_t piece = (bytes / pieces / cpu::kWorkspaceAlignment + 1) * cpu::kWorkspaceAlignment;
  const uint64_t turns = kSmallPiece * 4 / piece + 1;

  const Buffer from = allocate(pieces * piece);
  const Buffer to = copying ? allocate(pieces * piece) : Buffer();
  cpu::for_each_task(*device.executor, static_cast<int64_t>(pieces), [&](int64_t task, int32_t) {
    const size_t offset = static_cast<size_t>(task) * piece;
    std::fill_n(from.get() + offset, piece, std::byte{1});
    if (copying) std::fill_n(to.get() + offset, piece, std::byte{1});
  });

  // All pieces every time: fewer of them might fit into a cache.
  const auto count = static_cast<int64_t>(pieces);
  return best_rate(device, count, count, [&](int64_t task) {
    const size_t offset = static_cast<size_t>(task) * piece;
    double moved = 0;
    for (uint64_t turn = 0; turn < turns; ++turn)
      moved += copying ? device.kernels->copy(from.get() + offset, to.get() + offset, piece)
                       : device.kernels->read(from.get() + offset, piece);
    return moved;
  });
}

Status check_size(uint64_t bytes) {
  if (bytes == 0)
    return Status::error(PERSEID_INVALID_ARGUMENT,
                         "the ceilings of copying and reading need the size of an array, got 0 "
                         "bytes; pass the bytes that the work in question touches");
  return {};
}

Status check_memory(uint64_t bytes) {
  const auto memory =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes > memory / 4)
    return Status::error(PERSEID_OUT_OF_MEMORY, "expected an array of at most a quarter of the ",
                         memory, " bytes of memory, got ", bytes, " bytes; measure a smaller one");
  return {};
}

Status measure_gpu(const Device& device, int32_t ceiling, uint64_t bytes, double* per_second) {
  if (ceiling != PERSEID_CEILING_COPY)
    return Status::error(PERSEID_UNSUPPORTED, "the ceiling is ", ceiling,
                         ", expected 3 (COPY), the only one that is measured on a GPU");
  if (Status status = check_size(bytes); !status.ok()) return status;
  const size_t memory = device.gpu->facts().memory_bytes;
  if (bytes > memory / 4)
    return Status::error(PERSEID_OUT_OF_MEMORY, "expected an array of at most a quarter of the ",
                         memory, " bytes of the GPU, got ", bytes, " bytes; measure a smaller one");
  return cuda::measure_copy(device.gpu, bytes, per_second);
}

}  // namespace

Status measure_ceiling(const Device& device, int32_t ceiling, uint64_t bytes, double* per_second) {
  if (device.gpu != nullptr) return measure_gpu(device, ceiling, bytes, per_second);
  const cpu::KernelTable& kernels = *device.kernels;
  switch (ceiling) {
    case PERSEID_CEILING_F32:
      *per_second = peak_rate(device, kernels.peak_f32);
      return {};
    case PERSEID_CEILING_BF16:
      *per_second = peak_rate(device, kernels.peak_bf16);
      return {};
    case PERSEID_CEILING_F64:
      *per_second = peak_rate(device, kernels.peak_f64);
      return {};
    case PERSEID_CEILING_COPY:
    case PERSEID_CEILING_READ:
      if (Status status = check_size(bytes); !status.ok()) return status;
      if (Status status = check_memory(bytes); !status.ok()) return status;
      *per_second = memory_rate(device, bytes, ceiling == PERSEID_CEILING_COPY);
      return {};
  }
  return Status::error(PERSEID_INVALID_ARGUMENT, "the ceiling is ", ceiling,
                       ", expected one of perseid_ceiling: 0 (F32) to 4 (READ)");
}

}  // namespace perseid::internal::dispatch
