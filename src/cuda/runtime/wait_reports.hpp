// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Reports of kernels whose waits ended without their chunk (device/chunk_waits.hpp), in page-locked
// memory. The next synchronisation of the stream returns them.
#pragma once

#include <cstdint>
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
};

class WaitReports {
 public:
  explicit WaitReports(const Driver& driver) : driver_(driver) {}
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

  // What an observer says of a stream takes the place of its reports.
  void add(StreamObserver* observer);
  void remove(StreamObserver* observer);

 private:
  Status ask_observers(void* stream);

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
  std::mutex observers_mutex_;
  std::vector<StreamObserver*> observers_;
};

}  // namespace perseid::internal::cuda
