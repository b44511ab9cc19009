// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Who runs the tasks of a kernel. Kernels split their work by the problem alone, never by the
// number of workers, so that results do not depend on it; a worker's number only picks its scratch
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "math/portable.hpp"

namespace perseid::internal::cpu {

// Runs on any thread; `worker` is in [0, workers()) and belongs to no other task running at the
// same time.
using TaskFunction = void (*)(void* state, int64_t task, int32_t worker);

class Executor {
 public:
  virtual ~Executor() = default;
  virtual int32_t workers() const = 0;
  // Calls function(state, t, worker) once for every t in [0, tasks), and returns when all have
  // returned. May be entered by several threads at once.
  virtual void run(int64_t tasks, TaskFunction function, void* state) = 0;
  // Whether nobody needs the results any more: run_tasks() then begins no task, and long tasks ask
  // between tiles. Once true, it is true for all that the caller runs until it has noticed.
  virtual bool stopped() const;  // false, if it never stops
};

// The library's own pool: `threads` workers, the caller's thread among them. Threads start at the
// first run that has use for them, spin briefly for the next one, then sleep. A caller that finds
// the pool busy works alone.
std::unique_ptr<Executor> make_thread_pool(int32_t threads);

// The CPUs that this process may use (its affinity mask), at least 1.
int32_t available_cpus();

// What one execution works with. `workspace` is aligned to kWorkspaceAlignment and as large as the
// kernel's workspace query said.
inline constexpr size_t kWorkspaceAlignment = 64;
class Waits;
struct Execution {
  Executor& executor;
  std::byte* workspace;
  Waits* waits = nullptr;  // of an operation whose operands or output are cut into chunks
};

// executor.run() with every task in the library's floating-point environment, whatever the
// executor's threads were born with. Tasks that would begin after it has stopped are left out.
void run_tasks(Executor& executor, int64_t tasks, TaskFunction function, void* state);

// for_each_task(executor, n, [&](int64_t task, int32_t worker) {...})
template <class Body>
PERSEID_INLINE void for_each_task(Executor& executor, int64_t tasks, Body&& body) {
  run_tasks(
      executor, tasks,
      [](void* state, int64_t task, int32_t worker) {
        (*static_cast<std::remove_reference_t<Body>*>(state))(task, worker);
      },
      const_cast<void*>(static_cast<const void*>(&body)));
}

// Cuts a workspace into aligned parts. The same calls on a null base measure it: bytes() is the
// exact size.
class Arena {
 public:
  explicit PERSEID_INLINE Arena(std::byte* base) : base_(base) {}
  template <class T>
  PERSEID_INLINE T* take(int64_t count) {
    const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + kWorkspaceAlignment - 1) /
                         kWorkspaceAlignment * kWorkspaceAlignment;
    T* part = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += bytes;
    return part;
  }
  PERSEID_INLINE size_t bytes() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

}  // namespace perseid::internal::cpu
