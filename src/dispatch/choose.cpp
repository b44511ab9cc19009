// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "dispatch/choose.hpp"

#include <algorithm>

namespace perseid::dispatch {

Status read_wish(const char* wanted, const Device& device, const std::vector<const char*>& names,
                 Wish* wish) {
  const auto listed = [&](std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (wanted != nullptr && *wanted != '\0') {
    if (!listed(wanted)) {
      std::string known;
      for (const char* name : names) known += (known.empty() ? "" : ", ") + std::string(name);
      return Status::error(PERSEID_INVALID_ARGUMENT, "the descriptor's implementation is \"",
                           wanted, "\", expected one of ", known,
                           ", or NULL for the first that takes the problem");
    }
    *wish = {wanted, "the descriptor"};
  } else if (listed(device.forced_implementation)) {
    *wish = {device.forced_implementation, "PERSEID_FORCE_IMPL"};
  }
  return {};
}

Status nothing_takes_it(const std::vector<Considered>& considered) {
  std::string reasons;
  for (const Considered& entry : considered)
    reasons += concatenate(reasons.empty() ? "" : "; ", entry.name, ": ", entry.reason);
  return Status::error(PERSEID_UNSUPPORTED, "no implementation takes this problem (", reasons,
                       "); change the problem, or leave the choice to the library");
}

}  // namespace perseid::dispatch
