// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Reports for people: tables that fit the terminal, sentences that are wrapped to it, durations.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace perseid::cli {

// Columns of stdout: those of the environment variable COLUMNS, or else of the terminal; 100 at
// most, and where neither says.
size_t output_width();

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kLeft;
  size_t least = 0;  // characters that the cells are cut to where lines are too long; 0: never
  int drop = 0;      // columns to leave out where that is not enough, 1 first; 0: never
};

// A table whose lines are at most `width` characters where its columns allow for that. Columns
// without a title and without a cell do not appear.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text(size_t width) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Characters on a terminal: of UTF-8, without escape sequences of colours.
size_t display_width(std::string_view text);

// Broken at spaces into lines of at most `width` characters; those after the first are indented. A
// longer word has a line of its own.
std::string wrapped(std::string_view text, size_t width, size_t indent = 0);
// The first `indent` characters of a line, and the rest wrapped below itself.
std::string hanging(std::string_view line, size_t width, size_t indent);

// A command as a shell takes it, broken before flags into lines of at most `width` characters;
// those after the first are indented four characters more than `command`.
std::string wrapped_command(std::string_view command, size_t width);

// With three digits, in a unit that suits it: "850 ns", "1.23 ms", "45.6 s", "2 min 5 s".
std::string duration(double seconds);
// Whole seconds, as for a clock that runs: "7 s", "2 min 5 s", "1 h 3 min".
std::string clock_time(double seconds);

}  // namespace perseid::cli
