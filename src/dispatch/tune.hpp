// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Measures the configurations of an implementation on the caller's tensors.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "cuda/runtime/memory.hpp"
#include "dispatch/implementation.hpp"
#include "dispatch/tuning.hpp"

namespace perseid::internal::dispatch {

// One configuration of an operation's forward, ready to be timed.
template <class Operation>
class Contender {
 public:
  Contender(const Device& device, const typename Operation::Forward& arguments, void* stream)
      : device_(device), arguments_(arguments), stream_(stream) {}
  ~Contender() { cuda::release(*device_.gpu, workspace_); }
  Contender(const Contender&) = delete;
  Contender& operator=(const Contender&) = delete;

  Status make(const Implementation<Operation>& implementation,
              const typename Operation::Problem& problem, const std::string& configuration) {
    Status status = implementation.make_with(problem, device_, configuration, &executable_);
    const size_t bytes = status.ok() ? executable_->workspace(Direction::kForward) : 0;
    if (bytes > 0) status = cuda::allocate(*device_.gpu, bytes, &workspace_);
    if (status.ok()) status = cuda::Timer::make(device_.gpu, &timer_);
    return status;
  }

  // The time of one of `executions` in a row.
  Status measure(int executions, double* seconds) const {
    Status status = timer_->start(stream_);
    for (int i = 0; i < executions && status.ok(); ++i)
      status = executable_->forward(arguments_, static_cast<std::byte*>(workspace_), stream_);
    if (status.ok()) status = timer_->stop(stream_);
    if (status.ok()) status = timer_->seconds(seconds);
    *seconds /= executions;
    return status;
  }

 private:
  const Device& device_;
  const typename Operation::Forward& arguments_;
  void* stream_;
  std::unique_ptr<Executable<Operation>> executable_;
  std::unique_ptr<cuda::Timer> timer_;
  void* workspace_ = nullptr;
};

// The median times of all configurations, whose names these are, the built-in choice first. Each
// round measures all of them, so that a clock that falls slows down all alike.
template <class Operation>
Status measure_all(const Implementation<Operation>& implementation,
                   const std::vector<std::string>& names,
                   const typename Operation::Problem& problem, const Device& device,
                   const typename Operation::Forward& arguments, void* stream,
                   std::vector<Measured>* measured) {
  constexpr int kRounds = 9, kMostExecutions = 100;
  constexpr double kRoundSeconds = 2e-3;
  std::vector<std::unique_ptr<Contender<Operation>>> contenders;
  std::vector<std::vector<double>> times(names.size());
  std::vector<int> executions;
  for (const std::string& name : names) {
    auto& made =
        contenders.emplace_back(std::make_unique<Contender<Operation>>(device, arguments, stream));
    double cold = 0, seconds = 0;
    Status status = made->make(implementation, problem, name);
    if (status.ok()) status = made->measure(1, &cold);
    if (status.ok()) status = made->measure(1, &seconds);
    if (!status.ok()) return status;
    const double count = std::ceil(kRoundSeconds / std::max(seconds, 1e-9));
    executions.push_back(static_cast<int>(std::clamp(count, 1.0, double{kMostExecutions})));
  }
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < contenders.size(); ++i)
      if (Status status = contenders[i]->measure(executions[i], &times[i].emplace_back());
          !status.ok())
        return status;
  for (size_t i = 0; i < names.size(); ++i) {
    std::nth_element(times[i].begin(), times[i].begin() + kRounds / 2, times[i].end());
    measured->push_back({names[i], times[i][kRounds / 2], false});
  }
  return {};
}

// The fastest; the built-in choice, the first, unless another is faster by more than the noise.
inline Measured& fastest_of(std::vector<Measured>& measured) {
  constexpr double kNoise = 0.99;
  Measured& best =
      *std::min_element(measured.begin(), measured.end(),
                        [](const Measured& a, const Measured& b) { return a.seconds < b.seconds; });
  return best.seconds < kNoise * measured.front().seconds ? best : measured.front();
}

}  // namespace perseid::internal::dispatch
