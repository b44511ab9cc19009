// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Reports of kernels whose waits ended without their chunk (device/chunk_waits.hpp), in page-locked
// memory. The next synchronisation of the stream returns them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/device/chunk_waits.hpp"
#include "cuda/runtime/driver.hpp"

namespace perseid::internal::cuda {

// An execution that waits, for the sentence about it.
struct WaitingExecution {
  const char* operation = "";
  const char* operands[2] = {"a", "b"};
  uint64_t deadline_ns[2] = {};
};

// Knows more about why work of a stream failed than the reports of its kernels say.
class StreamObserver {
 public:
  virtual ~StreamObserver() = default;
  // The failure of work of the stream, which has ended; each is returned once.
  virtual Status take(void* stream) = 0;
  // Returns when no work that it has queued waits for another rank.
  virtual void drain() = 0;
};

// Those of one device, whose context all objects of a Gpu in the process share.
class StreamObservers {
 public:
  static std::shared_ptr<StreamObservers> of(int32_t device);
  void add(StreamObserver* observer);
  void remove(StreamObserver* observer);
  Status take(void* stream);
  void drain();

 private:
  std::mutex mutex_;
  std::vector<StreamObserver*> observers_;
};

class WaitReports {
 public:
  WaitReports(const Driver& driver, int32_t device)
      : driver_(driver), observers_(StreamObservers::of(device)) {}
  // The context must be current.
  ~WaitReports();
  WaitReports(const WaitReports&) = delete;
  WaitReports& operator=(const WaitReports&) = delete;

  // Where the kernel of the next execution on the stream reports; memory of the host that the
  // device reaches by the same address. The context must be current. Of more than kSlots executions
  // in flight, two may share a report.
  static constexpr size_t kSlots = 1024;
  Status draw(const WaitingExecution& execution, void* stream, WaitReport** report);
  // The first report of the stream's executions; each is returned once. OK where there is none.
  Status take(void* stream);
  // Whoever would take the reports of the stream knows of them.
  void forget(void* stream);
  // Allocates the memory now instead of at the first draw(). The context must be current.
  Status reserve();

  // What one says of a stream takes the place of its reports.
  StreamObservers& observers() const { return *observers_; }

 private:
  Status allocate();
  Status take_slots(void* stream, const Status& observed);

  struct Slot {
    WaitingExecution execution;
    void* stream = nullptr;
    bool used = false;
  };

  const Driver& driver_;
  std::mutex mutex_;
  WaitReport* reports_ = nullptr;
  std::vector<Slot> slots_;
  size_t next_ = 0;
  std::shared_ptr<StreamObservers> observers_;
};

}  // namespace perseid::internal::cuda
