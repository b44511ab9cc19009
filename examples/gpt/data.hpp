// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The text: a file, or the repository's own sources and documents. Bytes are tokens; the last tenth
// is kept for validation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "perseid/perseid.hpp"

namespace gpt {

// The bytes of a file; or of a folder: of every file in it whose name says that it is text, in the
// order of their paths, leaving out build folders and hidden ones. Throws perseid::Error where it
// cannot be read.
std::vector<uint8_t> read_text(const std::filesystem::path& path);

class Data {
 public:
  // Throws perseid::Error where either part is shorter than a sequence of `context` bytes needs.
  Data(std::vector<uint8_t> bytes, int64_t context);

  // `batch` sequences drawn from the training part as (seed, step) say, and for each byte its
  // successor. Both spans hold batch * context bytes.
  void draw(uint64_t seed, int64_t step, std::span<uint8_t> tokens,
            std::span<uint8_t> targets) const;
  // How many sequences of the validation part there are, end to end, and the index-th of them.
  int64_t validation_sequences() const;
  void validation(int64_t index, std::span<uint8_t> tokens, std::span<uint8_t> targets) const;

  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  int64_t training_size() const { return training_; }
  uint64_t fingerprint() const;  // of all bytes

 private:
  void copy(int64_t begin, std::span<uint8_t> tokens, std::span<uint8_t> targets) const;

  std::vector<uint8_t> bytes_;
  int64_t context_;
  int64_t training_;  // bytes of the training part
};

}  // namespace gpt
