// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Messages for the caller's log callback. Without one, a message costs one relaxed load: ask
// log_enabled() before composing it.
#pragma once

#include <string>

#include "perseid/perseid.h"

namespace perseid::internal {

// Returns when no thread is inside the previous callback any more.
void set_log_callback(perseid_log_fn callback, void* user, int32_t level);
bool log_enabled(perseid_log_level level);
void log(perseid_log_level level, const std::string& message);

}  // namespace perseid::internal
