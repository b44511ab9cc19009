// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The number types of the example and the memory that holds them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>

#include "perseid/perseid.hpp"

namespace gpt {

// The upper half of a float, rounded to nearest even.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  BFloat16(float value) {
    const auto u = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = u + 0x7fff + ((u >> 16) & 1);
    bits = static_cast<uint16_t>((value != value ? u | 0x400000 : rounded) >> 16);
  }
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// A model computes in T (float, BFloat16 or double): the inputs of every matmul and attention. It
// keeps weights, gradients, the residual stream and the loss in Real<T>.
template <class T>
struct RealOf {
  using type = float;
};
template <>
struct RealOf<double> {
  using type = double;
};
template <class T>
using Real = typename RealOf<T>::type;

// A fixed array of zeros to begin with, aligned to a cache line.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t size) : size_(static_cast<size_t>(size)) {
    const size_t bytes = size_ * sizeof(T);
    void* memory = ::operator new (bytes, std::align_val_t{64});
    std::memset(memory, 0, bytes);
    memory_.reset(static_cast<T*>(memory));
  }
  T* data() const { return memory_.get(); }
  int64_t size() const { return static_cast<int64_t>(size_); }
  std::span<T> span() const { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(T* memory) const { ::operator delete (memory, std::align_val_t{64}); }
  };
  std::unique_ptr<T, Free> memory_;
  size_t size_ = 0;
};

}  // namespace gpt

namespace perseid {
template <>
inline constexpr DType dtype_of<gpt::BFloat16> = bf16;
}  // namespace perseid
