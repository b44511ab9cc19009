// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/stream_times.hpp"

namespace perseid::internal::cuda {
namespace {

constexpr const char* kAdvice = "synchronize the stream before, and see that its work succeeded";

}  // namespace

StreamTimes::~StreamTimes() {
  const Gpu::Current current(*gpu_);
  if (!current.status().ok()) return;
  for (EventHandle event : events_) gpu_->driver().event_destroy(event);
}

void StreamTimes::clear() {
  count_ = 0;
  status_ = {};
}

int64_t StreamTimes::mark(void* stream) {
  const Gpu::Current current(*gpu_);
  const Driver& driver = gpu_->driver();
  if (status_.ok()) status_ = current.status();
  if (status_.ok() && count_ == events_.size()) {
    EventHandle event = nullptr;
    status_ = check(driver, driver.event_create(&event, 0), "making an event of the GPU", kAdvice);
    if (status_.ok()) events_.push_back(event);
  }
  if (!status_.ok()) return 0;
  status_ = check(driver, driver.event_record(events_[count_], static_cast<StreamHandle>(stream)),
                  "recording an event of the GPU", kAdvice);
  return static_cast<int64_t>(count_++);
}

Status StreamTimes::seconds(std::vector<double>* at) const {
  const Gpu::Current current(*gpu_);
  Status status = status_.ok() ? current.status() : status_;
  at->assign(count_, 0);
  for (size_t i = 1; i < count_ && status.ok(); ++i) {
    float milliseconds = 0;
    const Driver& driver = gpu_->driver();
    status = check(driver, driver.event_elapsed(&milliseconds, events_[0], events_[i]),
                   "reading the time of an event of the GPU", kAdvice);
    (*at)[i] = static_cast<double>(milliseconds) / 1e3;
  }
  return status;
}

}  // namespace perseid::internal::cuda
