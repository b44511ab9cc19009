// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <tuple>

#include "bench_collective.hpp"
#include "bench_report.hpp"
#include "commands.hpp"
#include "harness/bench_page.hpp"
#include "problem_flags.hpp"
#include "streams.hpp"
#include "table.hpp"

namespace perseid::cli {
namespace {

using harness::BenchRow;

constexpr const char* kBenchExample =
    "perseid bench attention --heads 2 --q-len 2048 --kv-len 2048 --head-dim 128 --backward "
    "--threads 1";

constexpr double kMostSeconds = 3600;  // of a row

struct Flags {
  ProblemFlags problems;
  harness::BenchOptions options;
  bool verbose = false;
  std::string html, against;
  double threshold = 0.95;
};

// A row below its threshold may have met a slow moment of the machine.
constexpr int kMostComparisons = 3;

std::string text_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad())
    throw Error(PERSEID_IO_ERROR, fmt::format("cannot read '{}': give a file that `perseid bench "
                                              "--json` wrote",
                                              path));
  return text;
}

void check_numbers(const Flags& flags) {
  const double seconds = flags.options.seconds;
  if (!(seconds >= 0 && seconds <= kMostSeconds))
    bad_input(fmt::format("--seconds must be from 0 to {}, got {}", kMostSeconds, seconds));
  if (!(flags.threshold > 0 && flags.threshold <= 1))
    bad_input(fmt::format("--threshold must be above 0 and at most 1, got {}", flags.threshold));
}

// Those of the command line; without any, those of the older report.
std::vector<harness::Problem> problems_to_measure(
    const Common& common, const Flags& flags, const std::optional<harness::Baseline>& baseline) {
  const bool named = !flags.problems.file.empty() || !flags.problems.given.empty();
  if (!baseline || named)
    return problems_of(flags.problems, common, on_gpu(common) ? "gpu_figures" : "figures");
  std::vector<harness::Problem> problems = baseline->problems();
  const auto left_out = [&](const harness::Problem& problem) {
    return (flags.problems.op && problem.op != *flags.problems.op) ||
           (common.threads != 0 && problem.threads != common.threads) ||
           (!common.dtype.empty() && common.dtype != harness::name_of(problem.type()));
  };
  std::erase_if(problems, left_out);
  if (problems.empty())
    bad_input(fmt::format("no row of '{}' is of this operation, type and number of threads",
                          flags.against));
  if (!common.impl.empty())
    bad_input(
        "--impl with --against needs a problem or --problems: a row is compared with the same "
        "row of the old report");
  return problems;
}

// The rows of one problem, measured anew where one has become slower.
std::vector<MeasuredRow> measure(const Context& context, const Context& reference,
                                 const harness::Problem& problem, const Flags& flags,
                                 const std::optional<harness::Baseline>& baseline,
                                 harness::Ceilings& ceilings) {
  std::vector<MeasuredRow> best;
  bool again = true;
  for (int turn = 0; turn < kMostComparisons && again; ++turn) {
    again = false;
    harness::BenchOptions options = flags.options;
    options.error = options.error && turn == 0;
    const std::vector<BenchRow> rows =
        harness::bench(context, reference, problem, options, ceilings);
    best.resize(std::max(best.size(), rows.size()));
    for (size_t i = 0; i < rows.size(); ++i) {
      MeasuredRow row{rows[i],
                      baseline && rows[i].outcome.ok() ? baseline->compare(rows[i]) : std::nullopt};
      const bool better = turn == 0 || (row.against && best[i].against &&
                                        row.against->ratio > best[i].against->ratio);
      if (better) {
        if (turn > 0) {
          row.row.error = best[i].row.error;
          row.row.error_problem = best[i].row.error_problem;
        }
        best[i] = std::move(row);
      }
      again = again || (best[i].against && !best[i].against->ok());
    }
  }
  return best;
}

// Sentences about what is wrong, and the exit code.
int verdict(const std::vector<MeasuredRow>& rows, const Flags& flags) {
  size_t compared = 0, slower = 0;
  for (const auto& [row, against] : rows) {
    if (!row.outcome.ok()) throw Error(row.outcome.status, row.outcome.sentence);
    compared += against.has_value();
    slower += against && !against->ok();
  }
  int code = kOk;
  for (const auto& [row, against] : rows) {
    if (!row.error || row.error->complaint.empty()) continue;
    write_err(fmt::format("perseid: wrong results: {}\n  again: perseid check {}\n",
                          row.error->complaint, harness::to_flags(row.error_problem)));
    code = kCheckFailed;
  }
  if (flags.against.empty()) return code;
  if (compared == 0)
    bad_input(fmt::format("'{}' has none of these rows; without a problem, its own are measured",
                          flags.against));
  if (slower > 0) {
    write_err(fmt::format("perseid: {} of {} rows are slower than in '{}'\n", slower, compared,
                          flags.against));
    code = kCheckFailed;
  }
  return code;
}

