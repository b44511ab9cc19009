// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Files that hold code to run. One is used only if nobody but this user and root can have written
// it. Owner and mode are asked of the opened descriptor: a path may be exchanged after a look at
// it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/descriptor.hpp"
#include "base/status.hpp"

namespace perseid::internal::cuda {

// A file or folder of this user, of root, or of `owner` that nobody else may write. OK with an
// empty descriptor: there is none. Links to it are followed, as whoever may make them chooses
// nothing but another file that passes.
Status open_trusted_file(const std::string& path, uid_t owner, Descriptor* file);
Status open_trusted_folder(const std::string& path, Descriptor* folder);
// A file in an opened folder, which is no link.
Status open_trusted_file(const Descriptor& folder, const std::string& name, Descriptor* file);

// Makes a folder, and those that it lies in, for this user alone. What is there already stays.
void make_private_folder(const std::string& path);
// Writes a file of an opened folder, whole or not at all. False: it could not be written.
bool replace_file(const Descriptor& folder, const std::string& name, std::string_view content);

// The size of a file, 0 where it cannot be told.
uint64_t size_of(const Descriptor& file);
// Exactly `bytes` bytes at `offset`. False: the file is shorter, or cannot be read.
bool read_at(const Descriptor& file, uint64_t offset, uint64_t bytes, std::string* text);

}  // namespace perseid::internal::cuda
