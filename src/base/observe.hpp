// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Reports of plans and executions that environment variables switch on:
// PERSEID_VERBOSE=1|2   plans, and executions with their times, on stderr
// PERSEID_TRACE=FILE    both as events of a Chrome trace
// NVTX_INJECTION64_PATH both as ranges of a profiler, which sets the variable
// Where none is set, an execution costs one relaxed load.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/status.hpp"

namespace perseid::internal {

enum Observer : uint32_t {
  kVerboseExecutions = 1,  // on stderr, where there is no log callback
  kTrace = 2,
  kNvtx = 4
};

namespace detail {
inline std::atomic<uint32_t> observers{0};
}

// Reads the environment, once: after the first call that succeeds others do nothing. Errors name
// the variable that has a wrong value.
Status observe_environment();

inline bool observed_by(uint32_t observers) {
  return (detail::observers.load(std::memory_order_relaxed) & observers) != 0;
}

// Reports the time from its construction to its destruction. On a GPU that is the launch alone.
class Span {
 public:
  // `subject` and `part` form the name, such as "attention" and "plan". `arguments`: the operands,
  // as text. All must outlive the span.
  Span(const char* subject, const char* part, const char* implementation, bool is_launch,
       const std::string& arguments) noexcept {
    const uint32_t observers = detail::observers.load(std::memory_order_relaxed);
    if (observers != 0) begin(observers, subject, part, implementation, is_launch, arguments);
  }
  ~Span() {
    if (observers_ != 0) end();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  void begin(uint32_t observers, const char* subject, const char* part, const char* implementation,
             bool is_launch, const std::string& arguments) noexcept;
  void end() noexcept;

  uint32_t observers_ = 0;
  // Set where that is not 0.
  bool is_launch_;
  const char* implementation_;
  const std::string* arguments_;
  int64_t began_;  // nanoseconds
  char name_[48];
};

}  // namespace perseid::internal
