// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The floating-point environment that the library computes in: round to nearest even, subnormals
// kept, no traps. A thread's own may be any: results must not depend on which thread computes them.
#pragma once

#if defined(__x86_64__)
#include <cstdint>
#else
#include <cfenv>
#endif

namespace perseid::internal {

// Sets the library's environment for this thread; the end of the scope restores the thread's own,
// exception flags included. The compiler may move arithmetic across either: what must run inside is
// called through a pointer or lives in another translation unit.
class FloatingPointScope {
 public:
  FloatingPointScope() noexcept;
  ~FloatingPointScope();
  FloatingPointScope(const FloatingPointScope&) = delete;
  FloatingPointScope& operator=(const FloatingPointScope&) = delete;

 private:
#if defined(__x86_64__)
  uint32_t saved_;
#else
  std::fenv_t saved_;
#endif
};

}  // namespace perseid::internal
