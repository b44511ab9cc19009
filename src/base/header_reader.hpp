// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A cursor over text from a file: JSON for safetensors and the tuning cache, a Python literal for
// npy. It reads exactly the shapes of data that the caller asks for, so it never recurses and its
// depth is that of the code that calls it. After the first mistake every call fails and the cursor
// stays where it is; the caller may check once, at the end of a loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace perseid::internal {

// The text between quotation marks, made fit for one line of a message: cut where it is long,
// everything but printable ASCII replaced.
std::string quoted(std::string_view text);

enum class Dialect { kJson, kPython };

class HeaderReader {
 public:
  HeaderReader(Dialect dialect, std::string_view text) : dialect_(dialect), text_(text) {}

  bool failed() const { return !error_.empty(); }
  // Which byte of the header, what was expected there and what is there.
  const std::string& error() const { return error_; }
  // Fails here with a sentence of the caller's.
  bool fail(std::string_view sentence);

  // Whether the next character, after white space, is `c`.
  bool at(char c);
  // Steps over `c`, which must be next.
  bool expect(char c);
  // Whether a list or object has one more item: steps over the comma before every item but the
  // first (*count counts them), and over `close` at the end. Python allows a comma before it.
  bool next_item(char close, size_t* count);
  // Nothing but white space may follow.
  bool expect_end();

  // A string of the dialect, in UTF-8 and without NUL, which no C string could hold. Python: no
  // escapes.
  bool read_string(std::string* value);
  // A whole number from 0 to 2^63 - 1, in decimal. Python 2 may have put an L behind it.
  bool read_integer(int64_t* value);
  // True or False, in Python.
  bool read_bool(bool* value);

 private:
  void skip_space();
  bool expected(std::string_view what);
  bool read_escape(std::string* value);
  bool read_code_unit(uint32_t* unit);

  Dialect dialect_;
  std::string_view text_;
  size_t position_ = 0;
  std::string error_;
};

}  // namespace perseid::internal
