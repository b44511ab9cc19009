// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

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

// `assume`: "", or the kind of GPU that plans are made for in place of the device.
int explain(const Common& common, const ProblemFlags& flags, const std::string& assume) {
  if (!assume.empty() && common.device != "auto")
    bad_input(
        fmt::format("--assume {} is in place of --device, got --device {}", assume, common.device));
  const std::vector<harness::Problem> problems = problems_of(flags, common, "");
  nlohmann::json all = nlohmann::json::array();
  for (const harness::Problem& problem : problems) {
    const Context context =
        assume.empty() ? open_context(common, problem.threads) : Context::assumed(assume.c_str());
    harness::PlanHandle plan;
    const harness::Outcome outcome = harness::make_plan(context, problem, plan);
    if (!outcome.ok()) throw Error(outcome.status, outcome.sentence);
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
                   "for a GPU of this compute capability, though there be none: sm_80, sm_86, "
                   "sm_89, sm_90, sm_100, sm_120")
      ->type_name("ARCH");
  auto ranks = std::make_shared<ExplainedRanks>();
  const std::vector<CLI::App*> over_ranks = add_explained_ranks(*command, *ranks);
  command->footer(fmt::format("Example:\n  {}", kExplainExample));
  command->fallthrough()->callback([&action, &common, flags, assume, ranks, over_ranks] {
    action = [&common, flags, assume, ranks, over_ranks] {
      const bool chosen = std::any_of(over_ranks.begin(), over_ranks.end(),
                                      [](const CLI::App* each) { return each->count() > 0; });
      if (!chosen) return explain(common, *flags, *assume);
      if (!assume->empty()) bad_input("--assume goes with operations of one rank");
      const std::string text = explain_ranks(common, *ranks);
      print("{}", common.json ? text + "\n" : fitted(text, output_width()));
      return int{kOk};
    };
  });
}

}  // namespace perseid::cli
