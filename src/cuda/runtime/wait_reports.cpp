// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/wait_reports.hpp"

#include <map>

#include "base/missing_chunk.hpp"

namespace perseid::internal::cuda {

static_assert(kReportedTimeout == PERSEID_TIMEOUT && kReportedPeerLost == PERSEID_PEER_LOST);
static_assert(sizeof(WaitReport) == sizeof(perseid_wait_record));

std::shared_ptr<StreamObservers> StreamObservers::of(int32_t device) {
  static std::mutex mutex;
  static std::map<int32_t, std::weak_ptr<StreamObservers>> of_devices;
  const std::lock_guard lock(mutex);
  std::weak_ptr<StreamObservers>& known = of_devices[device];
  std::shared_ptr<StreamObservers> found = known.lock();
  if (found == nullptr) known = found = std::make_shared<StreamObservers>();
  return found;
}

void StreamObservers::add(StreamObserver* observer) {
  const std::lock_guard lock(mutex_);
  observers_.push_back(observer);
}

void StreamObservers::remove(StreamObserver* observer) {
  const std::lock_guard lock(mutex_);
  std::erase(observers_, observer);
}

Status StreamObservers::take(void* stream) {
  const std::lock_guard lock(mutex_);
  for (StreamObserver* observer : observers_)
    if (Status status = observer->take(stream); !status.ok()) return status;
  return {};
}

void StreamObservers::drain() {
  const std::lock_guard lock(mutex_);
  for (StreamObserver* observer : observers_) observer->drain();
}

WaitReports::~WaitReports() {
  if (reports_ != nullptr) driver_.host_free(reports_);
}

Status WaitReports::allocate() {
  if (reports_ != nullptr) return {};
  void* memory = nullptr;
  const Result result =
      driver_.host_allocate(&memory, kSlots * sizeof(WaitReport), kPortableMapped);
  Status status = check(driver_, result, "allocating page-locked memory of the host",
                        "see what nvidia-smi says");
  if (!status.ok()) return status;
  reports_ = static_cast<WaitReport*>(memory);
  slots_.resize(kSlots);
  return {};
}

Status WaitReports::reserve() {
  const std::lock_guard lock(mutex_);
  return allocate();
}

Status WaitReports::draw(const WaitingExecution& execution, void* stream, WaitReport** report) {
  const std::lock_guard lock(mutex_);
  if (Status status = allocate(); !status.ok()) return status;
  const size_t slot = next_++ % kSlots;
  reports_[slot] = {};
  slots_[slot] = {execution, stream, true};
  *report = reports_ + slot;
  return {};
}

Status WaitReports::take(void* stream) { return take_slots(stream, observers_->take(stream)); }

void WaitReports::forget(void* stream) {
  (void)take_slots(stream, Status::error(PERSEID_PEER_LOST, "known"));
}

// A failure in `observed` replaces the reports of the stream.
Status WaitReports::take_slots(void* stream, const Status& observed) {
  const std::lock_guard lock(mutex_);
  const size_t drawn = next_ < kSlots ? next_ : kSlots;
  for (size_t i = 0; i < drawn; ++i) {
    const size_t slot = (next_ - drawn + i) % kSlots;  // the oldest first
    Slot& of = slots_[slot];
    if (!of.used || of.stream != stream) continue;
    const int32_t code = __atomic_load_n(&reports_[slot].status, __ATOMIC_ACQUIRE);
    if (code == PERSEID_OK) continue;
    const WaitReport found = reports_[slot];
    of.used = false;
    if (!observed.ok()) continue;
    return status_of({.operation = of.execution.operation,
                      .operand = of.execution.operands[found.operand],
                      .chunk = found.chunk,
                      .expected = found.expected,
                      .seen = found.seen,
                      .aborted = code == PERSEID_PEER_LOST,
                      .deadline_ns = of.execution.deadline_ns[found.operand]});
  }
  return observed;
}

}  // namespace perseid::internal::cuda
