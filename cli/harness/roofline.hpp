// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A roofline as SVG: rates over FLOPs per byte, under what memory and multipliers reach.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace perseid::harness {

// Text for HTML, XML and quoted attributes: markup is escaped, and what is not UTF-8 or no
// character of XML becomes U+FFFD.
std::string escaped(std::string_view text);

// "31.2 GFLOP/s": three digits and a prefix.
std::string rate_text(double per_second, std::string_view unit);

struct Roof {
  std::string name;
  bool memory = false;  // bytes a second: a slope; else FLOPs a second: a level
  double rate = 0;
};

struct RoofPoint {
  int number = 0;                  // drawn beside it
  std::string series;              // CSS class of its colour
  std::string title;               // shown where the pointer rests
  double intensity = 0, rate = 0;  // FLOPs per byte, FLOPs per second
};

// "" where no point has both FLOPs and bytes.
std::string roofline_svg(const std::vector<RoofPoint>& points, const std::vector<Roof>& roofs);

}  // namespace perseid::harness
