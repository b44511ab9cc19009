// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/bench.hpp"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "problem_flags.hpp"
#include "streams.hpp"

namespace perseid::cli {
namespace {

using harness::BenchRow;

constexpr const char* kExample =
    "perseid bench attention --heads 2 --q-len 2048 --kv-len 2048 --head-dim 128 --backward "
    "--threads 1";

constexpr double kMostSeconds = 3600;  // of a row

struct Flags {
  ProblemFlags problems;
  harness::BenchOptions options;
};

std::string time_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  return seconds < 1 ? fmt::format("{:.2f} ms", seconds * 1e3) : fmt::format("{:.3f} s", seconds);
}

// How much faster than the same problem on one thread, where that was measured.
std::string speedup(const BenchRow& row, const std::vector<BenchRow>& rows) {
  if (row.threads <= 1) return "";
  harness::Problem alone = row.problem;
  alone.threads = 1;
  for (const BenchRow& other : rows) {
    if (other.threads == 1 && other.direction == row.direction && other.outcome.ok() &&
        harness::to_flags(other.problem) == harness::to_flags(alone))
      return fmt::format("{:.2f}x", other.timing.time / row.timing.time);
  }
  return "";
}

void print_rows(const std::vector<BenchRow>& rows) {
  Table table;
  table.add({"operation", "type", "problem", "threads", "implementation", "time", "rate", "ceiling",
             "fraction", "error", "speed-up"});
  for (const BenchRow& row : rows) {
    const bool forward = row.direction == Direction::kForward;
    std::string operation = harness::name_of(row.problem.op);
    if (row.problem.op != harness::Op::kMatmul) operation += forward ? " forward" : " backward";
    std::vector<std::string> cells = {operation, harness::name_of(row.problem.type()),
                                      harness::summary(row.problem),
                                      row.threads == 0 ? "" : fmt::format("{}", row.threads)};
    if (row.outcome.ok()) {
      const char* unit = row.memory_bound ? "GB/s" : "GFLOP/s";
      cells.insert(
          cells.end(),
          {row.implementation, time_text(row.timing.time),
           fmt::format("{:.1f} {}", row.rate / 1e9, unit),
           row.ceiling > 0 ? fmt::format("{} {:.1f}", row.ceiling_name, row.ceiling / 1e9) : "",
           row.ceiling > 0 ? fmt::format("{:.2f}", row.fraction()) : "",
           row.error ? fmt::format("{:.1e}", *row.error) : "", speedup(row, rows)});
    } else {
      cells.push_back(perseid_status_string(row.outcome.status));
    }
    table.add(cells);
  }
  print("{}", table.text());
}

int bench(const Common& common, const Flags& flags) {
  const double seconds = flags.options.seconds;
  if (!(seconds >= 0 && seconds <= kMostSeconds))
    bad_input(fmt::format("--seconds must be from 0 to {}, got {}", kMostSeconds, seconds));
  const bool gpu = on_gpu(common);
  std::vector<harness::Problem> problems =
      problems_of(flags.problems, common, gpu ? "gpu_figures" : "figures");
  const Context all = open_context(common, 0);
  const nlohmann::json machine = nlohmann::json::parse(all.facts());
  const int64_t cpus = gpu ? 1 : machine.at("device").value("workers", int64_t{1});
  const Context reference = open_cpu(0);
  std::vector<BenchRow> rows;
  {
    Progress progress(common, "bench");
    int64_t done = 0;
    for (const harness::Problem& problem : problems) {
      progress.update(done++, static_cast<int64_t>(problems.size()),
                      fmt::format("{} {} {}", harness::name_of(problem.op),
                                  harness::name_of(problem.type()), harness::summary(problem)));
      std::vector<int64_t> threads = {problem.threads == 0 ? 1 : problem.threads};
      if (problem.threads == 0 && cpus > 1) threads.push_back(cpus);
      for (int64_t count : threads) {
        harness::Problem one = problem;
        one.threads = count;
        const Context context = open_context(common, count);
        for (BenchRow& row :
             harness::bench(context, gpu ? reference : context, one, flags.options)) {
          row.threads = gpu ? 0 : count;
          rows.push_back(std::move(row));
        }
      }
    }
  }
  if (common.json) {
    nlohmann::json list = nlohmann::json::array();
    for (const BenchRow& row : rows) list.push_back(harness::to_json(row));
    const nlohmann::json report = {{"machine", machine}, {"rows", list}};
    print("{}\n", report.dump());
  } else {
    print_rows(rows);
  }
  for (const BenchRow& row : rows) {
    if (!row.outcome.ok()) throw Error(row.outcome.status, row.outcome.sentence);
  }
  return kOk;
}

}  // namespace

void add_bench(CLI::App& app, const Common& common, Action& action) {
  CLI::App* command = app.add_subcommand(
      "bench", "time, rate, fraction of the ceiling measured in this run, error");
  auto flags = std::make_shared<Flags>();
  using harness::Op;
  add_problem_flags(*command, flags->problems,
                    static_cast<uint32_t>(Op::kSoftmax) | static_cast<uint32_t>(Op::kAttention) |
                        static_cast<uint32_t>(Op::kMatmul),
                    kExample);
  command->add_option("--seconds", flags->options.seconds, "measured time of each row")
      ->capture_default_str();
  command->add_flag("--no-error{false}", flags->options.error,
                    "do not compare with the float64 reference");
  command->footer(fmt::format("Example:\n  {}", kExample));
  command->fallthrough()->callback(
      [&action, &common, flags] { action = [&common, flags] { return bench(common, *flags); }; });
}

}  // namespace perseid::cli
