// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/bench_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/problem_text.hpp"

namespace perseid::harness {
namespace {

const char* text_of(Direction direction) {
  return direction == Direction::kForward ? "forward" : "backward";
}

// Rows of equal keys measure the same.
std::string key_of(const Problem& problem, std::string_view direction, std::string_view device) {
  return fmt::format("{} {} {}", device, direction, to_flags(problem));
}

// A finite number that is not negative; 0 where there is none.
double number_in(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return 0;
  if (!found->is_number() || !(found->get<double>() >= 0) || std::isinf(found->get<double>()))
    throw Error(PERSEID_INVALID_ARGUMENT,
                fmt::format("\"{}\" is {}, expected a number from 0 on", name, found->dump()));
  return found->get<double>();
}

std::string text_in(const nlohmann::json& object, const char* name, const std::string& otherwise) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

}  // namespace

nlohmann::json to_json(const BenchRow& row, double seconds) {
  nlohmann::json object = {{"problem", to_complete_json(row.problem)},
                           {"command", fmt::format("perseid bench --device {} --seconds {} {}",
                                                   row.device, seconds, to_flags(row.problem))},
                           {"device", row.device},
                           {"direction", text_of(row.direction)},
                           {"threads", row.threads},
                           {"implementation", row.implementation},
                           {"status", perseid_status_string(row.outcome.status)}};
  if (!row.outcome.ok()) {
    object["sentence"] = row.outcome.sentence;
    return object;
  }
  object["seconds"] = {{"time", row.timing.least},
                       {"median", row.timing.median},
                       {"repetitions", row.timing.repetitions}};
  object["flops"] = row.flops;
  object["bytes"] = row.bytes;
  object["rate"] = row.rate;
  object["unit"] = row.memory_bound ? "B/s" : "FLOP/s";
  object["attempts"] = row.attempts;
  object["disturbed"] = row.disturbed();
  if (row.ceiling_of) {
    object["ceiling"] = {{"name", name_of(row.ceiling_of->ceiling)}, {"rate", row.ceiling}};
    object["fraction"] = row.fraction();
  }
  if (row.error) {
    object["error"] = {{"largest", row.error->largest},
                       {"relative", row.error->relative},
                       {"of", to_complete_json(row.error_problem)}};
    if (!row.error->complaint.empty()) object["error"]["complaint"] = row.error->complaint;
  }
  return object;
}

nlohmann::json to_json(const Comparison& comparison) {
  return {{"ratio", comparison.ratio},
          {"of", comparison.of_fractions ? "fraction" : "rate"},
          {"threshold", comparison.threshold},
          {"ok", comparison.ok()}};
}

Baseline::Baseline(std::string_view text, const std::string& name, double threshold) {
  const nlohmann::json report = nlohmann::json::parse(text, nullptr, false);
  if (!report.is_object() || !report.contains("rows") || !report["rows"].is_array())
    throw Error(PERSEID_INVALID_ARGUMENT,
                fmt::format("'{}' is no report of measurements: give a file that "
                            "`perseid bench --json` wrote",
                            name));
  size_t number = 0;
  for (const nlohmann::json& row : report["rows"]) {
    try {
      add(row, threshold);
    } catch (const Error& error) {
      throw Error(PERSEID_INVALID_ARGUMENT,
                  fmt::format("{}, row {}: {}", name, number, error.what()));
    }
    ++number;
  }
  if (rows_.empty())
    throw Error(PERSEID_INVALID_ARGUMENT,
                fmt::format("'{}' has no measured row to compare with", name));
}

void Baseline::add(const nlohmann::json& row, double threshold) {
  if (!row.is_object() || !row.contains("problem"))
    throw Error(PERSEID_INVALID_ARGUMENT, "expected an object with \"problem\"");
  const Problem problem = from_json(row["problem"]);
  const double rate = number_in(row, "rate"), own = number_in(row, "threshold");
  if (rate == 0) return;  // it failed then
  const auto same = [&](const Problem& each) { return to_flags(each) == to_flags(problem); };
  if (std::none_of(problems_.begin(), problems_.end(), same)) problems_.push_back(problem);
  // Reports that do not name the device were of one with threads, or of a GPU.
  const std::string otherwise = number_in(row, "threads") == 0 ? "cuda:0" : "cpu";
  const auto ceiling = row.find("ceiling");
  rows_.push_back(
      {key_of(problem, text_in(row, "direction", "forward"), text_in(row, "device", otherwise)),
       ceiling != row.end() && ceiling->is_object() ? text_in(*ceiling, "name", "") : "",
       number_in(row, "fraction"), rate, own > 0 ? own : threshold});
}

std::optional<Comparison> Baseline::compare(const BenchRow& row) const {
  const std::string key = key_of(row.problem, text_of(row.direction), row.device);
  const auto old =
      std::find_if(rows_.begin(), rows_.end(), [&](const Old& each) { return each.key == key; });
  if (old == rows_.end()) return {};
  Comparison comparison;
  comparison.threshold = old->threshold;
  comparison.of_fractions = old->fraction > 0 && row.fraction() > 0 &&
                            old->ceiling == harness::name_of(row.ceiling_of->ceiling);
  comparison.ratio =
      comparison.of_fractions ? row.fraction() / old->fraction : row.rate / old->rate;
  return comparison;
}

}  // namespace perseid::harness
