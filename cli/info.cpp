// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "sentences.hpp"
#include "streams.hpp"
#include "table.hpp"

namespace perseid::cli {
namespace {

// Beyond any cache.
constexpr uint64_t kArrayBytes = uint64_t{256} << 20;
constexpr int32_t kMostGpus = 64;

// Goes on four characters further right.
void print_line(size_t indent, const std::string& text) {
  print("{}\n", hanging(std::string(indent, ' ') + text, output_width(), indent + 4));
}

void print_facts(const nlohmann::json& value, const std::string& name, int depth) {
  const std::string indent(static_cast<size_t>(2 * depth), ' ');
  if (value.is_object()) {
    if (!name.empty()) print("{}{}\n", indent, name);
    if (value.empty()) print("{}  none\n", indent);
    for (const auto& [key, member] : value.items()) print_facts(member, key, depth + !name.empty());
  } else if (value.is_array() && !value.empty() && value[0].is_object()) {
    print("{}{}\n", indent, name);
    for (const auto& member : value) {
      std::string line;
      for (const auto& [key, part] : member.items())
        line += fmt::format("{}{} {}", line.empty() ? "" : ", ", key,
                            part.is_string() ? part.get<std::string>() : part.dump());
      print_line(indent.size() + 2, line);
    }
  } else if (value.is_null()) {
    print_line(indent.size(), name + ": not set");
  } else {
    std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (value.is_array()) {
      text.clear();
      for (const auto& member : value)
        text += (text.empty() ? "" : ", ") +
                (member.is_string() ? member.get<std::string>() : member.dump());
    }
    print_line(indent.size(), fmt::format("{}: {}", name, text));
  }
}

// The GPUs of the machine, or why there is none.
void add_gpus(nlohmann::json& facts) {
  nlohmann::json gpus = nlohmann::json::array();
  for (int32_t index = 0; index < kMostGpus; ++index) {
    try {
      gpus.push_back(nlohmann::json::parse(Context::cuda(index).facts()).at("device"));
    } catch (const Error& error) {
      if (index == 0) facts["no_gpu"] = in_program_words(error.what());
      break;
    }
  }
  if (!gpus.empty()) facts["gpus"] = gpus;
}

int info(const Common& common) {
  const Context context = open_context(common, common.threads);
  nlohmann::json facts = nlohmann::json::parse(context.facts());
  if (common.device == "auto") add_gpus(facts);
  struct Named {
    const char* name;
    Ceiling ceiling;
    const char* unit;
  };
  constexpr Named kCeilings[] = {{"f32", Ceiling::kF32, "GFLOP/s"},
                                 {"bf16", Ceiling::kBF16, "GFLOP/s"},
                                 {"f64", Ceiling::kF64, "GFLOP/s"},
                                 {"copy", Ceiling::kCopy, "GB/s"},
                                 {"read", Ceiling::kRead, "GB/s"}};
  nlohmann::json measured;
  {
    Progress progress(common, "measuring ceilings");
    for (const Named& each : kCeilings) {
      try {
        measured[each.name] = context.ceiling(each.ceiling, kArrayBytes);
      } catch (const Error& error) {
        if (error.status() != PERSEID_UNSUPPORTED) throw;  // a GPU has not all of them
      }
    }
  }
  if (common.json) {
    facts["ceilings"] = measured;
    print("{}\n", facts.dump());
    return kOk;
  }
  print_facts(facts, "", 0);
  print("ceilings\n");
  for (const Named& each : kCeilings) {
    if (measured.contains(each.name))
      print("  {}: {:.1f} {}\n", each.name, measured[each.name].get<double>() / 1e9, each.unit);
  }
  return kOk;
}

}  // namespace

void add_info(CLI::App& app, const Common& common, Action& action) {
  CLI::App* command = app.add_subcommand(
      "info", "devices, instruction sets, ceilings, caches, versions, environment");
  command->footer("Example:\n  perseid info --json");
  command->fallthrough()->callback(
      [&action, &common] { action = [&common] { return info(common); }; });
}

}  // namespace perseid::cli
