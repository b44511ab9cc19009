// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "base/descriptor.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace perseid::internal {

int above_standard_streams(int descriptor) {
  if (descriptor < 0 || descriptor > STDERR_FILENO) return descriptor;
  const int moved = ::fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  ::close(descriptor);
  errno = error;
  return moved;
}

int open_file(const char* path, int flags, mode_t mode) {
  int descriptor = -1;
  do descriptor = ::open(path, flags | O_CLOEXEC, mode);
  while (descriptor < 0 && errno == EINTR);
  return above_standard_streams(descriptor);
}

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

}  // namespace perseid::internal
