// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Measures a problem on random data: time, rate, and the fraction of a ceiling that is measured in
// turns with it, so that both meet the same machine.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "harness/launch.hpp"

namespace perseid::harness {

struct BenchOptions {
  double seconds = 1.0;  // of measured time for each direction
  bool error = true;     // compare with the float64 reference
};

struct Timing {
  double time = 0;               // seconds; the least of the round that stands for the row
  double median = 0, least = 0;  // of all executions
  int64_t repetitions = 0;
};

struct BenchRow {
  Problem problem;
  Direction direction = Direction::kForward;
  int64_t threads = 0;  // that worked
  std::string implementation;
  Outcome outcome;  // where it failed, the rest is empty
  Timing timing;
  bool memory_bound = false;  // rates in bytes, not FLOPs
  double rate = 0;            // per second
  const char* ceiling_name = "";
  double ceiling = 0;  // measured beside that round
  double fraction() const { return ceiling > 0 ? rate / ceiling : 0; }
  std::optional<double> error;  // against float64
  Problem error_problem;        // of which the error is: the same, or a smaller one
};

// A row for each direction that the problem has. `reference`: a CPU, for the error.
std::vector<BenchRow> bench(const Context& context, const Context& reference,
                            const Problem& problem, const BenchOptions& options);

nlohmann::json to_json(const BenchRow& row);

// The problem cut down to what the reference computes in about a second: fewer batches, heads and
// rows first, then shorter sequences.
Problem reduced(const Problem& problem);

}  // namespace perseid::harness
