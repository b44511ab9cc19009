// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/executor.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace perseid::internal::cpu {
namespace {

using Counters = std::vector<std::atomic<int>>;

bool all_once(const Counters& counters) {
  for (const auto& counter : counters)
    if (counter.load() != 1) return false;
  return true;
}

// Every task once, under a worker's number that no other task holds at the time.
void run_and_check(Executor& executor, int64_t tasks) {
  Counters done(static_cast<size_t>(tasks));
  Counters busy(static_cast<size_t>(executor.workers()));
  std::atomic<int> collisions{0};
  for_each_task(executor, tasks, [&](int64_t task, int32_t worker) {
    if (worker < 0 || worker >= executor.workers()) {
      collisions.fetch_add(1);
      return;
    }
    if (busy[static_cast<size_t>(worker)].fetch_add(1) != 0) collisions.fetch_add(1);
    done[static_cast<size_t>(task)].fetch_add(1);
    busy[static_cast<size_t>(worker)].fetch_sub(1);
  });
  EXPECT_EQ(collisions.load(), 0);
  EXPECT_TRUE(all_once(done)) << tasks << " tasks on " << executor.workers() << " workers";
}

TEST(Executor, RunsEveryTaskOnce) {
  for (const int32_t threads : {1, 2, 3, 8}) {
    const auto pool = make_thread_pool(threads);
    EXPECT_EQ(pool->workers(), threads);
    for (const int64_t tasks : {0, 1, 2, 3, 7, 8, 9, 1000}) run_and_check(*pool, tasks);
  }
}

TEST(Executor, TakesAtLeastOneWorker) {
  for (const int32_t threads : {0, -3}) {
    const auto pool = make_thread_pool(threads);
    EXPECT_EQ(pool->workers(), 1);
    run_and_check(*pool, 5);
  }
}

TEST(Executor, UsesItsThreads) {
  const auto pool = make_thread_pool(3);
  // Three tasks that wait for one another can only end on three threads.
  std::atomic<int> arrived{0};
  std::atomic<bool> late{false};
  for_each_task(*pool, 3, [&](int64_t, int32_t) {
    arrived.fetch_add(1);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (arrived.load() < 3) {
      if (std::chrono::steady_clock::now() > deadline) {
        late.store(true);
        return;
      }
      std::this_thread::yield();
    }
  });
  EXPECT_FALSE(late.load());
}

TEST(Executor, WritesOfTasksAreVisibleAfterRun) {
  const auto pool = make_thread_pool(4);
  std::vector<int64_t> values(512);
  for (int64_t round = 1; round <= 200; ++round) {
    for_each_task(*pool, static_cast<int64_t>(values.size()), [&](int64_t task, int32_t) {
      values[static_cast<size_t>(task)] += round * task;
    });
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], static_cast<int64_t>(i) * round * (round + 1) / 2);
  }
}

TEST(Executor, ManySmallRuns) {
  for (const int32_t threads : {2, 5}) {
    const auto pool = make_thread_pool(threads);
    std::atomic<int64_t> total{0};
    for (int i = 0; i < 20000; ++i)
      for_each_task(*pool, 2 + i % 3, [&](int64_t task, int32_t) { total.fetch_add(task + 1); });
    int64_t expected = 0;
    for (int i = 0; i < 20000; ++i) expected += (2 + i % 3) * (3 + i % 3) / 2;
    EXPECT_EQ(total.load(), expected);
  }
}

// Pauses of about the time that threads spin, so that runs meet them falling asleep.
TEST(Executor, RunsAfterPauses) {
  const auto pool = make_thread_pool(2);
  for (int i = 0; i < 400; ++i) {
    run_and_check(*pool, 3);
    std::this_thread::sleep_for(std::chrono::microseconds(i));
  }
}

TEST(Executor, ConcurrentCallers) {
  const auto pool = make_thread_pool(3);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&pool, caller] {
      for (int i = 0; i < 500; ++i) run_and_check(*pool, 1 + (i + caller) % 17);
    });
  for (std::thread& caller : callers) caller.join();
}

TEST(Executor, NestedRuns) {
  const auto pool = make_thread_pool(3);
  std::atomic<int64_t> total{0};
  for_each_task(*pool, 10, [&](int64_t, int32_t) {
    for_each_task(*pool, 10, [&](int64_t inner, int32_t) { total.fetch_add(inner); });
  });
  EXPECT_EQ(total.load(), 450);
}

TEST(Executor, ManyPools) {
  for (int i = 0; i < 100; ++i) {
    const auto pool = make_thread_pool(4);
    if (i % 2 == 0) run_and_check(*pool, 8);  // the others never start a thread
  }
}

TEST(Executor, WorksInAForkedChild) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer allows no new threads after a fork";
#endif
  auto pool = make_thread_pool(3);
  run_and_check(*pool, 100);
  // One child meets threads that spin, the other ones that sleep; a third forks again.
  for (int round = 0; round < 3; ++round) {
    if (round == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(20);  // a hang is a failure
      int status = 0;
      if (round == 2) {
        const pid_t grandchild = fork();
        if (grandchild > 0 && waitpid(grandchild, &status, 0) != grandchild) _exit(2);
      }
      for (int i = 0; i < 50; ++i) run_and_check(*pool, 100);
      pool.reset();
      _exit(testing::Test::HasFailure() || status != 0 ? 1 : 0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  run_and_check(*pool, 100);
}

TEST(Executor, ForkedChildMayDestroyAnUnusedPool) {
  auto pool = make_thread_pool(2);
  run_and_check(*pool, 10);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    pool.reset();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Executor, AvailableCpusFollowTheAffinityMask) {
  EXPECT_GE(available_cpus(), 1);
  std::thread([] {
    const int cpu = sched_getcpu();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(cpu), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(available_cpus(), 1);
  }).join();
}

TEST(Arena, MeasuresWhatItCuts) {
  alignas(kWorkspaceAlignment) std::byte memory[1024];
  Arena measure(nullptr);
  Arena arena(memory);
  for (Arena* each : {&measure, &arena}) {
    each->take<double>(3);
    each->take<uint8_t>(0);
    each->take<uint8_t>(65);
  }
  EXPECT_EQ(measure.bytes(), 192u);
  EXPECT_EQ(arena.bytes(), 192u);
  EXPECT_EQ(reinterpret_cast<std::byte*>(arena.take<float>(1)), memory + 192);
}

}  // namespace
}  // namespace perseid::internal::cpu
