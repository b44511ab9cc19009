// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A file that appears under its name whole or not at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.hpp"
#include "io/output_path.hpp"
#include "io/tensor_file.hpp"

namespace perseid::internal::io {

// Writes to a temporary name in the folder of the path, which commit() makes durable and renames.
// Until then the destructor removes it. A path that is a symbolic link keeps the link: what it
// leads to is written. A file that is replaced keeps its mode.
class OutputFile {
 public:
  OutputFile() = default;
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Once, on an object that has not been opened. The messages do not name the path.
  Status open(const std::string& path);
  Status write(std::span<const std::byte> bytes);
  // The tensor's elements in row-major order, gathered in a small buffer where they do not lie so.
  Status write_row_major(const SourceTensor& tensor);
  Status commit();

 private:
  Status keep_mode();

  Output output_;
  std::string folder_, temporary_;
  int descriptor_ = -1;
};

}  // namespace perseid::internal::io
