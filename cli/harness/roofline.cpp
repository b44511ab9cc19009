// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/roofline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>

namespace perseid::harness {
namespace {

constexpr double kWidth = 920, kHeight = 460;
constexpr double kLeft = 96, kRight = 24, kTop = 16, kBottom = 52;
constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// The length of the character that the text begins with; 0 where that is no character of XML.
size_t character(std::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<uint32_t>(static_cast<unsigned char>(text[i])) : 0;
  };
  const uint32_t first = byte(0);
  if (first < 0x80) return first >= 0x20 || first == '\t' || first == '\n' ? 1 : 0;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  uint32_t code = first & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr std::array<uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  const bool valid = code >= kLeast[length] && code <= 0x10ffff && code / 0x800 != 0x1b;
  return valid && (code & 0xfffe) != 0xfffe && code >= 0xa0 ? length : 0;
}

// A logarithmic axis from pixel to pixel.
class Axis {
 public:
  Axis(double begin, double end) : begin_(begin), end_(end) {}
  void include(double value) {
    least_ = std::min(least_, value);
    most_ = std::max(most_, value);
  }
  // Room on both sides of what was included, and a decade at least.
  void widen(double below, double above) {
    least_ /= below;
    most_ *= above;
    if (most_ < 10 * least_) {
      const double middle = std::sqrt(least_ * most_);
      least_ = middle / std::sqrt(10);
      most_ = middle * std::sqrt(10);
    }
  }
  double least() const { return least_; }
  double most() const { return most_; }
  double at(double value) const {
    const double share = std::log(value / least_) / std::log(most_ / least_);
    return begin_ + std::clamp(share, 0.0, 1.0) * (end_ - begin_);
  }
  std::vector<double> decades() const {
    std::vector<double> all;
    for (double power = std::ceil(std::log10(least_)); power <= std::log10(most_); ++power)
      all.push_back(std::pow(10, power));
    return all;
  }

 private:
  double begin_, end_;
  double least_ = std::numeric_limits<double>::infinity(), most_ = 0;
};

void line(std::string& svg, const char* style, double x1, double y1, double x2, double y2) {
  fmt::format_to(std::back_inserter(svg),
                 "<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                 style, x1, y1, x2, y2);
}

void label(std::string& svg, const char* style, double x, double y, const std::string& text) {
  fmt::format_to(std::back_inserter(svg),
                 "<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", style, x, y,
                 escaped(text));
}

// "100 G" of 1e11.
std::string power_text(double value) {
  std::string text = rate_text(value, "");
  const size_t dot = text.find('.');
  if (dot != std::string::npos) text.erase(dot, text.find(' ') - dot);
  return text;
}

void draw_grid(std::string& svg, const Axis& x, const Axis& y) {
  for (double value : x.decades()) {
    line(svg, "grid", x.at(value), kTop, x.at(value), kHeight - kBottom);
    label(svg, "tick middle", x.at(value), kHeight - kBottom + 18, fmt::format("{:g}", value));
  }
  for (double value : y.decades()) {
    line(svg, "grid", kLeft, y.at(value), kWidth - kRight, y.at(value));
    label(svg, "tick end", kLeft - 8, y.at(value) + 4, power_text(value) + "FLOP/s");
  }
  label(svg, "axis middle", (kLeft + kWidth - kRight) / 2, kHeight - 10, "FLOPs per byte");
}

// A memory roof is cut where the highest level begins, a level where the steepest slope meets it.
void draw_roofs(std::string& svg, const Axis& x, const Axis& y, const std::vector<Roof>& roofs) {
  double steepest = 0, highest = 0;
  for (const Roof& roof : roofs) {
    double& most = roof.memory ? steepest : highest;
    most = std::max(most, roof.rate);
  }
  int slopes = 0;
  for (const Roof& roof : roofs) {
    if (roof.memory) {
      const double from = std::max(x.least(), y.least() / roof.rate);
      const double to = std::min(x.most(), (highest > 0 ? highest : y.most()) / roof.rate);
      if (from >= to) continue;
      const bool dashed = slopes > 0;  // to tell the second from the first
      line(svg, dashed ? "roof dashed" : "roof", x.at(from), y.at(from * roof.rate), x.at(to),
           y.at(to * roof.rate));
      label(
          svg, "name", kLeft + 8, kTop + 14 + 16 * slopes++,
          (dashed ? "dashed slope: " : "slope: ") + roof.name + ", " + rate_text(roof.rate, "B/s"));
    } else {
      const double from = steepest > 0 ? std::max(x.least(), roof.rate / steepest) : x.least();
      line(svg, "roof", x.at(std::min(from, x.most())), y.at(roof.rate), x.at(x.most()),
           y.at(roof.rate));
      label(svg, "name end", kWidth - kRight - 4, y.at(roof.rate) - 6,
            roof.name + ", " + rate_text(roof.rate, "FLOP/s"));
    }
  }
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t length = character(text);
    const std::string_view here = text.substr(0, std::max<size_t>(length, 1));
    text.remove_prefix(here.size());
    if (length == 0) {
      result += kReplacement;
      continue;
    }
    switch (here.front()) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += here;
    }
  }
  return result;
}

std::string rate_text(double per_second, std::string_view unit) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  size_t prefix = 0;
  for (; per_second >= 999.5 && prefix + 1 < std::size(kPrefixes); ++prefix) per_second /= 1000;
  const int decimals = per_second >= 99.95 ? 0 : per_second >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}{}", per_second, decimals, kPrefixes[prefix], unit);
}

std::string roofline_svg(const std::vector<RoofPoint>& points, const std::vector<Roof>& roofs) {
  Axis x(kLeft, kWidth - kRight), y(kHeight - kBottom, kTop);
  std::vector<RoofPoint> drawn;
  for (const RoofPoint& point : points) {
    if (!(point.intensity > 0 && point.rate > 0) || std::isinf(point.intensity)) continue;
    x.include(point.intensity);
    y.include(point.rate);
    drawn.push_back(point);
  }
  if (drawn.empty()) return "";
  std::vector<Roof> known;
  double steepest = 0;
  for (const Roof& roof : roofs) {
    if (!(roof.rate > 0)) continue;
    known.push_back(roof);
    if (roof.memory) steepest = std::max(steepest, roof.rate);
    if (!roof.memory) y.include(roof.rate);
  }
  // The ridges are in the picture.
  for (const Roof& roof : known)
    if (!roof.memory && steepest > 0) x.include(roof.rate / steepest);
  x.widen(2, 2);
  y.widen(2, 1.8);

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" "
      "aria-label=\"roofline\">\n",
      kWidth, kHeight);
  draw_grid(svg, x, y);
  draw_roofs(svg, x, y, known);
  // Points that cover each other share a label.
  struct Label {
    double x, y;
    std::string text;
  };
  std::vector<Label> labels;
  for (const RoofPoint& point : drawn) {
    const double px = x.at(point.intensity), py = y.at(point.rate);
    fmt::format_to(std::back_inserter(svg),
                   "<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\"><title>{}</title>"
                   "</circle>\n",
                   escaped(point.series), px, py, escaped(point.title));
    const auto near = std::find_if(labels.begin(), labels.end(), [&](const Label& each) {
      return std::abs(each.x - px) < 10 && std::abs(each.y - py) < 10;
    });
    if (near != labels.end()) {
      near->text += fmt::format(", {}", point.number);
    } else {
      labels.push_back({px, py, fmt::format("{}", point.number)});
    }
  }
  for (const Label& each : labels) label(svg, "number", each.x + 7, each.y - 5, each.text);
  return svg + "</svg>\n";
}

}  // namespace perseid::harness
