// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "base/header_reader.hpp"

#include <algorithm>
#include <charconv>

#include "base/json.hpp"

namespace perseid::internal {
namespace {

constexpr size_t kLongestToken = 24;  // of what a message shows of the header

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(uint32_t code_point, std::string* text) {
  const auto append = [text](uint32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    append(code_point);
  } else if (code_point < 0x800) {
    append(0xc0 | code_point >> 6);
    append(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    append(0xe0 | code_point >> 12);
    append(0x80 | (code_point >> 6 & 0x3f));
    append(0x80 | (code_point & 0x3f));
  } else {
    append(0xf0 | code_point >> 18);
    append(0x80 | (code_point >> 12 & 0x3f));
    append(0x80 | (code_point >> 6 & 0x3f));
    append(0x80 | (code_point & 0x3f));
  }
}

}  // namespace

std::string quoted(std::string_view text) {
  constexpr size_t kLongest = 80;
  std::string result = "'";
  for (const char c : text.substr(0, kLongest)) result += c >= ' ' && c <= '~' ? c : '?';
  return result + (text.size() > kLongest ? "...'" : "'");
}

bool HeaderReader::fail(std::string_view sentence) {
  if (!failed())
    error_ = "byte " + std::to_string(position_) + " of the header: " + std::string(sentence);
  return false;
}

bool HeaderReader::expected(std::string_view what) {
  if (position_ >= text_.size()) return fail("expected " + std::string(what) + ", got its end");
  // A token up to the next punctuation, or the punctuation itself.
  const std::string_view rest = text_.substr(position_);
  const size_t length = std::max<size_t>(rest.find_first_of(",:{}[]() \n\"'"), 1);
  return fail("expected " + std::string(what) + ", got " +
              quoted(rest.substr(0, std::min(length, kLongestToken))));
}

void HeaderReader::skip_space() {
  while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\n' ||
                                      text_[position_] == '\t' || text_[position_] == '\r'))
    ++position_;
}

bool HeaderReader::at(char c) {
  skip_space();
  return !failed() && position_ < text_.size() && text_[position_] == c;
}

bool HeaderReader::expect(char c) {
  if (failed()) return false;
  if (!at(c)) return expected(quoted(std::string_view(&c, 1)));
  ++position_;
  return true;
}

bool HeaderReader::next_item(char close, size_t* count) {
  if (failed()) return false;
  if (*count > 0 && !at(close)) {
    if (!at(',')) return expected(std::string("',' or '") + close + "'");
    ++position_;
    if (dialect_ == Dialect::kJson && at(close)) return expected("another item after ','");
  }
  if (at(close)) {
    ++position_;
    return false;
  }
  ++*count;
  return true;
}

bool HeaderReader::expect_end() {
  if (failed()) return false;
  skip_space();
  return position_ == text_.size() || expected("nothing more");
}

bool HeaderReader::read_string(std::string* value) {
  value->clear();
  const char quote = dialect_ == Dialect::kPython && at('\'') ? '\'' : '"';
  if (failed() || !at(quote)) return expected("a string");
  ++position_;
  const size_t begin = position_;
  while (position_ < text_.size() && text_[position_] != quote) {
    const char c = text_[position_];
    if (static_cast<unsigned char>(c) < 0x20) return fail("a control character within a string");
    if (c == '\\') {
      if (!read_escape(value)) return false;
    } else {
      value->push_back(c);
      ++position_;
    }
  }
  if (position_ >= text_.size()) {
    position_ = begin - 1;
    return fail("a string begins here that does not end");
  }
  ++position_;
  return is_utf8(*value) || fail("the string that ends here is not valid UTF-8");
}

bool HeaderReader::read_escape(std::string* value) {
  if (dialect_ == Dialect::kPython) return fail("expected a string without escapes, got '\\'");
  static constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  const char letter = position_ + 1 < text_.size() ? text_[position_ + 1] : '\0';
  if (const size_t found = kLetters.find(letter); letter != '\0' && found != kLetters.npos) {
    value->push_back(kMeanings[found]);
    position_ += 2;
    return true;
  }
  uint32_t code_point = 0;
  if (!read_code_unit(&code_point)) return false;
  if (code_point >= 0xdc00 && code_point < 0xe000)
    return fail("the second half of a surrogate pair without a first");
  if (code_point >= 0xd800 && code_point < 0xdc00) {
    uint32_t low = 0;
    if (!read_code_unit(&low)) return false;
    if (low < 0xdc00 || low >= 0xe000)
      return fail("the first half of a surrogate pair without a second");
    code_point = 0x10000 + ((code_point - 0xd800) << 10) + (low - 0xdc00);
  }
  if (code_point == 0) return fail("expected text without NUL characters, got '\\u0000'");
  append_utf8(code_point, value);
  return true;
}

// \uXXXX
bool HeaderReader::read_code_unit(uint32_t* unit) {
  const std::string_view escape = text_.substr(position_, 6);
  const char* end = escape.data() + escape.size();
  if (escape.size() != 6 || escape[0] != '\\' || escape[1] != 'u' ||
      std::from_chars(escape.data() + 2, end, *unit, 16).ptr != end)
    return fail("expected an escape of JSON, got " + quoted(escape));
  position_ += escape.size();
  return true;
}

bool HeaderReader::read_integer(int64_t* value) {
  constexpr std::string_view kWanted = "a whole number from 0 to 9223372036854775807";
  if (failed()) return false;
  skip_space();
  const std::string_view rest = text_.substr(position_);
  size_t length = 0;
  while (length < rest.size() && is_digit(rest[length])) ++length;
  const char* end = rest.data() + length;
  if (length == 0 || (length > 1 && rest[0] == '0') ||
      std::from_chars(rest.data(), end, *value).ec != std::errc{})
    return expected(kWanted);
  if (dialect_ == Dialect::kPython && length < rest.size() && rest[length] == 'L') ++length;
  if (length < rest.size() && std::string_view(".eE_").find(rest[length]) != std::string_view::npos)
    return expected(kWanted);
  position_ += length;
  return true;
}

bool HeaderReader::read_bool(bool* value) {
  if (failed()) return false;
  skip_space();
  const std::string_view rest = text_.substr(position_);
  *value = rest.starts_with("True");
  if (!*value && !rest.starts_with("False")) return expected("True or False");
  position_ += *value ? 4 : 5;
  return true;
}

}  // namespace perseid::internal
