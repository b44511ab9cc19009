// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// How an execution on CPUs ends while its workers compute. Between tiles they look at the group's
// abort word and at the deadline: once the group has failed, or the deadline has passed while a
// part of another rank is missing, they begin no tile more. The execution then returns the failure
// that a wait would have returned; its results are unspecified, and nothing of them was signalled.
//
// A plan's local work runs on a device of its own, with the context's workers (Executor::stopped).
#pragma once

#include <atomic>
#include <functional>

#include "collective/transport.hpp"
#include "op/plan.hpp"

namespace perseid::internal::collective {

class Stop {
 public:
  // Makes `device` one whose workers stop. On a GPU it stays as it is, and there is no Stop.
  static std::shared_ptr<Stop> watch(Group& group, op::DevicePointer* device);

  // For workers, at any time.
  bool stopped() const;

 private:
  friend class WatchedWork;
  enum class State : uint32_t { kIdle, kWatching, kStopping, kStopped };

  explicit Stop(Group& group) : group_(group) {}

  Group& group_;
  // Of the execution. A plan is executed once at a time on a rank.
  Clock::time_point deadline_;
  std::function<MissingPart(uint64_t)> find_missing_;
  mutable std::atomic<State> state_{State::kIdle};
  mutable MissingPart missing_;  // of whoever stopped
};

// The local work of one execution, in which workers stop.
class WatchedWork {
 public:
  // find_missing(ranks): a part that has not arrived, of a rank that has no bit in `ranks`. It is
  // called by any worker. `stop`: null on a GPU.
  template <class FindMissing>
  WatchedWork(Stop* stop, const Operation& operation, const Sending& sending,
              const FindMissing& find_missing)
      : stop_(stop), operation_(operation), sending_(sending) {
    static_assert(sizeof find_missing <= 2 * sizeof(void*), "std::function would allocate");
    if (stop_ == nullptr) return;
    stop_->deadline_ = operation.deadline;
    stop_->find_missing_ = find_missing;
    stop_->state_.store(Stop::State::kWatching, std::memory_order_release);
  }
  ~WatchedWork() {
    if (stop_ != nullptr) stop_->state_.store(Stop::State::kIdle, std::memory_order_release);
  }
  WatchedWork(const WatchedWork&) = delete;
  WatchedWork& operator=(const WatchedWork&) = delete;

  // Of a part of the work, before others are told that it is done.
  Status ended(Status status) const;

 private:
  MissingPart missing_part() const;

  Stop* const stop_;
  const Operation& operation_;
  const Sending& sending_;
};

}  // namespace perseid::internal::collective
