// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What perseid check tells: a line for each operation, or a row for each result.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common.hpp"
#include "harness/check.hpp"

namespace perseid::cli {

struct Entry {
  harness::Problem problem;
  harness::CheckResult result;
};

nlohmann::json to_json(const Entry& entry);

// One line for each operation: what was checked of it, and how near to its limit it came.
std::string check_summary(const std::vector<Entry>& entries, size_t width);
// One row for each result, with the output that comes nearest to its limit, and what the letters of
// the problems mean.
std::string check_rows(const std::vector<Entry>& entries, size_t width);

// What a check with orders of arrival or with ranks found.
struct SeededChecks {
  std::string table, failures;
  nlohmann::json results;
  uint64_t seed = 0;
  int64_t checked = 0, failed = 0;
};
// Prints it, as JSON where that is asked for. The exit code.
int report_checks(const Common& common, const SeededChecks& checks);

}  // namespace perseid::cli
