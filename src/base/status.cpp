// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "base/status.hpp"

#include <charconv>

namespace perseid::internal {

// The shortest text that reads back as the same number.
Piece::Piece(double number) {
  char buffer[32];
  const std::to_chars_result end = std::to_chars(buffer, buffer + sizeof buffer, number);
  owned_.assign(buffer, end.ptr);
}

std::string join(std::initializer_list<Piece> pieces) {
  std::string text;
  for (const Piece& piece : pieces) text += piece.text();
  return text;
}

}  // namespace perseid::internal
