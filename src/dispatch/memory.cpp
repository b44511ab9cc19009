// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "dispatch/memory.hpp"

#include <cstring>
#include <new>

namespace perseid::internal::dispatch {
namespace {

constexpr std::align_val_t kAlignment{cpu::kWorkspaceAlignment};

}  // namespace

Status allocate(const Device& device, size_t bytes, void** data) {
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
