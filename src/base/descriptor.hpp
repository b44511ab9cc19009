// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// File descriptors of the library. None is 0, 1 or 2: if a process has closed a standard stream,
// the next file that it opens gets that number, and a message for stderr would be written to the
// file.
#pragma once

#include <sys/types.h>

#include <utility>

namespace perseid::internal {

// Moves a descriptor to 3 or above, closed on exec; owns it from then on. -1, for which errno says
// why, where there is none: `descriptor` was -1 (errno is kept), or no other could be had.
int above_standard_streams(int descriptor);

// open(2) with O_CLOEXEC, above the standard streams, and again where a signal interrupts it.
int open_file(const char* path, int flags, mode_t mode = 0);

// Closes a descriptor at the end of its scope.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();

  bool opened() const { return number_ >= 0; }
  int number() const { return number_; }
  // The caller closes it.
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

}  // namespace perseid::internal
