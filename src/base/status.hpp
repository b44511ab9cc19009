// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// How every layer below the C ABI reports a failure: a code and a sentence that says what was
// expected, what was got, and what to do. Success carries no sentence and costs no allocation.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "perseid/perseid.h"

namespace perseid::internal {

// A part of a sentence: text or a number.
class Piece {
 public:
  Piece(const char* text) : text_(text) {}
  Piece(std::string_view text) : text_(text) {}
  Piece(const std::string& text) : text_(text) {}
  Piece(std::floating_point auto number) : Piece(static_cast<double>(number)) {}
  Piece(std::integral auto number) : owned_(std::to_string(number)) {}
  Piece(double number);

  std::string_view text() const { return owned_.empty() ? text_ : owned_; }

 private:
  std::string_view text_;
  std::string owned_;
};

std::string join(std::initializer_list<Piece> pieces);

template <class... Pieces>
std::string concatenate(const Pieces&... pieces) {
  return join({Piece(pieces)...});
}

class [[nodiscard]] Status {
 public:
  Status() = default;
  template <class... Pieces>
  static Status error(perseid_status code, const Pieces&... pieces) {
    return Status(code, concatenate(pieces...));
  }

  bool ok() const { return code_ == PERSEID_OK; }
  perseid_status code() const { return code_; }
  const std::string& sentence() const { return sentence_; }

 private:
  Status(perseid_status code, std::string sentence) : code_(code), sentence_(std::move(sentence)) {}

  perseid_status code_ = PERSEID_OK;
  std::string sentence_;
};

}  // namespace perseid::internal
