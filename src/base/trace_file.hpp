// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A Chrome trace: a JSON array of complete events, as chrome://tracing and Perfetto read it. The
// file is valid JSON after every event, so that it is of use however the process ends.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "base/descriptor.hpp"
#include "base/status.hpp"

namespace perseid::internal {

// As the format counts time.
std::string microseconds(int64_t nanoseconds);

class TraceFile {
 public:
  // Empties the file, or makes it. "%p" in the path is the number of the process.
  Status open(const std::string& path);
  // Times in nanoseconds. Any thread may call it. Does nothing in a child process of fork(), and
  // after the first event that could not be written.
  void add(const char* name, int64_t began, int64_t ended, const char* implementation,
           const std::string& arguments);

 private:
  bool write(const std::string& text);

  Descriptor file_;
  pid_t owner_ = 0;
  std::mutex mutex_;
  int64_t end_ = 0;  // of the last event; the closing bracket of the array follows
  bool empty_ = true, broken_ = false;
};

}  // namespace perseid::internal
