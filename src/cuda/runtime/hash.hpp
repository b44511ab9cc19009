// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// FNV-1a, 64 bits: for names of cached files and for finding damage, not against malice.
// http://www.isthe.com/chongo/tech/comp/fnv/
#pragma once

#include <cstdint>
#include <string_view>

namespace perseid::internal::cuda {

class Hash {
 public:
  // A separator follows each text, so that a list of texts and their concatenation differ.
  Hash& add(std::string_view text) {
    for (const char c : text) step(static_cast<uint8_t>(c));
    step(0xff);
    return *this;
  }
  uint64_t value() const { return value_; }

 private:
  void step(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001b3u; }

  uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace perseid::internal::cuda
