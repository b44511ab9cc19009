// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The threads of the example. They serve its own loops and, as a perseid::Executor, the library's:
// one pool, so that the two never compete for the same cores.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

#include "perseid/perseid.hpp"

namespace gpt {

class Threads final : public perseid::Executor {
 public:
  // `count` workers, the calling thread among them; 0: one for each CPU.
  explicit Threads(int32_t count);
  ~Threads() override;
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int32_t workers() const noexcept override { return static_cast<int32_t>(helpers_.size()) + 1; }
  // A caller that finds the helpers busy does all tasks itself.
  void run(int64_t tasks, Task task) noexcept override;

  // body(begin, end) for consecutive pieces of [0, count), each of at most `grain`.
  template <class Body>
  void for_ranges(int64_t count, int64_t grain, const Body& body) {
    struct Ranges {
      const Body& body;
      int64_t count, grain;
    } ranges{body, count, grain};
    run((count + grain - 1) / grain,
        {[](void* state, int64_t task, int32_t) {
           const auto& r = *static_cast<Ranges*>(state);
           const int64_t begin = task * r.grain;
           r.body(begin, begin + r.grain < r.count ? begin + r.grain : r.count);
         },
         &ranges});
  }

 private:
  void help(int32_t worker);
  void drain(int32_t worker);

  std::vector<std::thread> helpers_;
  std::atomic_flag busy_;
  // One job at a time. Helpers come in through a gate while it is open; the caller closes it when
  // no task is left and waits for those inside alone, not for one that never got to run. The job's
  // fields change only while the gate is closed and nobody is inside.
  Task task_{};
  int64_t tasks_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<uint32_t> gate_{0};   // kOpen, and kInside for each helper inside
  std::atomic<uint32_t> round_{0};  // moves with every job
  std::atomic<bool> stop_{false};
};

}  // namespace gpt
