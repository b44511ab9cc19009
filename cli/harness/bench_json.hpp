// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Measurements as JSON, and a new one held against an old one.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/bench.hpp"

namespace perseid::harness {

// With the whole problem and the command that measures it again.
nlohmann::json to_json(const BenchRow& row, double seconds);

// A row beside the same row of an older report.
struct Comparison {
  // New over old: of the fractions where both rows have one of the same ceiling, else of the rates.
  double ratio = 0;
  bool of_fractions = false;
  double threshold = 0;
  bool ok() const { return ratio >= threshold; }
};
nlohmann::json to_json(const Comparison& comparison);

// What an older `perseid bench --json` found.
class Baseline {
 public:
  // `name` is for sentences. Rows below `threshold` times their old figure have become slower; a
  // row of the report may have a "threshold" of its own. Throws Error (IO_ERROR, INVALID_ARGUMENT).
  Baseline(std::string_view text, const std::string& name, double threshold);

  // Each once, in the report's order.
  const std::vector<Problem>& problems() const { return problems_; }
  // None where the report lacks the row.
  std::optional<Comparison> compare(const BenchRow& row) const;

 private:
  struct Old {
    std::string key;
    std::string ceiling;
    double fraction = 0, rate = 0, threshold = 0;
  };
  void add(const nlohmann::json& row, double threshold);

  std::vector<Problem> problems_;
  std::vector<Old> rows_;
};

}  // namespace perseid::harness
