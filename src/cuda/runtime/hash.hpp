// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// 64 bits of a text: for names of cached files and for finding damage, not against malice. Eight
// bytes at a time, as plans wait for the hash of their kernels.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace perseid::internal::cuda {

class Hash {
 public:
  // The size follows each text, so that a list of texts and their concatenation differ.
  Hash& add(std::string_view text) {
    const char* from = text.data();
    size_t left = text.size();
    for (; left >= sizeof(uint64_t); from += sizeof(uint64_t), left -= sizeof(uint64_t))
      step(word_at(from, sizeof(uint64_t)));
    if (left > 0) step(word_at(from, left));
    step(text.size());
    return *this;
  }
  uint64_t value() const { return value_; }

 private:
  static uint64_t word_at(const char* from, size_t bytes) {
    uint64_t word = 0;
    std::memcpy(&word, from, bytes);
    return word;
  }
  // Another word gives another value: an odd factor and the shift can be undone.
  void step(uint64_t word) {
    value_ = (value_ ^ word) * 0x9e3779b97f4a7c15u;
    value_ ^= value_ >> 32;
  }

  uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace perseid::internal::cuda
