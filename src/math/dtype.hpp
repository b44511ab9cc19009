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
  kF8E4M3 = 5,
  kF8E5M2 = 6,
  kBool = 16,
  kI32 = 18,
  kI64 = 19
};

// Storage of the 16-bit and 8-bit types. Arithmetic happens in float32.
struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};
struct f8e4m3 {  // e4m3fn: no infinity, NaN is 0x7f and 0xff, the largest number 448
  uint8_t bits;
};
struct f8e5m2 {  // as IEEE formats; the largest number 57344
  uint8_t bits;
};

PERSEID_INLINE constexpr bool is_float8(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2;
}

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
    case DType::kF8E4M3:
    case DType::kF8E5M2:
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
    case DType::kF8E4M3:
      return "f8e4m3";
    case DType::kF8E5M2:
      return "f8e5m2";
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

// Without branches, so that loops over elements become vectors.
PERSEID_INLINE float to_float(f8e4m3 value) {
  const uint32_t magnitude = value.bits & 0x7fu, shifted = magnitude << 20;
  const float normal = float_from_bits(shifted + (120u << 23));
  const float subnormal = float_from_bits(shifted + (121u << 23)) - 0x1p-6f;
  uint32_t bits = float_bits(magnitude < 0x08u ? subnormal : normal);
  bits = magnitude == 0x7fu ? 0x7fc00000u : bits;
  return float_from_bits(bits | (uint32_t{value.bits} & 0x80u) << 24);
}
PERSEID_INLINE float to_float(f8e5m2 value) {
  const uint32_t magnitude = value.bits & 0x7fu, shifted = magnitude << 21;
  const float normal = float_from_bits(shifted + (112u << 23));
  const float subnormal = float_from_bits(shifted + (113u << 23)) - 0x1p-14f;
  uint32_t bits = float_bits(magnitude < 0x04u ? subnormal : normal);
  bits = magnitude >= 0x7cu ? 0x7f800000u : bits;
  bits = magnitude > 0x7cu ? 0x7fc00000u : bits;
  return float_from_bits(bits | (uint32_t{value.bits} & 0x80u) << 24);
}

// Round to nearest even. What is beyond the largest number becomes the largest, infinity too
// (cvt.rn.satfinite of PTX); NaN becomes 0x7f.
PERSEID_INLINE f8e4m3 to_f8e4m3(float value) {
  const uint32_t sign = (float_bits(value) >> 24) & 0x80u;
  const uint32_t magnitude = float_bits(value) & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {0x7f};
  if (magnitude >= 0x43e00000u) return {static_cast<uint8_t>(sign | 0x7eu)};  // 448 and above
  if (magnitude < 0x3c800000u) {
    // Below 2^-6 the result is subnormal: the sum has mantissa * 2^9, rounded, in its low bits.
    const float shifted = float_from_bits(magnitude) + 0x1p14f;
    return {static_cast<uint8_t>(sign | (float_bits(shifted) - 0x46800000u))};
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - (120u << 23);
  return {static_cast<uint8_t>(sign | (rounded >> 20))};
}
PERSEID_INLINE f8e5m2 to_f8e5m2(float value) {
  const uint32_t sign = (float_bits(value) >> 24) & 0x80u;
  const uint32_t magnitude = float_bits(value) & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {0x7f};
  if (magnitude >= 0x47600000u) return {static_cast<uint8_t>(sign | 0x7bu)};  // 57344 and above
  if (magnitude < 0x38800000u) {
    // Below 2^-14: mantissa * 2^16.
    const float shifted = float_from_bits(magnitude) + 0x1p7f;
    return {static_cast<uint8_t>(sign | (float_bits(shifted) - 0x43000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffffu + ((magnitude >> 21) & 1u) - (112u << 23);
  return {static_cast<uint8_t>(sign | (rounded >> 21))};
}

PERSEID_INLINE float to_float(float value) { return value; }

// convert<T>(x): between any two of the floating types. To 16 and 8 bits by way of float32.
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
template <>
struct Convert<f8e4m3> {
  template <class From>
  static PERSEID_INLINE f8e4m3 from(From value) {
    return to_f8e4m3(Convert<float>::from(value));
  }
  static PERSEID_INLINE f8e4m3 from(f8e4m3 value) { return value; }
};
template <>
struct Convert<f8e5m2> {
  template <class From>
  static PERSEID_INLINE f8e5m2 from(From value) {
    return to_f8e5m2(Convert<float>::from(value));
  }
  static PERSEID_INLINE f8e5m2 from(f8e5m2 value) { return value; }
};

template <class To, class From>
PERSEID_INLINE To convert(From value) {
  return Convert<To>::from(value);
}

}  // namespace perseid::internal
