// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/stop.hpp"

namespace perseid::internal::collective {
namespace {

// By how much ranks may begin an execution one after the other and still be known to compute.
constexpr std::chrono::milliseconds kLateTime{200};

class StoppingExecutor final : public cpu::Executor {
 public:
  StoppingExecutor(op::DevicePointer device, std::shared_ptr<const Stop> stop)
      : device_(std::move(device)), executor_(*device_->executor), stop_(std::move(stop)) {}

  int32_t workers() const override { return executor_.workers(); }
  void run(int64_t tasks, cpu::TaskFunction function, void* state) override {
    executor_.run(tasks, function, state);
  }
  bool stopped() const override { return stop_->stopped(); }

 private:
  const op::DevicePointer device_;
  cpu::Executor& executor_;
  const std::shared_ptr<const Stop> stop_;
};

}  // namespace

std::shared_ptr<Stop> Stop::watch(Group& group, op::DevicePointer* device) {
  if ((*device)->gpu != nullptr) return nullptr;
  std::shared_ptr<Stop> stop(new Stop(group));
  *device = dispatch::with_executor(**device, std::make_unique<StoppingExecutor>(*device, stop));
  return stop;
}

bool Stop::stopped() const {
  State state = state_.load(std::memory_order_acquire);
  if (state != State::kWatching) return state != State::kIdle;
  const bool failed = cpu::load_acquire(group_.abort()) != 0;
  if (!failed && Clock::now() < deadline_) return false;
  const MissingPart missing = find_missing_(0);
  if (!failed && missing.rank < 0) return false;
  if (state_.compare_exchange_strong(state, State::kStopping)) {
    missing_ = missing;
    state_.store(State::kStopped, std::memory_order_release);
  }
  return true;
}

// Ranks whose local work takes as long find at their own deadlines that this one is missing: they
// say so, and are not the one that is silent.
MissingPart WatchedWork::missing_part() const {
  Group& group = stop_->group_;
  const MissingPart part = stop_->missing_;
  if (group.size() == 2 || cpu::load_acquire(group.abort()) != 0) return part;
  group.publish_wait(part.rank, part.signal, sending_.epoch);
  const Clock::time_point verdict = Clock::now() + kLateTime;
  while (Clock::now() < verdict && cpu::load_acquire(group.abort()) == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const MissingPart silent = stop_->find_missing_(group.waiting());
  return silent.rank < 0 ? part : silent;
}

Status WatchedWork::ended(Status status) const {
  if (stop_ == nullptr || !status.ok() || stop_->state_.load() != Stop::State::kStopped)
    return status;
  const MissingPart part = missing_part();
  if (cpu::load_acquire(stop_->group_.abort()) == 0)
    (void)stop_->group_.give_up(operation_, part.rank);
  return missing_chunk(stop_->group_, operation_, sending_, part.chunk,
                       part.signal == nullptr ? 0 : cpu::load_acquire(part.signal));
}

}  // namespace perseid::internal::collective
