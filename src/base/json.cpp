// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "base/json.hpp"

#include <charconv>
#include <cmath>

namespace perseid::internal {

bool is_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto byte = [text](size_t index) -> uint32_t {
      return index < text.size() ? static_cast<unsigned char>(text[index]) : 0;
    };
    const uint32_t lead = byte(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4) return false;
    uint32_t code_point = lead & (0x7fu >> length);
    for (size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return false;
      code_point = code_point << 6 | (byte(i + k) & 0x3f);
    }
    const uint32_t least = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
    if (code_point < least || code_point > 0x10ffff) return false;
    if (code_point >= 0xd800 && code_point < 0xe000) return false;
    i += length;
  }
  return true;
}

void append_json_string(std::string_view text, std::string* json) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  const bool ascii_only = !is_utf8(text);
  json->push_back('"');
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      json->append({'\\', c});
    } else if (byte < 0x20) {
      json->append({'\\', 'u', '0', '0', kHex[byte >> 4], kHex[byte & 15]});
    } else {
      json->push_back(byte >= 0x80 && ascii_only ? '?' : c);
    }
  }
  json->push_back('"');
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  append_json_string(name, &text_);
  text_ += ": ";
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  separate();
  append_json_string(text, &text_);
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

}  // namespace perseid::internal
