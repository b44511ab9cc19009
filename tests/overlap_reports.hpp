// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What holds of every overlap report.
#pragma once

#include <nlohmann/json.hpp>
#include <set>

#include "collective_tools.hpp"

namespace collective_tools {

// The sums of a report are those of its chunks, and its events lie within the execution.
inline void expect_consistent(const perseid::RankPlan& plan, const Group& group, int64_t chunks,
                              bool gathers) {
  const nlohmann::json report = nlohmann::json::parse(plan.overlap_report());
  SCOPED_TRACE(report.dump(1));
  EXPECT_EQ(report["rank"], group.rank());
  EXPECT_EQ(report["ranks"], group.size());
  const double total = report["seconds"];
  EXPECT_GT(total, 0);
  double computed = 0, waited = 0, longest = 0;
  std::set<int64_t> seen;
  for (const auto& chunk : report["chunks"]) {
    computed += chunk["compute_seconds"].get<double>();
    waited += chunk["waited_seconds"].get<double>();
    longest = std::max(longest, chunk["communication_seconds"].get<double>());
    if (!chunk["chunk"].is_null()) seen.insert(chunk["chunk"].get<int64_t>());
    if (gathers && !chunk["chunk"].is_null()) {
      EXPECT_GT(chunk["communication_seconds"], 0);
    }
  }
  EXPECT_EQ(std::ssize(seen), chunks);
  EXPECT_NEAR(computed, report["compute_seconds"], 1e-9 + 1e-6 * total);
  EXPECT_NEAR(waited, report["waited_seconds"], 1e-9 + 1e-6 * total);
  EXPECT_GT(computed, 0);
  EXPECT_LE(computed + waited, total * 1.001);
  EXPECT_LE(longest, report["communication_seconds"].get<double>() * 1.001 + 1e-9);
  EXPECT_LE(report["communication_seconds"], total * 1.001);
  double first = 1e300, last = 0;
  for (const auto& event : report["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const double begin = event["ts"], length = event["dur"];
    EXPECT_GE(length, 0);
    EXPECT_GE(length * 1.001 + 1, event["args"]["seconds"].get<double>() * 1e6);
    first = std::min(first, begin);
    last = std::max(last, begin + length);
  }
  EXPECT_LE(last - first, total * 1e6 * 1.001 + 1);
}

}  // namespace collective_tools
