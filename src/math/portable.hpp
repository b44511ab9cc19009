// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Integer types and one macro: with them this folder compiles unchanged for the host and, by NVRTC,
// for a GPU.
#pragma once

#if defined(__CUDACC_RTC__)
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
using size_t = decltype(sizeof(0));
#else
#include <stddef.h>
#include <stdint.h>
#endif

// Always inlined: the host's translation units are compiled for different instruction sets, and a
// shared out-of-line copy of one would run on machines that lack the instructions of another.
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define PERSEID_INLINE __host__ __device__ __forceinline__
#else
#define PERSEID_INLINE inline __attribute__((always_inline))
#endif

namespace perseid::internal {

template <class T>
PERSEID_INLINE constexpr T min(T a, T b) {
  return b < a ? b : a;
}

template <class T>
PERSEID_INLINE constexpr T max(T a, T b) {
  return a < b ? b : a;
}

template <class T>
PERSEID_INLINE constexpr T clamp(T value, T low, T high) {
  return min(max(value, low), high);
}

// For a >= 0 and b > 0.
PERSEID_INLINE constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }
PERSEID_INLINE constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace perseid::internal
