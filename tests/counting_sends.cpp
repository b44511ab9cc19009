// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// sendmsg() in the place of the C library's, so that a test can count what goes through sockets.
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

std::atomic<int64_t> bytes_sent{0};  // by all threads

extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  const auto sent = static_cast<ssize_t>(syscall(SYS_sendmsg, socket, message, flags));
  if (sent > 0) bytes_sent += sent;
  return sent;
}
