// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

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
};

Log& the_log() {
  static Log log;
  return log;
}

}  // namespace

void set_log_callback(perseid_log_fn callback, void* user, int32_t level) {
  Log& log = the_log();
  const std::unique_lock lock(log.mutex);
  log.callback = callback;
  log.user = user;
  log.level.store(callback == nullptr ? kSilent : level, std::memory_order_relaxed);
}

bool log_enabled(perseid_log_level level) {
  return static_cast<int>(level) >= the_log().level.load(std::memory_order_relaxed);
}

void log(perseid_log_level level, const std::string& message) {
  Log& log = the_log();
  const std::shared_lock lock(log.mutex);
  // Asked again under the lock: the callback may be gone since the caller asked.
  if (log_enabled(level)) log.callback(log.user, level, message.c_str());
}

}  // namespace perseid::internal
