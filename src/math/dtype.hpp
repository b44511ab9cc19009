// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Element types: their sizes, and the scalar conversions that every backend agrees on bit for bit.
#pragma once

#include "math/portable.hpp"

namespace perseid::internal {

// The values are those of perseid_dtype; kBool and the integers serve masks and sequence lengths.
enum class DType : int32_t {
  kNone = 0,
  kF16 = 1,
  kBF16 = 2,
  kF32 = 3,
  kF64 = 4,
  kBool = 5,
  kI32 = 6,
  kI64 = 7
};

// Storage of the 16-bit types. Arithmetic happens in float32.
struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

PERSEID_INLINE constexpr int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kBool:
      return 1;
    case DType::kNone:
      break;
  }
  return 0;
}

constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kF32:
      return "f32";
    case DType::kF64:
      return "f64";
    case DType::kBool:
      return "bool";
    case DType::kI32:
      return "int32";
    case DType::kI64:
      return "int64";
    case DType::kNone:
      break;
  }
  return "none";
}

PERSEID_INLINE uint32_t float_bits(float value) { return __builtin_bit_cast(uint32_t, value); }

PERSEID_INLINE float float_from_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

PERSEID_INLINE float to_float(bf16 value) { return float_from_bits(uint32_t{value.bits} << 16); }

// Round to nearest even; a NaN stays a (quiet) NaN.
PERSEID_INLINE bf16 to_bf16(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

PERSEID_INLINE float to_float(f16 value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0x1fu)
    return float_from_bits(sign | 0x7f800000u | (mantissa << 13) |
                           (mantissa != 0 ? 0x400000u : 0u));
  if (exponent != 0) return float_from_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  // Subnormal: mantissa * 2^-24, exact in float32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return float_from_bits(sign | float_bits(magnitude));
}

// Round to nearest even, overflow to infinity; a NaN stays a (quiet) NaN.
PERSEID_INLINE f16 to_f16(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return {static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // 65520 and above
  if (magnitude < 0x38800000u) {
    // Below 2^-14 the result is subnormal: adding 0.5 leaves mantissa * 2^24, rounded, in the low
    // bits.
    const float shifted = float_from_bits(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (float_bits(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23);
  return {static_cast<uint16_t>(sign | (rounded >> 13))};
}

PERSEID_INLINE float to_float(float value) { return value; }

// convert<T>(x): between any two of f16, bf16, float and double. To 16 bits by way of float32.
template <class To>
struct Convert;
template <>
struct Convert<float> {
  template <class From>
  static PERSEID_INLINE float from(From value) {
    return to_float(value);
  }
  static PERSEID_INLINE float from(double value) { return static_cast<float>(value); }
};
template <>
struct Convert<double> {
  template <class From>
  static PERSEID_INLINE double from(From value) {
    return static_cast<double>(to_float(value));
  }
  static PERSEID_INLINE double from(double value) { return value; }
};
template <>
struct Convert<bf16> {
  template <class From>
  static PERSEID_INLINE bf16 from(From value) {
    return to_bf16(Convert<float>::from(value));
  }
  static PERSEID_INLINE bf16 from(bf16 value) { return value; }
};
template <>
struct Convert<f16> {
  template <class From>
  static PERSEID_INLINE f16 from(From value) {
    return to_f16(Convert<float>::from(value));
  }
  static PERSEID_INLINE f16 from(f16 value) { return value; }
};

template <class To, class From>
PERSEID_INLINE To convert(From value) {
  return Convert<To>::from(value);
}

}  // namespace perseid::internal
