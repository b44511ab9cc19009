// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A whole file as read-only memory.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.hpp"

namespace perseid::internal::io {

// Its size is that of the moment it was opened. A file that is cut short by somebody else while it
// is mapped ends the process with SIGBUS when the missing part is read: writers are to rename a new
// file over an old one, as OutputFile does, which leaves the old mapping whole.
class MappedFile {
 public:
  MappedFile() = default;
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Once, on an object that has not been opened. IO_ERROR where the path is no regular file or
  // cannot be read. The messages do not name the path; the caller has it.
  Status open(const char* path);

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace perseid::internal::io
