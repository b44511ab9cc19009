// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/// \file
/// Where the messages of the library go. Included by perseid.hpp.
#ifndef PERSEID_LOG_HPP_
#define PERSEID_LOG_HPP_

#include <functional>
#include <mutex>
#include <string_view>
#include <utility>

#include "perseid/perseid.h"

namespace perseid {
inline namespace v0 {

/// Takes one message of the library.
using LogFunction = std::function<void(perseid_log_level, std::string_view)>;

/// Sends the library's messages of at least `level` to `function`, one at a time, from any thread
/// (an empty function: silence). It must not call the library; what it throws is dropped.
/// \snippet snippets.cpp log
inline void set_log(LogFunction function, perseid_log_level level = PERSEID_LOG_INFO) {
  struct State {
    std::mutex mutex;
    LogFunction function;
  };
  static State* state = new State;  // never freed: threads may still log while the program ends
  const bool wanted = static_cast<bool>(function);
  perseid_set_log_callback(nullptr, nullptr, level);
  {
    const std::lock_guard lock(state->mutex);
    state->function = std::move(function);
  }
  if (!wanted) return;
  perseid_set_log_callback(
      [](void* user, perseid_log_level message_level, const char* message) {
        auto* to = static_cast<State*>(user);
        try {
          const std::lock_guard lock(to->mutex);
          if (to->function) to->function(message_level, message);
        } catch (...) {
        }
      },
      state, level);
}

}  // namespace v0
}  // namespace perseid

#endif  // PERSEID_LOG_HPP_
