// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What a fuzz target is made of. libFuzzer calls the first function; so does driver.cpp, which
// needs no special compiler and keeps the targets alive in every test run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace perseid_fuzz {

// Inputs to start mutating from, and to run in every test run.
std::vector<std::string> seeds();

// Ends the program where the library broke a promise.
inline void require(bool promise, const char* sentence) {
  if (promise) return;
  std::fprintf(stderr, "broken promise: %s\n", sentence);
  std::abort();
}

}  // namespace perseid_fuzz
