// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "check_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common.hpp"
#include "streams.hpp"
#include "table.hpp"

namespace perseid::cli {
namespace {

using harness::CheckResult;
using harness::OutputCheck;

// The output that comes nearest to its limit.
const OutputCheck* worst(const CheckResult& result) {
  const auto found = std::max_element(
      result.outputs.begin(), result.outputs.end(),
      [](const auto& a, const auto& b) { return a.error * b.limit < b.error * a.limit; });
  return found == result.outputs.end() ? nullptr : &*found;
}

std::string verdict(bool passed) {
  const char* word = passed ? "ok" : "FAILED";
  if (!colours()) return word;
  return fmt::format("\033[{}m{}\033[0m", passed ? 32 : 31, word);
}

std::string relative_text(double error) {
  return error < 100 ? fmt::format("{:.2f}", error) : fmt::format("{:.1e}", error);
}

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end())
    names.push_back(name);
}

std::string type_of(const harness::Problem& problem) {
  return problem.op == harness::Op::kDropoutMask ? "" : harness::name_of(problem.type());
}

constexpr const char* kErrorLegend =
    "error: the largest against float64, as a fraction of what is allowed; at most 1 passes.";

}  // namespace

nlohmann::json to_json(const Entry& entry) {
  nlohmann::json outputs = nlohmann::json::array();
  for (const OutputCheck& output : entry.result.outputs)
    outputs.push_back({{"name", output.name}, {"error", output.error}, {"limit", output.limit}});
  nlohmann::json object = {{"problem", harness::to_json(entry.problem)},
                           {"implementation", entry.result.implementation},
                           {"passed", entry.result.passed},
                           {"status", perseid_status_string(entry.result.outcome.status)},
                           {"outputs", outputs}};
  if (!entry.result.outcome.sentence.empty()) object["sentence"] = entry.result.outcome.sentence;
  if (!entry.result.complaint.empty()) object["complaint"] = entry.result.complaint;
  if (!entry.result.note.empty()) object["note"] = entry.result.note;
  return object;
}

std::string check_summary(const std::vector<Entry>& entries, size_t width) {
  Table table({{"operation"},
               {"types"},
               {"results", Align::kRight},
               {"implementations", Align::kLeft, 24, 1},
               {"error", Align::kRight},
               {""}});
  for (harness::Op op : {harness::Op::kSoftmax, harness::Op::kAttention, harness::Op::kMatmul,
                         harness::Op::kDropoutMask}) {
    std::vector<std::string> types, implementations;
    size_t results = 0, failed = 0;
    double error = 0;
    for (const auto& [problem, result] : entries) {
      if (problem.op != op) continue;
      ++results;
      failed += !result.passed;
      add_once(types, type_of(problem));
      add_once(implementations, result.implementation);
      if (const OutputCheck* output = worst(result)) error = std::max(error, output->relative());
    }
    if (results == 0) continue;
    table.add({harness::name_of(op), fmt::format("{}", fmt::join(types, " ")),
               fmt::format("{}", results), fmt::format("{}", fmt::join(implementations, " ")),
               relative_text(error),
               verdict(failed == 0) + (failed == 0 ? "" : fmt::format(" {}", failed))});
  }
  return table.text(width) + wrapped(kErrorLegend, width) + "\n";
}

std::string check_rows(const std::vector<Entry>& entries, size_t width) {
  Table table({{"operation"},
               {"type"},
               {"problem", Align::kLeft, 20},
               {"implementation", Align::kLeft, 0, 2},
               {"output", Align::kLeft, 10, 1},
               {"error", Align::kRight},
               {""}});
  std::vector<harness::Problem> problems;
  for (const auto& [problem, result] : entries) {
    const OutputCheck* output = worst(result);
    table.add({harness::name_of(problem.op), type_of(problem), harness::summary(problem),
               result.implementation, output == nullptr ? result.note : output->name,
               output == nullptr ? "" : relative_text(output->relative()), verdict(result.passed)});
    problems.push_back(problem);
  }
  const std::string letters = harness::legend(problems);
  return table.text(width) + wrapped(kErrorLegend, width) + "\n" +
         (letters.empty() ? "" : wrapped(letters, width) + "\n");
}

int report_checks(const Common& common, const SeededChecks& checks) {
  if (common.json) {
    print("{}\n", nlohmann::json{{"checked", checks.checked},
                                 {"failed", checks.failed},
                                 {"seed", checks.seed},
                                 {"results", checks.results}}
                      .dump());
  } else {
    if (!common.quiet) print("{}", checks.table);
    print("{}", checks.failures);
    if (!common.quiet || checks.failed > 0)
      print("{} checked, {} failed\n", checks.checked, checks.failed);
  }
  return checks.failed == 0 ? kOk : kCheckFailed;
}

}  // namespace perseid::cli
