// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "table.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace perseid::cli {
namespace {

constexpr size_t kMostColumns = 100, kFewestColumns = 20, kGap = 2;

constexpr bool continues(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// The first characters of a text that is longer, and a mark.
std::string cut(const std::string& text, size_t width) {
  if (display_width(text) <= width) return text;
  constexpr std::string_view kMark = "..";
  const size_t kept = width > kMark.size() ? width - kMark.size() : 0;
  size_t end = 0;
  for (size_t seen = 0; end < text.size(); ++end) {
    if (!continues(text[end]) && seen++ == kept) break;
  }
  return text.substr(0, end) + std::string(kMark.substr(0, width));
}

}  // namespace

size_t output_width() {
  size_t width = kMostColumns;
  const char* given = std::getenv("COLUMNS");
  const std::string_view text = given == nullptr ? "" : given;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), width);
  if (text.empty() || parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size()) {
    winsize size{};
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    width = known ? size.ws_col : kMostColumns;
  }
  return std::clamp(width, kFewestColumns, kMostColumns);
}

size_t display_width(std::string_view text) {
  size_t width = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {
      i = std::min(text.find('m', i), text.size() - 1);
    } else if (!continues(text[i])) {
      ++width;
    }
  }
  return width;
}

std::string Table::text(size_t width) const {
  const size_t count = columns_.size();
  std::vector<size_t> natural(count), least(count);
  for (size_t i = 0; i < count; ++i) {
    natural[i] = display_width(columns_[i].title);
    for (const auto& row : rows_)
      if (i < row.size()) natural[i] = std::max(natural[i], display_width(row[i]));
    least[i] = columns_[i].least == 0 ? natural[i] : std::min(natural[i], columns_[i].least);
  }
  std::vector<size_t> kept;
  for (size_t i = 0; i < count; ++i)
    if (natural[i] > 0) kept.push_back(i);
  const auto total = [&](const std::vector<size_t>& widths) {
    size_t sum = kept.empty() ? 0 : kGap * (kept.size() - 1);
    for (size_t i : kept) sum += widths[i];
    return sum;
  };
  while (total(least) > width) {
    const auto order = [&](size_t i) { return columns_[i].drop == 0 ? 1000 : columns_[i].drop; };
    const auto first = std::min_element(kept.begin(), kept.end(),
                                        [&](size_t a, size_t b) { return order(a) < order(b); });
    if (first == kept.end() || columns_[*first].drop == 0) break;
    kept.erase(first);
  }
  std::vector<size_t> widths = natural;
  for (size_t i : kept) {
    const size_t now = total(widths);
    if (now > width) widths[i] -= std::min(now - width, natural[i] - least[i]);
  }
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (size_t i : kept) {
      const std::string cell = cut(cell_of(i), widths[i]);
      const std::string blanks(widths[i] - display_width(cell), ' ');
      line += columns_[i].align == Align::kRight ? blanks + cell : cell + blanks;
      line += std::string(kGap, ' ');
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  };
  add_line([&](size_t i) { return columns_[i].title; });
  for (const auto& row : rows_) add_line([&](size_t i) { return i < row.size() ? row[i] : ""; });
  return text;
}

std::string wrapped(std::string_view text, size_t width, size_t indent) {
  std::string result;
  size_t used = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    if (used > 0 && used + 1 + display_width(word) > width) {
      result += "\n" + std::string(indent, ' ');
      used = indent;
    } else if (used > 0) {
      result += ' ';
      ++used;
    }
    result += word;
    used += display_width(word);
    begin = end + 1;
  }
  return result;
}

std::string hanging(std::string_view line, size_t width, size_t indent) {
  if (display_width(line) <= width || indent >= width || indent >= line.size())
    return std::string(line);
  std::string rest = wrapped(line.substr(indent), width - indent);
  const std::string below = "\n" + std::string(indent, ' ');
  for (size_t at = 0; (at = rest.find('\n', at)) != std::string::npos; at += below.size())
    rest.replace(at, 1, below);
  return std::string(line.substr(0, indent)) + rest;
}

std::string wrapped_command(std::string_view command, size_t width) {
  constexpr std::string_view kContinued = " \\";
  const std::string indent(std::min(command.find_first_not_of(' '), command.size()) + 4, ' ');
  std::string result;
  size_t used = 0;
  for (size_t begin = 0; begin < command.size();) {
    const size_t end = std::min(command.find(" --", begin + 1), command.size());
    std::string_view part = command.substr(begin, end - begin);  // a flag and its value
    const size_t room = end == command.size() ? width : width - kContinued.size();
    if (used > 0 && used + display_width(part) > room) {
      part.remove_prefix(1);  // its blank
      result.append(kContinued).append("\n").append(indent);
      used = indent.size();
    }
    result += part;
    used += display_width(part);
    begin = end;
  }
  return result;
}

std::string clock_time(double seconds) {
  if (!std::isfinite(seconds)) return "unknown";
  const auto whole = static_cast<int64_t>(std::clamp(std::round(seconds), 0.0, 1e15));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string duration(double seconds) {
  struct Unit {
    const char* name;
    double seconds;
  };
  constexpr Unit kUnits[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
  // What rounds to 60 s is a minute.
  if (!(seconds < 59.95)) return clock_time(seconds);
  for (const Unit& unit : kUnits) {
    const double value = seconds / unit.seconds;
    if (value >= 999.5) continue;  // what rounds to 1000 is 1 of the next unit
    const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    return fmt::format("{:.{}f} {}", value, decimals, unit.name);
  }
  return clock_time(seconds);
}

}  // namespace perseid::cli
