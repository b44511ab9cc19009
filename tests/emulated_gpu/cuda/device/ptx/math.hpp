// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// src/cuda/device/ptx/math.hpp on the CPU: what attention uses.
#pragma once

#include "emulated_gpu.hpp"
#include "math/dtype.hpp"

namespace perseid::internal::cuda::ptx {

template <bool kSubnormals = false>
inline float approximate_exp2(float x) {
  const float result = std::exp2(x);
  return !kSubnormals && std::fpclassify(result) == FP_SUBNORMAL ? 0 : result;
}
inline float approximate_log2(float x) { return std::log2(x); }
inline float approximate_reciprocal(float x) { return 1 / x; }
inline float max_or_nan(float a, float b) { return a != a || b != b ? NAN : std::fmax(a, b); }
inline float f16_to_float(uint32_t bits) { return to_float(f16{static_cast<uint16_t>(bits)}); }
inline uint32_t to_bf16x2(float low, float high) {
  return to_bf16(low).bits | static_cast<uint32_t>(to_bf16(high).bits) << 16;
}
inline uint32_t to_f16x2(float low, float high) {
  return to_f16(low).bits | static_cast<uint32_t>(to_f16(high).bits) << 16;
}
inline uint32_t spread_signs(uint32_t bytes, int low, int high, uint32_t more = 0) {
  const auto sign = [&](int byte) {
    return ((byte < 4 ? bytes : more) >> (8 * (byte % 4) + 7) & 1) != 0 ? 0xffffu : 0u;
  };
  return sign(low) | sign(high) << 16;
}
inline uint32_t choose_bytes(uint32_t first, uint32_t second, uint32_t digits) {
  const uint64_t bytes = first | uint64_t{second} << 32;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i)
    result |= static_cast<uint32_t>(bytes >> (8 * (digits >> (4 * i) & 7)) & 0xff) << (8 * i);
  return result;
}

}  // namespace perseid::internal::cuda::ptx
