// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Files of code to run. One is used only if no user but this one and root can have written it.
// Owner and mode are read from the open descriptor: a path may be replaced after a check.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/descriptor.hpp"
#include "base/status.hpp"

namespace perseid::internal::cuda {

// Opens a file or folder that belongs to this user, root or `owner` and that no one else can write.
// OK with an empty descriptor: it does not exist. Links are followed: their targets are checked.
Status open_trusted_file(const std::string& path, uid_t owner, Descriptor* file);
Status open_trusted_folder(const std::string& path, Descriptor* folder);
// Opens a file of an open folder; a link is refused.
Status open_trusted_file(const Descriptor& folder, const std::string& name, Descriptor* file);

// Makes a folder and its missing parents, for this user alone.
void make_private_folder(const std::string& path);
// Writes a file of an open folder atomically. False: it could not be written.
bool replace_file(const Descriptor& folder, const std::string& name, std::string_view content);

// The size of a file, 0 if it is unknown.
uint64_t size_of(const Descriptor& file);
// Reads exactly `bytes` bytes at `offset`. False: the file is shorter, or cannot be read.
bool read_at(const Descriptor& file, uint64_t offset, uint64_t bytes, std::string* text);

}  // namespace perseid::internal::cuda
