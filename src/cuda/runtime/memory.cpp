// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/memory.hpp"

namespace perseid::internal::cuda {
namespace {

constexpr const char* kAdvice =
    "work before it may have failed, or a pointer is not of this device; see what nvidia-smi says";

}  // namespace

Status allocate(const Gpu& gpu, size_t bytes, void** data) {
  *data = nullptr;
  if (bytes == 0) return {};
  const Gpu::Current current(gpu);
  if (!current.status().ok()) return current.status();
  DeviceAddress address = 0;
  const Result result = gpu.driver().allocate(&address, bytes);
  if (result == kOutOfMemory) {
    size_t free = 0, total = 0;
    gpu.driver().memory_info(&free, &total);
    return Status::error(PERSEID_OUT_OF_MEMORY, bytes, " bytes of the GPU were asked for, and ",
                         free, " of its ", total, " are free; free some memory of the device");
  }
  *data = reinterpret_cast<void*>(address);
  return check(gpu.driver(), result, "allocating memory of the GPU", kAdvice);
}

void release(const Gpu& gpu, void* data) {
  if (data == nullptr) return;
  // Freeing waits as loading does (gpu.cpp).
  gpu.wait_reports().observers().drain();
  const Gpu::Current current(gpu);
  if (current.status().ok()) gpu.driver().free(reinterpret_cast<DeviceAddress>(data));
}

Status copy(const Gpu& gpu, void* to, const void* from, size_t bytes, void* stream) {
  if (bytes == 0) return {};
  const Gpu::Current current(gpu);
  if (!current.status().ok()) return current.status();
  const Result result =
      gpu.driver().copy(reinterpret_cast<DeviceAddress>(to), reinterpret_cast<DeviceAddress>(from),
                        bytes, static_cast<StreamHandle>(stream));
  if (Status status = check(gpu.driver(), result, "copying memory of the GPU", kAdvice);
      !status.ok())
    return status;
  return synchronize(gpu, stream);
}

Status synchronize(const Gpu& gpu, void* stream) {
  const Gpu::Current current(gpu);
  if (!current.status().ok()) return current.status();
  const Result result = gpu.driver().stream_synchronize(static_cast<StreamHandle>(stream));
  if (result != kSuccess) return check(gpu.driver(), result, "work of the GPU", kAdvice);
  return gpu.wait_reports().take(stream);
}

Status device_address(const Gpu& gpu, const char* name, const void* host, void** address) {
  if (gpu.is_reachable(host)) {
    *address = const_cast<void*>(host);
    return {};
  }
  DeviceAddress found = 0;
  const Result result = gpu.driver().pointer_attribute(&found, PointerAttribute::kDevicePointer,
                                                       reinterpret_cast<DeviceAddress>(host));
  if (result != kSuccess || found == 0)
    return Status::error(PERSEID_INVALID_ARGUMENT, name,
                         " is in memory that the GPU does not reach, expected page-locked memory; "
                         "allocate it with cudaHostAlloc or register it with cudaHostRegister");
  *address = reinterpret_cast<void*>(found);
  return {};
}

Status Timer::make(std::shared_ptr<const Gpu> gpu, std::unique_ptr<Timer>* timer) {
  std::unique_ptr<Timer> made(new Timer(std::move(gpu)));
  const Gpu::Current current(*made->gpu_);
  if (!current.status().ok()) return current.status();
  const Driver& driver = made->gpu_->driver();
  Result result = driver.event_create(&made->begin_, 0);
  if (result == kSuccess) result = driver.event_create(&made->end_, 0);
  Status status = check(driver, result, "making a timer of the GPU", kAdvice);
  if (status.ok()) *timer = std::move(made);
  return status;
}

Timer::~Timer() {
  const Gpu::Current current(*gpu_);
  if (!current.status().ok()) return;
  for (EventHandle event : {begin_, end_})
    if (event != nullptr) gpu_->driver().event_destroy(event);
}

Status Timer::record(EventHandle event, void* stream) {
  const Gpu::Current current(*gpu_);
  if (!current.status().ok()) return current.status();
  const Driver& driver = gpu_->driver();
  return check(driver, driver.event_record(event, static_cast<StreamHandle>(stream)),
               "starting or stopping a timer of the GPU", kAdvice);
}

Status Timer::start(void* stream) { return record(begin_, stream); }
Status Timer::stop(void* stream) { return record(end_, stream); }

Status Timer::seconds(double* seconds) const {
  const Gpu::Current current(*gpu_);
  if (!current.status().ok()) return current.status();
  const Driver& driver = gpu_->driver();
  float milliseconds = 0;
  Result result = driver.event_synchronize(end_);
  if (result == kSuccess) result = driver.event_elapsed(&milliseconds, begin_, end_);
  *seconds = static_cast<double>(milliseconds) / 1e3;
  return check(driver, result, "reading a timer of the GPU", kAdvice);
}

}  // namespace perseid::internal::cuda
