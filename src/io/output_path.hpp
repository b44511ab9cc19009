// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Which file a path of an output means.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/status.hpp"

namespace perseid::internal::io {

inline constexpr mode_t kModeBits = 0777;

struct Output {
  std::string path;            // no symbolic link; its folder's path may hold some
  std::optional<mode_t> mode;  // of the file that is there
};

// The folder of a path, ending in '/'.
std::string folder_of(const std::string& path);

// Follows symbolic links to their end, where a regular file or none must be. A link that somebody
// else made in a folder that everyone may write, such as /tmp, is refused.
Status find_output(const std::string& path, Output* output);

}  // namespace perseid::internal::io
