// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "problem_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "help.hpp"

namespace perseid::cli {
namespace {

using harness::Op;

// Flags of the whole program, which every operation has.
constexpr const char* kCommon[] = {"dtype", "impl", "threads"};

bool is_common(const std::string& name) {
  return std::find(std::begin(kCommon), std::end(kCommon), name) != std::end(kCommon);
}

// As set_field(), whose sentences name the field as a file of problems does.
void set_flag(harness::Problem& problem, const std::string& name, const std::string& text) {
  try {
    harness::set_field(problem, name, text);
  } catch (const Error& error) {
    const bool named = std::string_view(error.what()).starts_with(name + ": ");
    throw Error(error.status(), (named ? "--" : "") + std::string(error.what()));
  }
}

// Flags of an example, where that of the command is of another operation.
const char* example_of(Op op) {
  switch (op) {
    case Op::kSoftmax:
      return "--shape 512,4096 --dim -1";
    case Op::kMatmul:
      return "--m 2048 --n 2048 --k 2048 --dtype bf16";
    case Op::kDropoutMask:
      return "--batch 2 --heads 4 --q-len 64 --kv-len 64 --dropout 0.1";
    case Op::kAttention:
      break;
  }
  return "--heads 8 --q-len 2048 --kv-len 2048 --head-dim 128 --causal bottom-right";
}

}  // namespace

void add_fields(CLI::App& app, ProblemFlags& flags, Op op) {
  for (const harness::Field& field : harness::fields()) {
    if (!field.reads(op) || is_common(field.name)) continue;
    const std::string name = field.name;
    CLI::Option* flag = nullptr;
    if (field.kind == harness::FieldKind::kFlag) {
      flag = app.add_flag_callback(
          "--" + name, [&flags, name] { flags.given.emplace_back(name, "true"); }, field.help);
    } else {
      flag = app.add_option_function<std::string>(
          "--" + name,
          [&flags, name](const std::string& text) { flags.given.emplace_back(name, text); },
          field.help);
      flag->type_name(field.type);
    }
    if (field.for_tests) flag->group(kTestFlags);
  }
  app.callback([&flags, op] { flags.op = op; });
}

void add_problem_flags(CLI::App& command, ProblemFlags& flags, uint32_t ops, const char* example) {
  command.add_option("--problems", flags.file, "file of problems, one JSON object a line")
      ->type_name(kFile);
  for (Op op : {Op::kSoftmax, Op::kAttention, Op::kMatmul, Op::kDropoutMask}) {
    if ((ops & static_cast<uint32_t>(op)) == 0) continue;
    CLI::App* app = command.add_subcommand(harness::name_of(op), "a problem of this operation");
    app->fallthrough();
    const std::string call =
        fmt::format("perseid {} {} ", command.get_name(), harness::name_of(op));
    const bool own = std::string_view(example).starts_with(call);
    app->footer(fmt::format("Example:\n  {}", own ? example : call + example_of(op)));
    add_fields(*app, flags, op);
  }
  command.require_subcommand(0, 1);
}

std::set<Op> operations_with(const std::string& impl) {
  const Context context = open_cpu(1);
  std::set<Op> found;
  const auto add_if_all = [&](Op op, const Plan& plan) {
    std::set<std::string> names;
    const nlohmann::json explained = nlohmann::json::parse(plan.explain_json());
    for (const auto& each : explained.at("implementations"))
      names.insert(each.at("name").get<std::string>());
    std::istringstream wanted(impl);
    for (std::string name; std::getline(wanted, name, ',');)
      if (!names.contains(name)) return;
    found.insert(op);
  };
  add_if_all(Op::kSoftmax, Softmax(context, {.shape = {1}}));
  add_if_all(Op::kAttention, Attention(context, {.q_len = 1, .kv_len = 1, .head_dim = 1}));
  add_if_all(Op::kMatmul, Matmul(context, {.m = 1, .n = 1, .k = 1}));
  if (found.empty())
    bad_input(
        fmt::format("--impl is \"{}\", which no operation has; `perseid explain` with an "
                    "operation lists those that it has",
                    impl));
  return found;
}

std::vector<harness::Problem> problems_of(const ProblemFlags& flags, const Common& common,
                                          const std::string& built_in) {
  std::vector<harness::Problem> problems;
  if (!flags.file.empty()) {
    problems = harness::read_problems(flags.file);
  } else if (flags.op && !flags.given.empty()) {
    problems.emplace_back().op = *flags.op;
  } else {
    problems = harness::built_in_problems(built_in);
  }
  if (flags.op)
    std::erase_if(problems, [&](const harness::Problem& each) { return each.op != *flags.op; });
  if (!flags.op && !common.impl.empty()) {
    const std::set<Op> ops = operations_with(common.impl);
    std::erase_if(problems, [&](const harness::Problem& each) { return !ops.contains(each.op); });
  }
  if (problems.empty())
    bad_input(
        fmt::format("no problem to work on{}: name an operation with its flags, such as "
                    "matmul --m 64 --n 64 --k 64, or a file with --problems",
                    flags.file.empty() ? "" : " in " + flags.file));
  for (harness::Problem& problem : problems) {
    for (const auto& [name, text] : flags.given) set_flag(problem, name, text);
    if (problem.op != Op::kDropoutMask) {
      if (!common.dtype.empty()) set_flag(problem, "dtype", common.dtype);
      if (!common.impl.empty()) problem.impl = common.impl;
    }
    if (common.threads != 0) problem.threads = common.threads;
  }
  return problems;
}

}  // namespace perseid::cli
