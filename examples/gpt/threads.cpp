// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "threads.hpp"

#include <algorithm>

namespace gpt {
namespace {

// Jobs follow each other within microseconds: look for a while before asking the system to sleep.
constexpr int kSpins = 4000;

constexpr uint32_t kOpen = 1;
constexpr uint32_t kInside = 2;

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
  gate_.store(kOpen, std::memory_order_release);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  drain(0);
  uint32_t inside = gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  for (; inside != 0; inside = gate_.load(std::memory_order_acquire)) wait_while(gate_, inside);
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
    uint32_t gate = gate_.load(std::memory_order_relaxed);
    while ((gate & kOpen) != 0 &&
           !gate_.compare_exchange_weak(gate, gate + kInside, std::memory_order_acquire,
                                        std::memory_order_relaxed)) {
    }
    if ((gate & kOpen) == 0) continue;
    drain(worker);
    // The last one out of a closed gate tells the caller.
    if (gate_.fetch_sub(kInside, std::memory_order_acq_rel) == kInside) gate_.notify_one();
  }
}

}  // namespace gpt
