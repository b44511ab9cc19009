// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A fuzzer's bytes as numbers, and structs as another header has them.
#pragma once

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>

#include "driver.hpp"

namespace perseid_fuzz {

// The fuzzer's bytes, used up one after another; then zeros.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  uint8_t byte() { return position_ < size_ ? data_[position_++] : 0; }
  int64_t below(int64_t limit) { return limit > 0 ? byte() % limit : 0; }
  // Once in `n` times; zeros say no.
  bool rarely(int n) { return byte() % n == n - 1; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[byte() % values.size()];
  }
  // A small size; once in a while one that no memory holds.
  int64_t size(int64_t limit) {
    if (!rarely(64)) return below(limit + 1);
    hostile_ = true;
    return pick<int64_t>({-1, std::numeric_limits<int64_t>::min(), int64_t{1} << 31,
                          int64_t{1} << 32, int64_t{1} << 62, std::numeric_limits<int64_t>::max()});
  }
  uint32_t choice(uint32_t count) {
    return rarely(64) ? byte() * 0x1010101u : static_cast<uint32_t>(below(count));
  }
  double number() {
    if (!rarely(24)) return pick<double>({0, 1, 0.5, 0.1, 0.999});
    return pick<double>({-2, 1e-30, 1e300, std::numeric_limits<double>::infinity(),
                         std::numeric_limits<double>::quiet_NaN()});
  }
  uint32_t struct_size(size_t size) {
    return rarely(64) ? 2u * byte() : static_cast<uint32_t>(size);
  }
  // Whether a size was drawn that must not be executed: the work could be endless.
  bool hostile() const { return hostile_; }

 private:
  const uint8_t* data_;
  size_t size_, position_ = 0;
  bool hostile_ = false;
};

// A struct of another header: memory of exactly struct_size bytes, whose tail is sometimes zero.
template <class Struct>
class Resized {
 public:
  Resized(Input& in, const Struct& value)
      : memory_(new std::byte[std::max<size_t>(value.struct_size, sizeof value.struct_size)]) {
    const size_t size = value.struct_size;
    std::memcpy(memory_.get(), &value,
                std::min(std::max(size, sizeof value.struct_size), sizeof value));
    const auto tail = static_cast<std::byte>(in.rarely(4) ? in.byte() : 0);
    if (size > sizeof value) std::fill_n(memory_.get() + sizeof value, size - sizeof value, tail);
  }
  const Struct* get() const { return reinterpret_cast<const Struct*>(memory_.get()); }

 private:
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace perseid_fuzz
