// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Division of numbers below 2^31 by a multiplication.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal::cuda {

struct Divisor {
  int64_t size = 1;
  uint32_t multiplier = 0;
  uint32_t shift = 0;
};

// Of a size from 1 to 2^31 - 1; others divide by `size` alone.
PERSEID_INLINE constexpr Divisor divisor_of(int64_t size) {
  Divisor divisor{size, 0, 0};
  if (size < 1 || size > 0x7fffffff) return divisor;
  const auto small = static_cast<uint64_t>(size);
  while ((uint64_t{1} << divisor.shift) < small) ++divisor.shift;
  divisor.multiplier = static_cast<uint32_t>(
      (uint64_t{1} << 32) * ((uint64_t{1} << divisor.shift) - small) / small + 1);
  return divisor;
}
PERSEID_INLINE constexpr uint32_t quotient(const Divisor& divisor, uint32_t number) {
  const auto high = static_cast<uint32_t>(uint64_t{number} * divisor.multiplier >> 32);
  return (high + number) >> divisor.shift;
}

}  // namespace perseid::internal::cuda
