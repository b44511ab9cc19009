// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Measures a problem on random data: time, rate, and the fraction of a ceiling that is measured in
// turns with it. Rows as JSON are in bench_json.hpp.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/ceilings.hpp"
#include "harness/check.hpp"

namespace perseid::harness {

struct BenchOptions {
  double seconds = 1.0;  // of measured time for each direction
  bool error = true;     // compare with the float64 reference
};

struct Timing {
  double least = 0, median = 0;  // seconds, of all executions
  int64_t repetitions = 0;
};

struct BenchError {
  double largest = 0;     // absolute, against float64
  double relative = 0;    // of the output that comes nearest to its limit, in units of the limit
  std::string complaint;  // what is wrong with the results; "" where they pass
};

struct BenchRow {
  Problem problem;  // with the number of threads that worked
  std::string device = "cpu";
  Direction direction = Direction::kForward;
  int64_t threads = 0;  // that worked; 0 on a GPU
  std::string implementation;
  Outcome outcome;  // where it failed, the rest is empty
  Timing timing;
  double flops = 0, bytes = 0;           // of one execution
  bool memory_bound = false;             // rates in bytes, not FLOPs
  double rate = 0;                       // per second
  std::optional<CeilingKey> ceiling_of;  // none where no ceiling is measured on this device
  double ceiling = 0;                    // the highest that the process has seen
  double most = 0;                       // the largest fraction that is believed
  int attempts = 0;                      // measured anew where the fraction was above that
  bool disturbed() const { return fraction() > most; }
  double fraction() const { return ceiling > 0 ? rate / ceiling : 0; }
  std::optional<BenchError> error;
  Problem error_problem;  // of which the error is: the same, or a smaller one
};

// A row for each direction that the problem has. `reference`: a CPU, for the error.
std::vector<BenchRow> bench(const Context& context, const Context& reference,
                            const Problem& problem, const BenchOptions& options,
                            Ceilings& ceilings);

// Holds a row to the highest ceiling of the process, which may have been seen after the row.
void hold_to_highest(BenchRow& row, const Ceilings& ceilings);

// The problem cut down to what the reference computes in about a second: fewer batches, heads and
// rows first, then shorter sequences.
Problem reduced(const Problem& problem);

}  // namespace perseid::harness
