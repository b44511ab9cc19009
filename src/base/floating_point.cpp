// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "base/floating_point.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace perseid::internal {

#if defined(__x86_64__)

// MXCSR alone, since nothing computes with the x87 unit: <cfenv> would save and load that, too, at
// ten times the cost.
FloatingPointScope::FloatingPointScope() noexcept : saved_(_mm_getcsr()) {
  constexpr uint32_t kMasked = 0x1f80;  // every exception masked, no flag raised, all else zero
  _mm_setcsr(kMasked);
}
FloatingPointScope::~FloatingPointScope() { _mm_setcsr(saved_); }

#else

// The default environment: on Arm, FPCR and FPSR zero, so that FZ and the rounding mode are clear.
FloatingPointScope::FloatingPointScope() noexcept {
  std::fegetenv(&saved_);
  std::fesetenv(FE_DFL_ENV);
}
FloatingPointScope::~FloatingPointScope() { std::fesetenv(&saved_); }

#endif

}  // namespace perseid::internal
