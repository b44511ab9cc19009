// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "base/observe.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "base/log.hpp"
#include "base/nvtx.hpp"
#include "base/trace_file.hpp"

namespace perseid::internal {
namespace {

struct Observers {
  std::mutex mutex;
  bool decided = false;
  TraceFile trace;
};

Observers& the_observers() {
  static Observers observers;
  return observers;
}

int64_t nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Status read_verbosity(int* level) {
  const char* value = std::getenv("PERSEID_VERBOSE");
  const std::string_view text = value == nullptr ? "" : value;
  *level = text == "1" ? 1 : text == "2" ? 2 : 0;
  if (*level != 0 || text.empty() || text == "0") return {};
  return Status::error(PERSEID_INVALID_ARGUMENT, "PERSEID_VERBOSE is \"", text,
                       "\", expected 1 for plans on stderr, or 2 for executions with their times, "
                       "too; unset it for silence");
}

void tell_on_stderr(const char* name, const char* implementation, bool is_launch,
                    int64_t nanoseconds, const std::string& arguments) {
  char time[48];
  std::snprintf(time, sizeof time, "%s%.3f ms", is_launch ? "launched in " : "",
                static_cast<double>(nanoseconds) * 1e-6);
  log_on_stderr(concatenate(name, *implementation == '\0' ? "" : ", ", implementation, ", ", time,
                            arguments.empty() ? "" : ": ", arguments));
}

}  // namespace

Status observe_environment() {
  Observers& all = the_observers();
  const std::lock_guard lock(all.mutex);
  if (all.decided) return {};
  int level = 0;
  if (Status status = read_verbosity(&level); !status.ok()) return status;
  uint32_t observers = level == 2 ? uint32_t{kVerboseExecutions} : 0;
  // Ignored in a privileged (setuid) program: it would write any file.
  if (const char* path = secure_getenv("PERSEID_TRACE"); path != nullptr && *path != '\0') {
    if (Status status = all.trace.open(path); !status.ok()) return status;
    observers |= kTrace;
  }
  if (open_nvtx()) observers |= kNvtx;
  if (level > 0) log_to_stderr();
  all.decided = true;
  detail::observers.store(observers, std::memory_order_relaxed);
  return {};
}

void Span::begin(uint32_t observers, const char* subject, const char* part,
                 const char* implementation, bool is_launch,
                 const std::string& arguments) noexcept {
  observers_ = observers;
  is_launch_ = is_launch;
  implementation_ = implementation;
  arguments_ = &arguments;
  std::snprintf(name_, sizeof name_, "%s%s%s", subject, *part == '\0' ? "" : " ", part);
  if ((observers_ & kNvtx) != 0) nvtx_push(name_);
  began_ = nanoseconds();
}

void Span::end() noexcept {
  const int64_t ended = nanoseconds();
  if ((observers_ & kNvtx) != 0) nvtx_pop();
  try {
    if ((observers_ & kTrace) != 0)
      the_observers().trace.add(name_, began_, ended, implementation_, *arguments_);
    if ((observers_ & kVerboseExecutions) != 0)
      tell_on_stderr(name_, implementation_, is_launch_, ended - began_, *arguments_);
  } catch (...) {  // out of memory: the results are complete
  }
}

}  // namespace perseid::internal
