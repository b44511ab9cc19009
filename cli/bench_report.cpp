// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "bench_report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "common.hpp"
#include "harness/problem_text.hpp"
#include "harness/roofline.hpp"
#include "table.hpp"

namespace perseid::cli {
namespace {

using harness::BenchRow;

// How much faster than the same problem on one thread, where that was measured.
std::string speedup(const BenchRow& row, const std::vector<MeasuredRow>& rows) {
  if (row.threads <= 1) return "";
  harness::Problem alone = row.problem;
  alone.threads = 1;
  for (const auto& [other, against] : rows) {
    if (other.threads == 1 && other.direction == row.direction && other.outcome.ok() &&
        harness::to_flags(other.problem) == harness::to_flags(alone))
      return fmt::format("{:.2f}x", other.timing.least / row.timing.least);
  }
  return "";
}

std::string operation_of(const BenchRow& row) {
  std::string name = harness::name_of(row.problem.op);
  if (row.problem.op != harness::Op::kMatmul)
    name += row.direction == Direction::kForward ? " fwd" : " bwd";
  return name;
}

// "0.85 f32", "0.85 of f32 FMA peak 205 GFLOP/s"
std::string fraction_of(const BenchRow& row, bool verbose) {
  if (!row.ceiling_of) return "";
  const std::string name = harness::name_of(row.ceiling_of->ceiling);
  const std::string fraction = fmt::format("{:.2f}{} ", row.fraction(), row.disturbed() ? "?" : "");
  if (!verbose) return fraction + name.substr(0, name.find(' '));
  return fraction + "of " + name + " " +
         harness::rate_text(row.ceiling, row.memory_bound ? "B/s" : "FLOP/s");
}

std::string error_of(const BenchRow& row, bool verbose) {
  if (!row.error) return "";
  const std::string relative = fmt::format("{:.2f}", row.error->relative);
  return verbose ? fmt::format("{} ({:.1e})", relative, row.error->largest) : relative;
}

std::string coloured(const char* word, int colour) {
  return colours() ? fmt::format("\033[{}m{}\033[0m", colour, word) : word;
}

// Explains what the table has: `titles` is its first line.
std::string legend_of(const std::vector<MeasuredRow>& rows, const std::string& titles,
                      size_t width) {
  std::vector<harness::Problem> problems;
  bool disturbed = false, held = false;
  for (const auto& [row, against] : rows) {
    problems.push_back(row.problem);
    disturbed = disturbed || (row.outcome.ok() && row.disturbed());
    held = held || row.ceiling_of;
  }
  std::string text;
  const auto add = [&](const std::string& sentence) {
    if (!sentence.empty()) text += wrapped(sentence, width) + "\n";
  };
  add(harness::legend(problems));
  if (held)
    add("fraction: of the ceiling, the highest rate of it that was measured in this run: f32, bf16 "
        "and f64 multiply-adds in registers, a copy of the bytes, a read of them.");
  if (disturbed) add("?: above the ceiling in every attempt; something disturbed the measurement.");
  if (titles.find(" error") != titles.npos)
    add("error: the largest against float64, as a fraction of what is allowed; at most 1 passes.");
  if (titles.find(" ratio") != titles.npos)
    add("ratio: of this fraction to the old one (of the rates where there is no ceiling); least: "
        "below it a row counts as slower.");
  return text;
}

}  // namespace

std::string bench_table(const std::vector<MeasuredRow>& rows, bool verbose, size_t width) {
  const auto any = [&](auto condition) { return std::any_of(rows.begin(), rows.end(), condition); };
  const bool compared = any([](const MeasuredRow& each) { return each.against.has_value(); });
  const bool several =
      any([&](const MeasuredRow& each) { return each.row.threads != rows.front().row.threads; });
  Table table(
      {{"operation"},
       {"type"},
       {"problem", Align::kLeft, verbose ? size_t{0} : size_t{28}},
       {several ? "on" : "", Align::kRight},
       {verbose ? "implementation" : "", Align::kLeft},
       {"time", Align::kRight, 0, 5},
       {"rate", Align::kRight, 0, compared ? 1 : 4},
       {"fraction"},
       {any([](const MeasuredRow& each) { return each.row.error.has_value(); }) ? "error" : "",
        Align::kRight, 0, 3},
       {several ? "speed-up" : "", Align::kRight, 0, 2},
       {compared ? "ratio" : "", Align::kRight},
       {compared ? "least" : "", Align::kRight},
       {""}});
  for (const auto& [row, against] : rows) {
    std::vector<std::string> cells = {
        operation_of(row), harness::name_of(row.problem.type()), harness::summary(row.problem),
        several ? fmt::format("{}", row.threads) : "", verbose ? row.implementation : ""};
    if (!row.outcome.ok()) {
      cells.emplace_back(perseid_status_string(row.outcome.status));
      table.add(cells);
      continue;
    }
    cells.insert(cells.end(),
                 {duration(row.timing.least),
                  harness::rate_text(row.rate, row.memory_bound ? "B/s" : "FLOP/s"),
                  fraction_of(row, verbose), error_of(row, verbose), speedup(row, rows)});
    if (compared && !against) cells.emplace_back("new");
    if (against)
      cells.insert(cells.end(), {fmt::format("{:.2f}", against->ratio),
                                 fmt::format("{:.2f}", against->threshold),
                                 against->ok() ? coloured("ok", 32) : coloured("SLOWER", 31)});
    table.add(cells);
  }
  const std::string text = table.text(verbose ? std::numeric_limits<size_t>::max() : width);
  return text + legend_of(rows, text.substr(0, text.find('\n')), width);
}

nlohmann::json bench_json(const std::vector<MeasuredRow>& rows, const nlohmann::json& machine,
                          const harness::Ceilings& ceilings, double seconds) {
  nlohmann::json list = nlohmann::json::array(), measured = nlohmann::json::array();
  for (const auto& [row, against] : rows) {
    list.push_back(harness::to_json(row, seconds));
    if (against) list.back()["against"] = harness::to_json(*against);
  }
  for (const auto& [key, rate] : ceilings.all()) {
    const bool gpu = key.device_type != kDLCPU;
    measured.push_back({{"name", harness::name_of(key.ceiling)},
                        {"device", gpu ? fmt::format("cuda:{}", key.device) : "cpu"},
                        {"threads", key.threads},
                        {"rate", rate},
                        {"unit", harness::is_memory(key.ceiling) ? "B/s" : "FLOP/s"}});
    if (harness::is_memory(key.ceiling)) measured.back()["bytes"] = key.bytes;
  }
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return {{"date", fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900,
                               utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec)},
          {"seconds", seconds},
          {"machine", machine},
          {"ceilings", measured},
          {"rows", list}};
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  std::error_code ignored;
  const auto there = std::filesystem::status(path_, ignored);
  // A link stays, and the file that it leads to is replaced.
  if (std::filesystem::exists(there)) path_ = std::filesystem::canonical(path_, ignored).string();
  if (!std::filesystem::exists(there) || std::filesystem::is_regular_file(there))
    temporary_ = fmt::format("{}.{}.tmp", path_, getpid());
  file_ = std::fopen((temporary_.empty() ? path_ : temporary_).c_str(), "w");
  if (file_ == nullptr) fail(errno);
}

OutputFile::~OutputFile() {
  if (file_ != nullptr) std::fclose(file_);
  if (!temporary_.empty()) std::remove(temporary_.c_str());
}

void OutputFile::write(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), file_) == text.size();
  const int error = errno;
  const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
  if (!written || !closed) fail(written ? errno : error);
  if (temporary_.empty()) return;
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail(errno);
  temporary_.clear();
}

void OutputFile::fail(int error) const {
  throw Error(PERSEID_IO_ERROR,
              fmt::format("cannot write '{}': {}; give a path in a folder that may be written to",
                          path_, std::generic_category().message(error)));
}

}  // namespace perseid::cli
