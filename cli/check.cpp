// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "check_async.hpp"
#include "check_collective.hpp"
#include "check_report.hpp"
#include "commands.hpp"
#include "harness/fuzz.hpp"
#include "problem_flags.hpp"
#include "sentences.hpp"
#include "streams.hpp"
#include "table.hpp"
#include "usage.hpp"

namespace perseid::cli {
namespace {

using harness::CheckResult;
using harness::Problem;

constexpr const char* kCheckExample =
    "perseid check attention --batch 2 --heads 4 --q-len 100 --kv-len 130 --head-dim 64 "
    "--causal bottom-right --backward --dtype bf16";
// Failures of fuzzing that are shown; all are counted.
constexpr size_t kMostShown = 20;
// On CPUs one in so many random problems is put to every implementation instead of the chosen one,
// on a GPU each.
constexpr uint64_t kEveryImplementation = 4;
// Results must be the same with this many threads as with one (or with --threads).
constexpr int64_t kOtherThreads = 3;
// Bytes of a problem's tensors; larger problems are only planned.
constexpr double kMostBytes = 1e9, kMostFuzzBytes = 64e6, kNoBytes = -1;
// Random problems: their numbers are drawn before the first is checked.
constexpr uint64_t kMostRandom = 10'000'000;
// On a GPU so many random problems at least share the kernels that are compiled for them, and there
// are about so many groups at most: kernels take seconds to compile.
constexpr uint64_t kGroup = 64, kMostGroups = 40;

struct Flags {
  ProblemFlags problems;
  uint64_t fuzz = 0;
  uint64_t seed = 1;
  double seconds = 0;  // of random problems; 0: no limit
  bool plans_only = false;
  bool async = false;
  bool collective = false, canonical = false;
  std::optional<int64_t> ranks;
  bool verbose = false;
  std::vector<uint64_t> part = {0, 1};
};

// What is wrong, in the flags of the problem's operation, and how to see it again.
std::string failure_text(const CLI::App& command, const Problem& problem,
                         const CheckResult& result) {
  const CLI::App& operation = *command.get_subcommand(std::string(harness::name_of(problem.op)));
  return fmt::format("{}\n  again: perseid check {}\n", in_flags(operation, result.complaint),
                     harness::to_flags(problem));
}

struct Tally {
  std::vector<Entry> kept;  // all, or the first failures
  size_t checked = 0, failed = 0, refused = 0;
  size_t not_for_gpu = 0;  // not checked there, as it has no kernels for them
  void count(const CheckResult& result) {
    ++checked;
    failed += !result.passed;
    refused += result.passed && !result.outcome.ok();
  }
};

// What checks on one or both kinds of device. GPU contexts are shared: they load every kernel once.
class Devices {
 public:
  explicit Devices(const Common& common)
      : cpu_(!on_gpu(common)), wanted_(on_gpu(common)), gpu_(open_gpu(common, &absent_)) {}

  // Checks the implementation that is chosen, or every one that takes the problem. `alone`: a GPU
  // that refuses its operation has failed it.
  std::vector<CheckResult> check(const Problem& problem, const Context& context,
                                 const Context& other, double limit_bytes, bool every, bool alone,
                                 size_t* not_for_gpu) const {
    std::vector<CheckResult> results;
    const auto add = [&](const harness::Checker& checker) {
      std::vector<CheckResult> more;
      every ? more = checker.check_all(problem) : more = {checker.check(problem)};
      for (CheckResult& result : more) results.push_back(std::move(result));
    };
    if (cpu_ && !problem.impl.starts_with("cuda:"))
      add(harness::Checker(context, other, limit_bytes));
    if (!gpu_ || (cpu_ && problem.impl.starts_with("cpu:"))) return results;
    const size_t before = results.size();
    add(harness::Checker(*gpu_, *gpu_, context, limit_bytes));
    // Softmax and matmul have kernels for every problem.
    const bool any = problem.op == harness::Op::kSoftmax || problem.op == harness::Op::kMatmul;
    const bool must = wanted_ && (alone || any);
    const auto refuses = [&](const CheckResult& result) {
      return !must && problem.expect.value == 0 && result.outcome.status == PERSEID_UNSUPPORTED;
    };
    const auto end = std::remove_if(results.begin() + static_cast<std::ptrdiff_t>(before),
                                    results.end(), refuses);
    *not_for_gpu += static_cast<size_t>(results.end() - end);
    results.erase(end, results.end());
    return results;
  }
  // Why no GPU is checked, where none was ruled out; "" where one is.
  std::string absent() const { return gpu_ ? "" : absent_; }

