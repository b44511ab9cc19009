// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Memory of a device, and timers.
#include "dispatch/memory.hpp"

#include "api/guard.hpp"
#include "api/handles.hpp"

using perseid::internal::Status;
using perseid::internal::api::guarded;
using perseid::internal::api::null_argument;

struct perseid_timer {
  std::unique_ptr<perseid::internal::dispatch::Timer> timer;
};

extern "C" {

perseid_status perseid_context_device(perseid_context_t context, DLDevice* device) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("perseid_context_device", "context");
    if (device == nullptr) return null_argument("perseid_context_device", "device");
    *device = context->device->dl_device();
    return {};
  });
}

perseid_status perseid_memory_allocate(perseid_context_t context, size_t bytes, void** data) {
  return guarded([&]() -> Status {
    if (data == nullptr) return null_argument("perseid_memory_allocate", "data");
    *data = nullptr;
    if (context == nullptr) return null_argument("perseid_memory_allocate", "context");
    return perseid::internal::dispatch::allocate(*context->device, bytes, data);
  });
}

void perseid_memory_free(perseid_context_t context, void* data) {
  if (context != nullptr && data != nullptr)
    perseid::internal::dispatch::release(*context->device, data);
}

perseid_status perseid_memory_copy(perseid_context_t context, void* to, const void* from,
                                   size_t bytes, void* stream) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("perseid_memory_copy", "context");
    if (to == nullptr && bytes > 0) return null_argument("perseid_memory_copy", "to");
    if (from == nullptr && bytes > 0) return null_argument("perseid_memory_copy", "from");
    return perseid::internal::dispatch::copy(*context->device, to, from, bytes, stream);
  });
}

perseid_status perseid_stream_synchronize(perseid_context_t context, void* stream) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("perseid_stream_synchronize", "context");
    return perseid::internal::dispatch::synchronize(*context->device, stream);
  });
}

perseid_status perseid_timer_create(perseid_context_t context, perseid_timer_t* timer) {
  return guarded([&]() -> Status {
    if (timer == nullptr) return null_argument("perseid_timer_create", "timer");
    *timer = nullptr;
    if (context == nullptr) return null_argument("perseid_timer_create", "context");
    auto made = std::make_unique<perseid_timer>();
    Status status = perseid::internal::dispatch::Timer::make(*context->device, &made->timer);
    if (status.ok()) *timer = made.release();
    return status;
  });
}

void perseid_timer_destroy(perseid_timer_t timer) { delete timer; }

perseid_status perseid_timer_start(perseid_timer_t timer, void* stream) {
  return guarded([&]() -> Status {
    if (timer == nullptr) return null_argument("perseid_timer_start", "timer");
    return timer->timer->start(stream);
  });
}

perseid_status perseid_timer_stop(perseid_timer_t timer, void* stream) {
  return guarded([&]() -> Status {
    if (timer == nullptr) return null_argument("perseid_timer_stop", "timer");
    return timer->timer->stop(stream);
  });
}

perseid_status perseid_timer_seconds(perseid_timer_t timer, double* seconds) {
  return guarded([&]() -> Status {
    if (timer == nullptr) return null_argument("perseid_timer_seconds", "timer");
    if (seconds == nullptr) return null_argument("perseid_timer_seconds", "seconds");
    return timer->timer->seconds(seconds);
  });
}

}  // extern "C"
