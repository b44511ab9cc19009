// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <unistd.h>

#include <atomic>
#include <limits>
#include <mutex>
#include <shared_mutex>

namespace perseid::internal {
namespace {

constexpr int kSilent = std::numeric_limits<int>::max();

struct Log {
  std::atomic<int> level{kSilent};
  std::shared_mutex mutex;  // shared while calling
  perseid_log_fn callback = nullptr;
  void* user = nullptr;
  bool to_stderr = false;  // without a callback
};

Log& the_log() {
  static Log log;
  return log;
}

// One system call, so that the lines of threads do not mix.
void write_to_stderr(const std::string& message) {
  std::string line = "perseid: " + message;
  if (!line.ends_with('\n')) line += '\n';
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

int level_of(const Log& log, int32_t level_of_callback) {
  if (log.callback != nullptr) return level_of_callback;
  return log.to_stderr ? PERSEID_LOG_INFO : kSilent;
}

}  // namespace

void set_log_callback(perseid_log_fn callback, void* user, int32_t level) {
  Log& log = the_log();
  const std::unique_lock lock(log.mutex);
  log.callback = callback;
  log.user = user;
  log.level.store(level_of(log, level), std::memory_order_relaxed);
}

bool log_enabled(perseid_log_level level) {
  return static_cast<int>(level) >= the_log().level.load(std::memory_order_relaxed);
}

void log(perseid_log_level level, const std::string& message) {
  Log& log = the_log();
  const std::shared_lock lock(log.mutex);
  // Asked again under the lock: the callback may be gone since the caller asked.
  if (!log_enabled(level)) return;
  if (log.callback != nullptr) {
    log.callback(log.user, level, message.c_str());
  } else {
    write_to_stderr(message);
  }
}

void log_to_stderr() {
  Log& log = the_log();
  const std::unique_lock lock(log.mutex);
  log.to_stderr = true;
  if (log.callback == nullptr) log.level.store(level_of(log, kSilent), std::memory_order_relaxed);
}

void log_on_stderr(const std::string& message) {
  Log& log = the_log();
  const std::shared_lock lock(log.mutex);
  if (log.callback == nullptr) write_to_stderr(message);
}

}  // namespace perseid::internal