 private:
  bool cpu_, wanted_;
  std::string absent_;
  std::optional<Context> gpu_;
};

Tally check_list(const Common& common, const Devices& devices,
                 const std::vector<Problem>& problems) {
  Tally tally;
  Progress progress(common, "check");
  int64_t done = 0;
  for (const Problem& problem : problems) {
    progress.update(done++, static_cast<int64_t>(problems.size()), harness::summary(problem));
    const Context context = open_cpu(problem.threads), other = open_cpu(kOtherThreads);
    for (CheckResult& result : devices.check(problem, context, other, kMostBytes, true,
                                             problems.size() == 1, &tally.not_for_gpu)) {
      tally.count(result);
      tally.kept.push_back({problem, std::move(result)});
      tally.kept.back().problem.impl = tally.kept.back().result.implementation;
    }
  }
  return tally;
}

harness::Draw draw_of(const Common& common, const Flags& flags) {
  const bool gpu = on_gpu(common);
  const uint64_t group = std::max(kGroup, flags.fuzz / kMostGroups);
  return {.seed = flags.seed, .group = gpu ? group : 1, .gpu = gpu};
}

// The first random problems of the operation that is asked for; of them, whole groups that are of
// the part that is asked for.
std::vector<uint64_t> indices(const Common& common, const Flags& flags, const harness::Draw& draw) {
  std::set<harness::Op> ops;  // none: all
  if (flags.problems.op)
    ops = {*flags.problems.op};
  else if (!common.impl.empty())
    ops = operations_with(common.impl);
  std::vector<uint64_t> drawn;
  for (uint64_t index = 0; drawn.size() < flags.fuzz; ++index) {
    if (ops.empty() || ops.contains(harness::random_problem(draw, index).op))
      drawn.push_back(index);
  }
  std::erase_if(
      drawn, [&](uint64_t index) { return index / draw.group % flags.part[1] != flags.part[0]; });
  return drawn;
}

// Every CPU takes a problem at a time; the report is in the problems' order.
Tally fuzz(const CLI::App& command, const Common& common, const Devices& devices,
           const Flags& flags) {
  Progress progress(common, "fuzz");
  const harness::Draw draw = draw_of(common, flags);
  const std::vector<uint64_t> drawn = indices(common, flags, draw);
  struct Share {
    std::map<size_t, std::vector<Entry>> failures;  // by the place in `drawn`
    Tally tally;
    std::exception_ptr thrown;
  };
  std::atomic<size_t> next{0}, failed{0};
  const auto begin = std::chrono::steady_clock::now();
  const auto time_is_up = [&] {
    const std::chrono::duration<double> since = std::chrono::steady_clock::now() - begin;
    return flags.seconds > 0 && since.count() > flags.seconds;
  };
  const auto work = [&](Share& share) {
    const Context context = open_cpu(common.threads == 0 ? 1 : common.threads);
    const Context other = open_cpu(kOtherThreads);
    for (size_t at = next++; at < drawn.size() && !time_is_up(); at = next++) {
      if (at % 64 == 0)
        progress.update(static_cast<int64_t>(at), static_cast<int64_t>(drawn.size()),
                        fmt::format("{} failed", failed.load()));
      Problem problem = harness::random_problem(draw, drawn[at]);
      if (!common.impl.empty() && problem.expect.value == 0) problem.impl = common.impl;
      for (CheckResult& result :
           devices.check(problem, context, other, flags.plans_only ? kNoBytes : kMostFuzzBytes,
                         draw.gpu || drawn[at] % kEveryImplementation == 0, false,
                         &share.tally.not_for_gpu)) {
        share.tally.count(result);
        if (result.passed) continue;
        // At once too: what comes later may never end.
        if (failed++ < kMostShown && !common.json)
          progress.say("\n" + failure_text(command, problem, result));
        share.failures[at].push_back({problem, std::move(result)});
        Entry& entry = share.failures[at].back();
        if (problem.impl.empty()) entry.problem.impl = entry.result.implementation;
      }
    }
  };
  std::vector<Share> shares(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (Share& share : shares)
    threads.emplace_back([&] {
      try {
        work(share);
      } catch (...) {
        share.thrown = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  Tally tally;
  std::map<size_t, std::vector<Entry>> failures;
  for (Share& share : shares) {
    if (share.thrown) std::rethrow_exception(share.thrown);
    tally.checked += share.tally.checked;
    tally.failed += share.tally.failed;
    tally.refused += share.tally.refused;
    tally.not_for_gpu += share.tally.not_for_gpu;
    failures.merge(share.failures);
  }
  for (auto& [at, entries] : failures)
    for (Entry& entry : entries)
      if (tally.kept.size() < kMostShown) tally.kept.push_back(std::move(entry));
  return tally;
}

// A problem that all its implementations refuse ends with the code of its status; a wrong result,
// and a list with something wrong in it, with kCheckFailed.
int exit_code_of(const Tally& tally, size_t problems) {
  if (tally.failed == 0) return kOk;
  const perseid_status status = tally.kept[0].result.outcome.status;
  const bool refused = std::all_of(tally.kept.begin(), tally.kept.end(), [&](const Entry& entry) {
    return entry.result.outcome.status == status;
  });
  return problems == 1 && refused && status != PERSEID_OK ? exit_code(status) : kCheckFailed;
}

// Behind the name of an operation that drops out, --seed is read as its own.
Flags with_seed(Flags flags) {
  std::vector<std::pair<std::string, std::string>>& given = flags.problems.given;
  if (flags.fuzz == 0 || given.size() != 1 || given[0].first != "seed") return flags;
  Problem problem;
  harness::set_field(problem, "seed", given[0].second);
  flags.seed = problem.seed;
  given.clear();
  return flags;
}

void print_report(const CLI::App& command, const Common& common, const Flags& flags,
                  const Tally& tally, const std::vector<Entry>& failures, size_t problems) {
  const size_t width = output_width();
  if (flags.fuzz == 0 && !common.quiet)
    print("{}", flags.verbose || problems == 1 ? check_rows(tally.kept, width)
                                               : check_summary(tally.kept, width));
  for (const auto& [problem, result] : failures)
    print("\n{}{}{}", result.implementation, result.implementation.empty() ? "" : ": ",
          failure_text(command, problem, result));
  if (tally.failed > failures.size()) print("\nand {} more\n", tally.failed - failures.size());
  if (!common.quiet || tally.failed > 0)
    print("{} checked, {} failed, {} rightly refused\n", tally.checked, tally.failed,
          tally.refused);
  if (!common.quiet && tally.not_for_gpu > 0)
    print("{} not checked on the GPU, which has no kernels for them\n", tally.not_for_gpu);
}

int check(const CLI::App& command, const Common& common, const Flags& flags) {
  if (flags.collective) {
    if (flags.fuzz > 0)
      bad_input("--fuzz is of one rank; check collective draws its problems by --seed");
    if (!common.dtype.empty() || !common.impl.empty())
      bad_input(
          "check collective checks all types with the first implementation; leave --dtype "
          "and --impl out");
    return check_collective(common, flags.ranks, flags.seed, flags.canonical);
  }
  if (flags.fuzz > 0 && (!flags.problems.file.empty() || !flags.problems.given.empty()))
    bad_input("--fuzz draws its own problems; it goes with an operation, --seed and --impl alone");
  if (flags.fuzz > kMostRandom)
    bad_input(fmt::format("--fuzz: expected at most {} problems, got {}; draw others with --seed",
                          kMostRandom, flags.fuzz));
  std::vector<Problem> problems;
  if (flags.fuzz == 0) problems = problems_of(flags.problems, common, "check");
  if (flags.part[1] == 0 || flags.part[0] >= flags.part[1])
    bad_input(fmt::format("--part is I,N: the I-th of N parts, counted from 0, got {},{}",
                          flags.part[0], flags.part[1]));
  if (flags.async) {
    Flags of = flags;
    if (!of.problems.op) of.problems.op = harness::Op::kMatmul;
    if (*of.problems.op != harness::Op::kMatmul && *of.problems.op != harness::Op::kAttention)
      bad_input(fmt::format("--async goes with matmul and attention, got {}",
                            harness::name_of(*of.problems.op)));
    const harness::Draw draw = draw_of(common, of);
    if (flags.fuzz > 0)
      for (const uint64_t index : indices(common, of, draw))
        problems.push_back(harness::random_problem(draw, index));
    return check_async(common, problems, flags.seed);
  }
  const Devices devices(common);
  const Tally tally = flags.fuzz > 0 ? fuzz(command, common, devices, flags)
                                     : check_list(common, devices, problems);
  if (tally.checked == 0 && flags.part[1] == 1 && flags.seconds == 0 && !flags.plans_only)
    throw Error(
        PERSEID_UNSUPPORTED,
        fmt::format("nothing was checked: {}",
                    devices.absent().empty() ? "the GPU has no kernels for it" : devices.absent()));
  const int code = exit_code_of(tally, problems.size());
  std::vector<Entry> failures;
  nlohmann::json results = nlohmann::json::array();
  for (const Entry& entry : tally.kept) {
    results.push_back(to_json(entry));
    if (!entry.result.passed) failures.push_back(entry);
  }
  if (common.json) {
    nlohmann::json report = {{"checked", tally.checked},       {"failed", tally.failed},
                             {"refused", tally.refused},       {"not_for_gpu", tally.not_for_gpu},
                             {"gpu_absent", devices.absent()}, {"results", results}};
    if (flags.fuzz > 0) report["seed"] = flags.seed;
    print("{}\n", report.dump());
    return code;
  }
  print_report(command, common, flags, tally, failures, problems.size());
  if (!common.quiet && common.device == "auto" && !devices.absent().empty())
    print("{}\n", wrapped("no GPU was checked: " + devices.absent(), output_width()));
  return code;
}

}  // namespace

void add_check(CLI::App& app, const Common& common, Action& action) {
  CLI::App* command = app.add_subcommand(
      "check", "hold results to the float64 reference; without a problem, a short list");
  auto flags = std::make_shared<Flags>();
  add_problem_flags(*command, flags->problems, 15, kCheckExample);
  CLI::App* collective = command->add_subcommand(
      "collective", "operations over ranks, with random shapes, shards and delays by --seed");
  collective->add_option("-n,--ranks", flags->ranks, "how many ranks (2, then 3, then 5)")
      ->type_name("N");
  collective->add_flag("--canonical", flags->canonical,
                       "in canonical order, bit for bit as one rank, with 2, then 4, then 8 ranks");
  collective->footer("Example:\n  perseid check collective -n 3");
  collective->fallthrough()->callback([flags] { flags->collective = true; });
  command->add_option("--fuzz", flags->fuzz, "check this many random problems, valid and not")
      ->check(not_negative());
  command->add_option("--seed", flags->seed, "which random problems")
      ->check(not_negative())
      ->capture_default_str();
  command
      ->add_option("--seconds", flags->seconds,
                   "with --fuzz: begin none after so long (0: no limit)")
      ->check(not_negative());
  command->add_flag("--plans-only", flags->plans_only,
                    "with --fuzz: make the plans alone, whose kernels are then in the cache");
  command->add_flag("--async", flags->async,
                    "matmul and attention: operands arrive in chunks, in random orders by --seed, "
                    "which results do not depend on");
  command->add_flag("--verbose", flags->verbose,
                    "a row for each result, where a line for each operation would do");
  command->add_option("--part", flags->part, "I,N: the I-th of N parts of the random problems")
      ->delimiter(',')
      ->expected(2);
  command->footer(
      fmt::format("Example:\n  perseid check --fuzz 1000 --seed 1\n  {}", kCheckExample));
  command->fallthrough()->callback([&action, &common, flags, command] {
    action = [&common, flags, command] { return check(*command, common, with_seed(*flags)); };
  });
}

}  // namespace perseid::cli
