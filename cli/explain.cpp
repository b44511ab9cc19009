// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "commands.hpp"
#include "explain_ranks.hpp"
#include "harness/launch.hpp"
#include "problem_flags.hpp"
#include "streams.hpp"
#include "table.hpp"

namespace perseid::cli {
namespace {

constexpr const char* kExplainExample =
    "perseid explain attention --batch 4 --heads 32 --kv-heads 8 --q-len 4096 --kv-len 4096 "
    "--head-dim 128 --causal bottom-right --backward --dtype bf16";

// As wide as the terminal. Of an implementation the reason goes on below itself.
std::string fitted(const std::string& text, size_t width) {
  std::istringstream lines(text);
  std::string result;
  for (std::string line; std::getline(lines, line);) {
    size_t indent = 2;
    if (line.starts_with("  ")) {
      for (const char* verdict : {" refused   ", " chosen    ", " not tried "})
        if (const size_t at = line.find(verdict); at < width / 3) indent = at + 11;
    }
    result += hanging(line, width, indent) + "\n";
  }
  return result;
}

// A plan knows no lengths, but the problem has them. An execution with these would be refused.
void check_lengths(const harness::Problem& problem) {
  const auto check = [](const char* flag, const harness::Shape& numbers, int64_t most,
                        const char* of) {
    for (const int64_t number : numbers)
      if (number < 0 || number > most)
        bad_input(fmt::format("{} has {}, expected 0 to {}, {}", flag, number, most, of));
  };
  if (problem.op != harness::Op::kAttention) return;
  if (problem.kv_batch != 0 && problem.batch > 0 && problem.kv_index.empty())
    bad_input(
        "--kv-batch is given without --kv-index, the entry that each sequence reads; give both");
  for (const auto& [flag, most, length] :
       {std::tuple{"--max-q-len", problem.max_q_len, problem.longest_q()},
        std::tuple{"--max-kv-len", problem.max_kv_len, problem.longest_kv()}})
    if (most != 0 && most < length)
      bad_input(fmt::format("{} is {}, expected at least {}, the longest of the problem", flag,
                            most, length));
  check("--q-lens", problem.q_lens, problem.longest_q(), "the most queries of a sequence");
  check("--kv-lens", problem.kv_lens, problem.longest_kv(), "the most keys of a sequence");
  check("--kv-index", problem.kv_index, problem.kv_batch - 1, "the entries of key and value");
  check("--kv-starts", problem.kv_starts, problem.rows_kv(), "the packed keys");
  if (!harness::lengths_fit(problem))
    bad_input("cumulative lengths begin with 0, never fall and end within the packed rows");
}

// `assume`: "", or the kind of GPU that plans are made for in place of the device.
int explain(const Common& common, const ProblemFlags& flags, const std::string& assume) {
  const std::vector<harness::Problem> problems = problems_of(flags, common, "");
  nlohmann::json all = nlohmann::json::array();
  for (const harness::Problem& problem : problems) {
    const Context context =
        assume.empty() ? open_context(common, problem.threads) : Context::assumed(assume.c_str());
    harness::PlanHandle plan;
    const harness::Outcome outcome = harness::make_plan(context, problem, plan);
    if (!outcome.ok()) throw Error(outcome.status, outcome.sentence);
    check_lengths(problem);
    if (plan == nullptr) continue;  // a dropout mask in a file of problems
    const std::string text = explanation_of(common, plan.get());
    if (common.json) {
      all.push_back(nlohmann::json::parse(text));
    } else {
      print("{}{}", fitted(text, output_width()), problems.size() > 1 ? "\n" : "");
    }
  }
  if (common.json) print("{}\n", all.size() == 1 ? all[0].dump() : all.dump());
  return kOk;
}

}  // namespace

void add_explain(CLI::App& app, const Common& common, Action& action) {
  CLI::App* command =
      app.add_subcommand("explain", "every implementation in order, chosen or refused, and why");
  auto flags = std::make_shared<ProblemFlags>();
  using harness::Op;
  add_problem_flags(*command, *flags,
                    static_cast<uint32_t>(Op::kSoftmax) | static_cast<uint32_t>(Op::kAttention) |
                        static_cast<uint32_t>(Op::kMatmul),
                    kExplainExample);
  auto assume = std::make_shared<std::string>();
  command
      ->add_option("--assume", *assume,
                   "for a GPU of this compute capability, from 8.0 on, though there be none: such "
                   "as sm_80, sm_90 or sm_120; over ranks for one such GPU each")
      ->type_name("ARCH")
      ->check([](const std::string& text) {
        return text.empty() ? std::string("expected a name such as sm_80, got ''") : "";
      });
  auto ranks = std::make_shared<ExplainedRanks>();
  const std::vector<CLI::App*> over_ranks = add_explained_ranks(*command, *ranks);
  command->footer(fmt::format("Example:\n  {}", kExplainExample));
  command->fallthrough()->callback([&action, &common, flags, assume, ranks, over_ranks] {
    action = [&common, flags, assume, ranks, over_ranks] {
      const bool chosen = std::any_of(over_ranks.begin(), over_ranks.end(),
                                      [](const CLI::App* each) { return each->count() > 0; });
      if (!assume->empty() && common.device != "auto")
        bad_input(fmt::format("--assume {} is in place of --device, got --device {}", *assume,
                              common.device));
      if (!chosen) return explain(common, *flags, *assume);
      ranks->assume = *assume;
      const std::string text = explain_ranks(common, *ranks);
      print("{}", common.json ? text + "\n" : fitted(text, output_width()));
      return int{kOk};
    };
  });
}

}  // namespace perseid::cli
