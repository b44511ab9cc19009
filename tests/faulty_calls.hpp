// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// System calls that fail on purpose. The linker substitutes them for the real ones in the test
// program alone (--wrap, in tests/CMakeLists.txt); between watch() and watched() they are counted,
// and one of them may fail, do less than it is asked for, or kill the process.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace perseid_test {

inline constexpr int kNoCall = -1;

struct Fault {
  int call = kNoCall;  // counted from 0
  int error = 0;       // errno of that call, which does nothing but close a descriptor; 0: none
  bool kills_before = false, kills_after = false;
  // For every call: read and write take at most so many bytes; read ends the file after so many.
  size_t most_bytes = std::numeric_limits<size_t>::max();
  size_t file_bytes = std::numeric_limits<size_t>::max();
};

struct Watched {
  std::vector<std::string> calls;  // such as "write"; open is "create", "look", "list" or "open"
  int lowest_descriptor;           // of those that were read, written, locked, synced or mapped
};

void watch(const Fault& fault);
Watched watched();

}  // namespace perseid_test
