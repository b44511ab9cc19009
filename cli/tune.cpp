// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "matmul_calls.hpp"
#include "problem_flags.hpp"
#include "streams.hpp"
#include "table.hpp"

namespace perseid::cli {
namespace {

constexpr const char* kTuneExample =
    "perseid tune matmul --m 4096 --n 4096 --k 4096 --dtype bf16 --transpose-b";

// Opens the GPU; the CPU where there is none, or where --device says so.
Context open_device(const Common& common) {
  std::string absent;
  std::optional<Context> gpu = open_gpu(common, &absent);
  return gpu ? std::move(*gpu) : open_context(common, common.threads);
}

std::string report(const harness::Problem& problem, const nlohmann::json& plan) {
  const std::string title =
      fmt::format("matmul {} {}: {}", harness::name_of(problem.type()), harness::summary(problem),
                  plan["implementation"].get<std::string>());
  if (!plan.contains("measured"))
    return fmt::format("{} has one configuration: nothing to tune\n", title);
  const double work = plan["forward"]["flops"].get<double>();
  Table table({{"configuration"}, {"time", Align::kRight}, {"rate", Align::kRight}, {""}});
  bool first = true;
  for (const auto& each : plan["measured"]) {
    const double seconds = each["seconds"].get<double>();
    const std::string built_in = first ? "built-in" : "";
    const std::string kept = each["kept"].get<bool>() ? "kept" : "";
    table.add({each["configuration"].get<std::string>(), duration(seconds),
               fmt::format("{:.4g} TFLOP/s", work / seconds / 1e12),
               built_in + (first && !kept.empty() ? ", " : "") + kept});
    first = false;
  }
  return title + "\n" + table.text(output_width());
}

int tune(const Common& common, const ProblemFlags& flags) {
  std::vector<harness::Problem> problems = problems_of(flags, common, "gpu_figures");
  const Context context = open_device(common);
  Progress progress(common, "tune");
  nlohmann::json all = nlohmann::json::array();
  int64_t done = 0;
  for (const harness::Problem& problem : problems) {
    progress.update(done++, static_cast<int64_t>(problems.size()), harness::summary(problem));
    const harness::Operands operands(problem, false);
    harness::Placement placement(context);
    const Matmul matmul =
        Matmul::tuned(context, options_of(problem), arguments_of(problem, operands, placement));
    const auto plan = nlohmann::json::parse(matmul.explain_json());
    if (common.json) {
      all.push_back(plan);
    } else if (!common.quiet) {
      print("{}{}", all.empty() && done > 1 ? "\n" : "", report(problem, plan));
    }
  }
  if (common.json) print("{}\n", all.size() == 1 ? all[0].dump() : all.dump());
  return kOk;
}

}  // namespace

void add_tune(CLI::App& app, const Common& common, Action& action) {
  CLI::App* command = app.add_subcommand(
      "tune", "measure the configurations of a GPU's kernels, and keep the fastest");
  auto flags = std::make_shared<ProblemFlags>();
  add_problem_flags(*command, *flags, static_cast<uint32_t>(harness::Op::kMatmul), kTuneExample);
  command->footer(fmt::format("Example:\n  {}", kTuneExample));
  command->require_subcommand(1);
  command->fallthrough()->callback(
      [&action, &common, flags] { action = [&common, flags] { return tune(common, *flags); }; });
}

}  // namespace perseid::cli
