// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A writer of JSON.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace perseid::internal {

// Whether the text is valid UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

// Appends the text as a JSON string, between quotation marks. Of text that is not UTF-8, which JSON
// cannot hold, what is not ASCII becomes question marks.
void append_json_string(std::string_view text, std::string* json);

// Writes JSON, one call after the other:
// JsonWriter().begin_object().key("m").value(3).end_object().
class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }

  JsonWriter& key(std::string_view name);
  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(double number);  // null where it is not finite
  JsonWriter& value(bool truth) { return literal(truth ? "true" : "false"); }
  JsonWriter& value(std::integral auto number) { return literal(std::to_string(number)); }
  JsonWriter& number(std::string_view digits) { return literal(digits); }
  JsonWriter& null() { return literal("null"); }

  template <class Value>
  JsonWriter& field(std::string_view name, const Value& content) {
    return key(name).value(content);
  }

  const std::string& text() const { return text_; }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  JsonWriter& literal(std::string_view text);
  void separate();

  std::string text_;
  bool first_ = true;  // the innermost object or array is empty, or a key was just written
};

}  // namespace perseid::internal
