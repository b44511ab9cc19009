// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Reading and writing elements of any dtype as float64. Elements are copied as bytes, so a pointer
// of any alignment will do.
#pragma once

#include <cstddef>
#include <cstring>

#include "math/tensor.hpp"

namespace perseid::internal::cpu::reference {

template <class T>
void widen(const std::byte* from, int64_t from_stride, int64_t count, double* to,
           int64_t to_stride) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * from_stride * int64_t{sizeof(T)}, sizeof(T));
    to[i * to_stride] = convert<double>(value);
  }
}

// `count` elements of `tensor` from element `offset` on, with a stride of `stride` elements.
inline void load_row(const Tensor& tensor, int64_t offset, int64_t stride, int64_t count,
                     double* to, int64_t to_stride) {
  const std::byte* from = tensor.as<std::byte>() + offset * size_of(tensor.dtype);
  switch (tensor.dtype) {
    case DType::kF16:
      return widen<f16>(from, stride, count, to, to_stride);
    case DType::kBF16:
      return widen<bf16>(from, stride, count, to, to_stride);
    case DType::kF32:
      return widen<float>(from, stride, count, to, to_stride);
    case DType::kF8E4M3:
      return widen<f8e4m3>(from, stride, count, to, to_stride);
    case DType::kF8E5M2:
      return widen<f8e5m2>(from, stride, count, to, to_stride);
    default:
      return widen<double>(from, stride, count, to, to_stride);
  }
}

inline double load(const Tensor& tensor, int64_t offset) {
  double value;
  load_row(tensor, offset, 1, 1, &value, 1);
  return value;
}

// Masks are bytes: anything but 0 is true.
inline bool load_bool(const Tensor& tensor, int64_t offset) {
  return tensor.as<uint8_t>()[offset] != 0;
}

template <class T>
void put(const Tensor& tensor, int64_t offset, double value) {
  const T narrow = convert<T>(value);
  std::memcpy(tensor.as<std::byte>() + offset * int64_t{sizeof(T)}, &narrow, sizeof(T));
}

inline void store(const Tensor& tensor, int64_t offset, double value) {
  switch (tensor.dtype) {
    case DType::kF16:
      return put<f16>(tensor, offset, value);
    case DType::kBF16:
      return put<bf16>(tensor, offset, value);
    case DType::kF32:
      return put<float>(tensor, offset, value);
    case DType::kF8E4M3:
      return put<f8e4m3>(tensor, offset, value);
    case DType::kF8E5M2:
      return put<f8e5m2>(tensor, offset, value);
    default:
      return put<double>(tensor, offset, value);
  }
}

// Adds to what is there, and rounds the sum.
inline void store_or_add(bool add, const Tensor& tensor, int64_t offset, double value) {
  store(tensor, offset, add ? load(tensor, offset) + value : value);
}

}  // namespace perseid::internal::cpu::reference
