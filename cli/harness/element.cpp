// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/element.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace perseid::harness {
namespace {

struct Entry {
  DType dtype;
  const char* name;
  int64_t size;
};
constexpr Entry kEntries[] = {
    {f16, "f16", 2},       {bf16, "bf16", 2},     {f32, "f32", 4},      {f64, "f64", 8},
    {f8e4m3, "f8e4m3", 1}, {f8e5m2, "f8e5m2", 1}, {boolean, "bool", 1}, {u8, "uint8", 1},
    {i32, "int32", 4},     {i64, "int64", 8},
};

template <class T>
T read(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void write(void* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// To `bits` of significand, with exponents from `least` up; overflow to infinity from `limit` on.
double round_significand(double value, int bits, int least, double limit) {
  const double magnitude = std::fabs(value);
  if (std::isnan(value) || magnitude == 0) return value;
  if (magnitude >= limit) return std::copysign(std::numeric_limits<double>::infinity(), value);
  const double smallest = std::ldexp(1.0, least);
  if (magnitude >= smallest) {
    // Next to 1.5 * 2^52 quanta, a double has no digit below one quantum. The power of two at or
    // below the magnitude is what its exponent alone says.
    const double power =
        std::bit_cast<double>(std::bit_cast<uint64_t>(magnitude) & (0x7ffULL << 52));
    const double away = power * (0x1.8p52 / static_cast<double>(1 << (bits - 1)));
    return (value + away) - away;
  }
  const double quantum = std::ldexp(smallest, 1 - bits);
  return std::nearbyint(value / quantum) * quantum;
}

double f16_to_double(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  double magnitude = 0;
  if (exponent == 0x1f) {
    magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, -24);
  } else {
    magnitude = std::ldexp(1024 + mantissa, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

uint16_t f16_from_exact(double value) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  int bits = 0;
  if (std::isnan(value)) {
    bits = 0x7e00;
  } else if (std::isinf(value)) {
    bits = 0x7c00;
  } else if (magnitude < 0x1p-14) {
    bits = static_cast<int>(magnitude * 0x1p24);
  } else {
    int exponent = 0;
    const double fraction = std::frexp(magnitude, &exponent);  // [0.5, 1)
    bits = ((exponent + 14) << 10) + static_cast<int>((fraction * 2 - 1) * 1024);
  }
  return static_cast<uint16_t>(sign | bits);
}

// An 8-bit type: its largest exponent is for numbers too, or for NaN and infinity.
struct Float8Format {
  int mantissa_bits, bias;
  double largest;
};
Float8Format float8_format(DType dtype) {
  return dtype == f8e4m3 ? Float8Format{3, 7, 448} : Float8Format{2, 15, 57344};
}

double float8_to_double(DType dtype, uint8_t bits) {
  const auto [mantissa_bits, bias, largest] = float8_format(dtype);
  const int magnitude = bits & 0x7f, mantissa = magnitude & ((1 << mantissa_bits) - 1);
  const int exponent = magnitude >> mantissa_bits;
  double value = exponent == 0
                     ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                     : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  if (value > largest)
    value = dtype == f8e5m2 && mantissa == 0 ? std::numeric_limits<double>::infinity()
                                             : std::numeric_limits<double>::quiet_NaN();
  return (bits & 0x80) != 0 ? -value : value;
}

// The bits of a value that the type has.
uint8_t float8_from_exact(DType dtype, double value) {
  if (std::isnan(value)) return 0x7f;
  const auto [mantissa_bits, bias, largest] = float8_format(dtype);
  const int sign = std::signbit(value) ? 0x80 : 0;
  const double magnitude = std::fabs(value);
  int bits = 0;
  if (magnitude < std::ldexp(1.0, 1 - bias)) {
    bits = static_cast<int>(std::ldexp(magnitude, bias - 1 + mantissa_bits));
  } else {
    int exponent = 0;
    const double fraction = std::frexp(magnitude, &exponent);  // [0.5, 1)
    bits = ((exponent - 1 + bias) << mantissa_bits) +
           static_cast<int>((fraction * 2 - 1) * (1 << mantissa_bits));
  }
  return static_cast<uint8_t>(sign | bits);
}

uint16_t bf16_from_exact(double value) {
  const auto single = static_cast<float>(value);
  return static_cast<uint16_t>(read<uint32_t>(&single) >> 16);
}

float bf16_to_float(uint16_t bits) {
  const uint32_t word = uint32_t{bits} << 16;
  return read<float>(&word);
}

}  // namespace

const char* name_of(DType dtype) {
  for (const Entry& entry : kEntries) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "none";
}

DType parse_dtype(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (name == entry.name) return entry.dtype;
  }
  return DType::kNone;
}

int64_t size_of(DType dtype) {
  for (const Entry& entry : kEntries) {
    if (entry.dtype == dtype) return entry.size;
  }
  return 0;
}

bool is_floating(DType dtype) {
  return dtype == f16 || dtype == bf16 || dtype == f32 || dtype == f64 || is_float8(dtype);
}

bool is_float8(DType dtype) { return dtype == f8e4m3 || dtype == f8e5m2; }

double largest_float8(DType dtype) { return float8_format(dtype).largest; }

double smallest_step(DType dtype) {
  switch (dtype) {
    case f16:
      return 0x1p-24;
    case f8e4m3:
      return 0x1p-9;
    case f8e5m2:
      return 0x1p-16;
    case f64:
      return 0x1p-1074;
    default:
      return dtype == bf16 ? 0x1p-133 : 0x1p-149;
  }
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case f16:
      return 0x1p-11;
    case bf16:
      return 0x1p-8;
    case f32:
      return 0x1p-24;
    case f8e4m3:
      return 0x1p-4;
    case f8e5m2:
      return 0x1p-3;
    default:
      return 0x1p-53;
  }
}

double round_to(DType dtype, double value) {
  switch (dtype) {
    case f64:
      return value;
    case f16:
      return round_significand(static_cast<float>(value), 11, -14, 65520.0);
    case bf16:
      // The exponents are float32's, whose smallest normal number is 2^-126.
      return round_significand(static_cast<float>(value), 8, -126, 0x1.ffp127);
    case f8e4m3:
    case f8e5m2: {
      const auto [mantissa_bits, bias, largest] = float8_format(dtype);
      const auto single = static_cast<double>(static_cast<float>(value));
      if (std::fabs(single) > largest) return std::copysign(largest, single);
      return round_significand(single, mantissa_bits + 1, 1 - bias, 0x1p127);
    }
    default:
      return static_cast<float>(value);
  }
}

double load(DType dtype, const void* from) {
  switch (dtype) {
    case f16:
      return f16_to_double(read<uint16_t>(from));
    case bf16:
      return bf16_to_float(read<uint16_t>(from));
    case f8e4m3:
    case f8e5m2:
      return float8_to_double(dtype, read<uint8_t>(from));
    case f32:
      return read<float>(from);
    case f64:
      return read<double>(from);
    case boolean:
    case u8:
      return read<uint8_t>(from);
    case i32:
      return read<int32_t>(from);
    case i64:
      return static_cast<double>(read<int64_t>(from));
    case DType::kNone:
      break;
  }
  return 0;
}

void store(DType dtype, void* to, double value) {
  switch (dtype) {
    case f16:
      return write(to, f16_from_exact(round_to(f16, value)));
    case bf16:
      // A NaN needs a bit in the upper half; any other value is exact by now.
      return write(to,
                   std::isnan(value) ? uint16_t{0x7fc0} : bf16_from_exact(round_to(bf16, value)));
    case f8e4m3:
    case f8e5m2:
      return write(to, float8_from_exact(dtype, round_to(dtype, value)));
    case f32:
      return write(to, static_cast<float>(value));
    case f64:
      return write(to, value);
    case boolean:
    case u8:
      return write(to, static_cast<uint8_t>(value));
    case i32:
      return write(to, static_cast<int32_t>(value));
    case i64:
      return write(to, static_cast<int64_t>(value));
    case DType::kNone:
      break;
  }
}

int64_t elements_of(const Shape& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t count = 1;
  for (int64_t extent : shape) {
    if (__builtin_mul_overflow(count, extent, &count)) return std::numeric_limits<int64_t>::max();
  }
  return count;
}

std::string to_text(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(tensor.elements()));
  const DType dtype = tensor.dtype();
  for_each_element(tensor, [&](const std::byte* from) { values.push_back(load(dtype, from)); });
  return values;
}

void assign(const Tensor& tensor, const std::vector<double>& values) {
  const DType dtype = tensor.dtype();
  size_t next = 0;
  for_each_element(tensor, [&](std::byte* to) { store(dtype, to, values[next++]); });
}

}  // namespace perseid::harness