int bench(const Common& common, const Flags& flags) {
  check_numbers(flags);
  const bool gpu = on_gpu(common);
  std::optional<harness::Baseline> baseline;
  if (!flags.against.empty())
    baseline.emplace(text_of_file(flags.against), flags.against, flags.threshold);
  const std::vector<harness::Problem> problems = problems_to_measure(common, flags, baseline);
  std::optional<OutputFile> page;
  if (!flags.html.empty()) page.emplace(flags.html);

  const Context all = open_context(common, 0);
  const nlohmann::json machine = nlohmann::json::parse(all.facts());
  const int64_t cpus = gpu ? 1 : machine.at("device").value("workers", int64_t{1});
  const Context reference = open_cpu(0);
  harness::Ceilings ceilings;
  std::vector<MeasuredRow> rows;
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
        for (MeasuredRow& row :
             measure(context, gpu ? reference : context, one, flags, baseline, ceilings))
          rows.push_back(std::move(row));
      }
    }
  }
  // A ceiling may have been seen at its highest after its first rows.
  for (auto& [row, against] : rows) {
    harness::hold_to_highest(row, ceilings);
    if (against) against = baseline->compare(row);
  }
  const nlohmann::json report = bench_json(rows, machine, ceilings, flags.options.seconds);
  if (page) page->write(harness::bench_page(report));
  if (common.json) {
    print("{}\n", report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    print("{}", bench_table(rows, flags.verbose, output_width()));
  }
  return verdict(rows, flags);
}

CLI::App* add_bench_over_ranks(CLI::App& command, const char* name, std::vector<RankOp> ops,
                               const std::shared_ptr<CollectiveSizes>& sizes) {
  const bool attends = ops.front() == RankOp::kAttend;
  CLI::App* app = command.add_subcommand(
      name, attends ? "causal attention over ranks, zigzag, against the larger of attention and "
                      "transfer alone"
            : ops.size() > 1 ? "products over ranks against the larger of product and transfer "
                               "alone"
                             : "that product over ranks against the same bound");
  app->add_option("-n,--ranks", sizes->ranks,
                  "how many ranks, which share the CPUs; on GPUs one each")
      ->capture_default_str()
      ->type_name("N");
  if (attends) {
    app->add_option("--length", sizes->length, "positions of all ranks")->capture_default_str();
    app->add_option("--heads", sizes->heads, "query heads")->capture_default_str();
    app->add_option("--kv-heads", sizes->kv_heads, "key heads")->capture_default_str();
    app->add_option("--head-dim", sizes->head_dim, "of all heads")->capture_default_str();
    app->add_option("--sequences", sizes->sequences,
                    "cut the positions into so many equal sequences of a ragged batch, on GPUs; "
                    "0: one sequence")
        ->capture_default_str();
    app->add_option("--chunks", sizes->chunks, "that a piece of keys is signalled in; 0: one")
        ->capture_default_str();
    app->add_flag("--backward", sizes->backward, "measure backward, not forward");
  } else {
    app->add_option("--m", sizes->m, "rows of all ranks")->capture_default_str();
    app->add_option("--n", sizes->n, "columns of each rank")->capture_default_str();
    app->add_option("--k", sizes->k, "depth of each rank")->capture_default_str();
    app->add_option("--chunks", sizes->chunks,
                    "that a gathered shard is signalled in, on GPUs; 0: by a model")
        ->capture_default_str();
  }
  app->add_option("--fusion", sizes->fusion, "whether communicating overlaps computing")
      ->type_name("auto|fused|unfused")
      ->capture_default_str();
  app->add_flag("--canonical", sizes->canonical,
                "the operation over ranks in canonical order, what bounds it not");
  app->add_option(
         "--samples", sizes->samples,
         "on GPUs: also write each time of each rank, and that of the host's calls, as CSV")
      ->type_name("FILE");
  app->add_option("--report", sizes->report,
                  "on GPUs: also write where the time of each rank went in one of several "
                  "executions back to back, as that of run; {rank} in the name is its number")
      ->type_name("FILE");
  app->footer(fmt::format("Example:\n  perseid bench {} -n 2 {}", name,
                          attends ? "--length 4096 --heads 8 --kv-heads 2 --head-dim 64"
                                  : "--m 2048 --n 2048 --k 2048"));
  app->fallthrough()->callback([sizes, ops] { sizes->ops = ops; });
  return app;
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
                    kBenchExample);
  auto sizes = std::make_shared<CollectiveSizes>();
  std::vector<CLI::App*> over_ranks;
  using Ops = std::vector<RankOp>;
  for (const auto& [name, ops] : {std::pair{"collective", Ops{RankOp::kGather, RankOp::kReduce}},
                                  std::pair{"all-gather-matmul", Ops{RankOp::kGather}},
                                  std::pair{"matmul-reduce-scatter", Ops{RankOp::kReduce}},
                                  std::pair{"matmul-all-reduce", Ops{RankOp::kAllReduce}},
                                  std::pair{"context-attention", Ops{RankOp::kAttend}}})
    over_ranks.push_back(add_bench_over_ranks(*command, name, ops, sizes));
  command->add_option("--seconds", flags->options.seconds, "measured time of each row")
      ->capture_default_str();
  command->add_flag_callback(
      "--no-error", [flags] { flags->options.error = false; },
      "do not compare with the float64 reference");
  command->add_flag("--verbose", flags->verbose, "every column, however long the lines");
  command->add_option("--html", flags->html,
                      "also write a page with the roofline, the fractions and the machine");
  command->add_option(
      "--against", flags->against,
      "an older report of --json: end with 1 where a row has become slower; without "
      "a problem, its rows are measured");
  command
      ->add_option("--threshold", flags->threshold,
                   "with --against: what new over old may not fall below")
      ->capture_default_str();
  command->footer(fmt::format("Example:\n  {}", kBenchExample));
  command->fallthrough()->callback([&action, &common, flags, sizes, over_ranks] {
    action = [&common, flags, sizes, over_ranks] {
      const bool chosen = std::any_of(over_ranks.begin(), over_ranks.end(),
                                      [](const CLI::App* each) { return each->count() > 0; });
      if (!chosen) return bench(common, *flags);
      sizes->seconds = flags->options.seconds;
      return bench_collective(common, *sizes);
    };
  });
}

}  // namespace perseid::cli
