// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A whole file as read-only memory.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.hpp"

namespace perseid::internal::io {

// Larger files are mapped.
inline constexpr size_t kMostBytesRead = 4 << 20;

// Its size is that of the moment it was opened. A small file is read into memory at once. A mapped
// file that somebody else cuts short ends the process with SIGBUS when the missing part is read:
// writers are to rename a new file over an old one, as OutputFile does, which leaves the old
// mapping whole.
class InputFile {
 public:
  InputFile() = default;
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Once, on an object that has not been opened. IO_ERROR where the path is no regular file or
  // cannot be read. The messages do not name the path; the caller has it.
  Status open(const char* path);

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  Status read(int descriptor, size_t bytes);
  Status map(int descriptor, size_t bytes);

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  bool mapped_ = false;
};

}  // namespace perseid::internal::io
