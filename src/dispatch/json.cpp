// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "dispatch/json.hpp"

#include <charconv>
#include <cmath>

namespace perseid {

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  append_string(name);
  text_ += ": ";
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  separate();
  append_string(text);
  return *this;
}

JsonWriter& JsonWriter::value(double number) {
  if (!std::isfinite(number)) return null();
  char buffer[32];
  return literal({buffer, std::to_chars(buffer, buffer + sizeof buffer, number).ptr});
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  text_ += bracket;
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  text_ += bracket;
  first_ = false;
  return *this;
}

JsonWriter& JsonWriter::literal(std::string_view text) {
  separate();
  text_ += text;
  return *this;
}

void JsonWriter::separate() {
  if (!first_) text_ += ", ";
  first_ = false;
}

// Bytes above 127 pass unchanged: texts are UTF-8.
void JsonWriter::append_string(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  text_ += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text_ += {'\\', c};
    } else if (byte < 0x20) {
      text_ += {'\\', 'u', '0', '0', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      text_ += c;
    }
  }
  text_ += '"';
}

}  // namespace perseid
