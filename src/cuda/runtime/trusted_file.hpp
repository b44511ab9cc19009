// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Files that hold code to run. One is used only if nobody but this user and root can have written
// it. Owner and mode are asked of the opened descriptor: a path may be exchanged after a look at
// it.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.hpp"

namespace perseid::internal::cuda {

// Closed with its scope.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();

  explicit operator bool() const { return number_ >= 0; }
  int number() const { return number_; }
  // Closes it. False: what was written may be lost.
  bool close();

 private:
  int number_ = -1;
};

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
