// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Messages for the caller's log callback, or for stderr (observe.hpp). Without one, a message costs
// one relaxed load: ask log_enabled() before composing it.
#pragma once

#include <string>

#include "perseid/perseid.h"

namespace perseid::internal {

// Returns when no thread is inside the previous callback any more.
void set_log_callback(perseid_log_fn callback, void* user, int32_t level);
bool log_enabled(perseid_log_level level);
void log(perseid_log_level level, const std::string& message);

// From now on, while there is no callback, messages of PERSEID_LOG_INFO and above go to stderr: the
// user has asked for them in the environment.
void log_to_stderr();
// A message that no callback gets.
void log_on_stderr(const std::string& message);

}  // namespace perseid::internal
