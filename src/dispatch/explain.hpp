// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The explanation of a plan, as text and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/choose.hpp"
#include "dispatch/tuning.hpp"

namespace perseid::internal::dispatch {

// One line of a problem's description, such as {"head_dim", "64"}.
struct Fact {
  const char* name;
  std::string value;
  bool number = false;

  Fact(const char* fact, std::string_view text) : name(fact), value(text) {}
  Fact(const char* fact, const char* text) : name(fact), value(text) {}
  Fact(const char* fact, int64_t integer)
      : name(fact), value(std::to_string(integer)), number(true) {}
  Fact(const char* fact, double real) : name(fact), value(concatenate(real)), number(true) {}
};

// The work of one direction, and the workspace that its implementation needs.
struct Work {
  double flops = 0;  // useful ones: masked-out work is not counted
  double bytes = 0;  // every operand once
  size_t workspace = 0;

  double intensity() const { return bytes > 0 ? flops / bytes : 0; }
};

struct Explanation {
  const char* operation = "";
  std::vector<Fact> problem = {};
  std::vector<Considered> considered = {};
  Work forward = {};
  std::optional<Work> backward = {};
  std::vector<Measured> measured = {};  // where the plan was tuned, the built-in choice first

  const char* chosen() const;
};

std::string explain_text(const Explanation& explanation, const Device& device);
std::string explain_json(const Explanation& explanation, const Device& device);

}  // namespace perseid::internal::dispatch
