// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "dispatch/memory.hpp"

#include <cstddef>
#include <cstring>
#include <limits>
#include <new>

#include "base/missing_chunk.hpp"
#include "cpu/waits.hpp"
#include "cuda/runtime/signals.hpp"

namespace perseid::internal::dispatch {
namespace {

constexpr std::align_val_t kAlignment{cpu::kWorkspaceAlignment};

// More than any object has. Allocators round up to their alignment, which would wrap around.
constexpr size_t kMostBytes = std::numeric_limits<std::ptrdiff_t>::max();

}  // namespace

Status allocate(const Device& device, size_t bytes, void** data) {
  if (bytes > kMostBytes)
    return Status::error(PERSEID_OUT_OF_MEMORY, "memory: ", bytes,
                         " bytes were asked for, more than any machine has; ask for less");
  if (device.gpu != nullptr) return cuda::allocate(*device.gpu, bytes, data);
  *data = bytes == 0 ? nullptr : ::operator new(bytes, kAlignment, std::nothrow);
  if (bytes == 0 || *data != nullptr) return {};
  return Status::error(PERSEID_OUT_OF_MEMORY, "memory: ", bytes,
                       " bytes were asked for, and the host has no such room; free some memory");
}

void release(const Device& device, void* data) {
  if (device.gpu != nullptr) return cuda::release(*device.gpu, data);
  ::operator delete(data, kAlignment);
}

Status copy(const Device& device, void* to, const void* from, size_t bytes, void* stream) {
  if (device.gpu != nullptr) return cuda::copy(*device.gpu, to, from, bytes, stream);
  if (bytes > 0) std::memmove(to, from, bytes);
  return {};
}

Status synchronize(const Device& device, void* stream) {
  return device.gpu != nullptr ? cuda::synchronize(*device.gpu, stream) : Status();
}

Status set_signal(const Device& device, uint32_t* signal, uint32_t epoch, void* stream) {
  if (device.gpu != nullptr) return cuda::set_signal(*device.gpu, signal, epoch, stream);
  cpu::set_signal(signal, epoch);
  return {};
}

Status wait_for_signal(const Device& device, const Arrival& arrival, void* stream,
                       Missing* missing) {
  if (device.gpu != nullptr) return cuda::wait_for_signal(*device.gpu, arrival, stream);
  const uint32_t epoch =
      arrival.epoch_ptr == nullptr ? arrival.epoch : cpu::load_acquire(arrival.epoch_ptr);
  const WaitEnd end = cpu::wait_for_signal(arrival.signals, epoch,
                                           cpu::deadline_after(arrival.deadline_ns), arrival.abort);
  if (end == WaitEnd::kArrived) return {};
  *missing = {
      .end = end, .chunk = 0, .expected = epoch, .seen = cpu::load_acquire(arrival.signals)};
  return status_of({.operation = "perseid_stream_signal_wait",
                    .operand = "the signal",
                    .chunk = 0,
                    .expected = epoch,
                    .seen = missing->seen,
                    .aborted = end == WaitEnd::kAborted,
                    .deadline_ns = arrival.deadline_ns});
}

Status Timer::make(const Device& device, std::unique_ptr<Timer>* timer) {
  auto made = std::make_unique<Timer>();
  if (device.gpu != nullptr)
    if (Status status = cuda::Timer::make(device.gpu, &made->gpu_); !status.ok()) return status;
  *timer = std::move(made);
  return {};
}

Status Timer::start(void* stream) {
  started_ = true;
  stopped_ = false;
  if (gpu_ != nullptr) return gpu_->start(stream);
  begin_ = std::chrono::steady_clock::now();
  return {};
}

Status Timer::stop(void* stream) {
  stopped_ = true;
  if (gpu_ != nullptr) return gpu_->stop(stream);
  end_ = std::chrono::steady_clock::now();
  return {};
}

Status Timer::seconds(double* seconds) const {
  if (!started_ || !stopped_)
    return Status::error(PERSEID_INVALID_ARGUMENT, "timer: ", started_ ? "it" : "its start",
                         " was not ", started_ ? "stopped since it was started" : "set",
                         "; call perseid_timer_start and then perseid_timer_stop first");
  if (gpu_ != nullptr) return gpu_->seconds(seconds);
  *seconds = std::chrono::duration<double>(end_ - begin_).count();
  return {};
}

}  // namespace perseid::internal::dispatch
