// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "threads.hpp"

#include <algorithm>

namespace gpt {
namespace {

// Jobs follow each other within microseconds: look for a while before asking the system to sleep.
constexpr int kSpins = 4000;

template <class T>
void wait_while(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

Threads::Threads(int32_t count) {
  if (count <= 0) count = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  for (int32_t worker = 1; worker < count; ++worker) {
    helpers_.emplace_back([this, worker] { help(worker); });
  }
}

Threads::~Threads() {
  stop_ = true;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (auto& helper : helpers_) helper.join();
}

void Threads::run(int64_t tasks, Task task) noexcept {
  if (tasks <= 1 || helpers_.empty() || busy_.test_and_set(std::memory_order_acquire)) {
    for (int64_t t = 0; t < tasks; ++t) task(t, 0);
    return;
  }
  task_ = task;
  tasks_ = tasks;
  next_.store(0, std::memory_order_relaxed);
  helping_.store(static_cast<int32_t>(helpers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  drain(0);
  while (const int32_t helping = helping_.load(std::memory_order_acquire)) {
    wait_while(helping_, helping);
  }
  busy_.clear(std::memory_order_release);
}

void Threads::drain(int32_t worker) {
  for (;;) {
    const int64_t t = next_.fetch_add(1, std::memory_order_relaxed);
    if (t >= tasks_) return;
    task_(t, worker);
  }
}

void Threads::help(int32_t worker) {
  for (uint32_t round = 0;;) {
    wait_while(round_, round);
    round = round_.load(std::memory_order_acquire);
    if (stop_) return;
    drain(worker);
    if (helping_.fetch_sub(1, std::memory_order_acq_rel) == 1) helping_.notify_one();
  }
}

}  // namespace gpt
