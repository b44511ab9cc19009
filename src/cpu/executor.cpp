// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The pool. One caller at a time owns it and is worker 0; others work alone. A run publishes its
// job, opens the gate and rings the bell; threads that wake in time enter and draw tasks from one
// counter; the caller closes the gate when no task is left and waits only for the threads inside,
// so that a thread that sleeps through a short run costs nothing. Threads share atomics alone, so
// that the child of a fork at any time can reset them.
#include "cpu/executor.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#if defined(__linux__)
#include <sched.h>
#endif

#include "base/blocked_signals.hpp"
#include "base/floating_point.hpp"

namespace perseid::internal::cpu {
namespace {

// Longer than the serial work between two kernels, too short to matter.
constexpr std::chrono::microseconds kSpin{50};
constexpr uint32_t kGateOpen = 1u << 31;

// How often this process descends from a fork that happened after the first pool was made.
std::atomic<uint64_t> forks{0};

void count_forks() {
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif __has_builtin(__builtin_arm_yield)  // g++ has none for Arm, and spins without a hint
  __builtin_arm_yield();
#endif
}

// Returns when the value is no longer `old`: spins for a while, then sleeps until notified.
void await_change(const std::atomic<uint32_t>& value, uint32_t old, bool spin) {
  if (spin) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < 32; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        relax();
      }
    } while (std::chrono::steady_clock::now() < deadline);
  }
  value.wait(old, std::memory_order_acquire);
}

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int32_t threads)
      : workers_(std::max(threads, 1)),
        spin_(workers_ <= available_cpus()),
        members_(new Member[static_cast<size_t>(workers_)]),
        owner_(2 * forks.load(std::memory_order_relaxed)) {}

  ~ThreadPool() override {
    // After a fork the threads belong to the parent.
    if (owner_.load(std::memory_order_acquire) / 2 != forks.load(std::memory_order_relaxed)) return;
    stop_.store(true, std::memory_order_relaxed);
    bell_.fetch_add(1, std::memory_order_release);
    bell_.notify_all();
    for (int32_t i = 1; i < started_; ++i) pthread_join(member(i).thread, nullptr);
  }

  int32_t workers() const override { return workers_; }

  void run(int64_t tasks, TaskFunction function, void* state) override {
    if (tasks <= 1 || workers_ == 1 || !acquire()) {
      for (int64_t task = 0; task < tasks; ++task) function(state, task, 0);
      return;
    }
    start_threads();
    job_ = {tasks, function, state};
    next_.store(0, std::memory_order_relaxed);
    gate_.store(kGateOpen, std::memory_order_release);
    ring(tasks - 1);
    work(0);
    uint32_t inside = gate_.fetch_and(~kGateOpen, std::memory_order_acq_rel) & ~kGateOpen;
    while (inside != 0) {
      await_change(gate_, inside, spin_);
      inside = gate_.load(std::memory_order_acquire);
    }
    owner_.store(2 * forks.load(std::memory_order_relaxed), std::memory_order_release);
  }

 private:
  struct Job {
    int64_t tasks;
    TaskFunction function;
    void* state;
  };
  struct Member {
    ThreadPool* pool;
    int32_t worker;
    pthread_t thread;
  };

  Member& member(int32_t worker) const { return members_[static_cast<size_t>(worker)]; }

  // Makes the caller the pool's owner, unless it has one in this process: a run in progress, which
  // may be the caller's own.
  bool acquire() {
    const uint64_t free = 2 * forks.load(std::memory_order_relaxed);
    uint64_t owner = owner_.load(std::memory_order_relaxed);
    if (owner == free + 1) return false;
    if (!owner_.compare_exchange_strong(owner, free + 1, std::memory_order_acquire)) return false;
    if (owner != free) {  // left behind by a parent process, as its threads have been
      gate_.store(0, std::memory_order_relaxed);
      started_ = 1;
    }
    return true;
  }

  // Where the system gives fewer threads than asked for, those it gives do the work.
  void start_threads() {
    if (started_ == workers_) return;
    const BlockedSignals blocked;
    for (; started_ < workers_; ++started_) {
      Member& fresh = member(started_);
      fresh.pool = this;
      fresh.worker = started_;
      if (pthread_create(&fresh.thread, nullptr, &ThreadPool::enter_thread, &fresh) != 0) break;
    }
  }

  static void* enter_thread(void* argument) {
    const Member& self = *static_cast<Member*>(argument);
    self.pool->serve(self.worker);
    return nullptr;
  }

  void ring(int64_t wanted) {
    bell_.fetch_add(1);
    if (wanted >= started_ - 1) {
      bell_.notify_all();
    } else {
      for (int64_t i = 0; i < wanted; ++i) bell_.notify_one();
    }
  }

  void serve(int32_t worker) {
    // A thread that starts while its first job runs need not wait for the next.
    uint32_t heard = bell_.load(std::memory_order_acquire);
    while (!stop_.load(std::memory_order_relaxed)) {
      if (enter()) {
        work(worker);
        if (gate_.fetch_sub(1, std::memory_order_acq_rel) == 1) gate_.notify_one();
      }
      await_change(bell_, heard, spin_);
      heard = bell_.load(std::memory_order_acquire);
    }
  }

  bool enter() {
    uint32_t gate = gate_.load(std::memory_order_relaxed);
    while ((gate & kGateOpen) != 0)
      if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire)) return true;
    return false;
  }

  void work(int32_t worker) {
    const Job job = job_;
    for (int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < job.tasks;)
      job.function(job.state, task, worker);
  }

  const int32_t workers_;
  const bool spin_;  // not where threads outnumber CPUs: the spinner would keep the worker waiting
  const std::unique_ptr<Member[]> members_;
  int32_t started_ = 1;  // members at work, the caller included; the owner's, like job_
  Job job_{};
  std::atomic<uint64_t> owner_;                // 2 * forks, and 1 more while a caller runs
  alignas(64) std::atomic<uint32_t> bell_{0};  // how often it rang
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<uint32_t> gate_{0};  // threads inside, and kGateOpen
  alignas(64) std::atomic<int64_t> next_{0};
};

}  // namespace

bool Executor::stopped() const { return false; }

void run_tasks(Executor& executor, int64_t tasks, TaskFunction function, void* state) {
  if (tasks <= 0) return;
  struct Loop {
    TaskFunction function;
    void* state;
    const Executor& executor;
  } loop{function, state, executor};
  executor.run(
      tasks,
      [](void* argument, int64_t task, int32_t worker) {
        const Loop& each = *static_cast<const Loop*>(argument);
        if (each.executor.stopped()) return;
        const FloatingPointScope environment;
        each.function(each.state, task, worker);
      },
      &loop);
}

std::unique_ptr<Executor> make_thread_pool(int32_t threads) {
  count_forks();
  return std::make_unique<ThreadPool>(threads);
}

int32_t available_cpus() {
#if defined(__linux__)
  // The kernel refuses a set smaller than its own; 2^20 CPUs are more than any has.
  for (int capacity = 1024; capacity <= 1 << 20; capacity *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(capacity));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(capacity));
    const int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
#endif
  return std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
}

}  // namespace perseid::internal::cpu
