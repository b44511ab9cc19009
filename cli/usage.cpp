// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "usage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "common.hpp"

namespace perseid::cli {
namespace {

// The command whose flags were being read: `app` or one below it.
const CLI::App& innermost(const CLI::App& app) {
  const std::vector<CLI::App*> called = app.get_subcommands();
  return called.empty() ? app : innermost(*called.front());
}

std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return (parent == nullptr ? "" : full_name(*parent) + " ") + command.get_name();
}

std::string names_below(const CLI::App& command) {
  std::string names;
  for (const CLI::App* each : command.get_subcommands([](const CLI::App*) { return true; }))
    names += (names.empty() ? "" : ", ") + each->get_name();
  return names;
}

// The word that nothing takes, a flag if there is one; "" where there is none.
std::string stray_word(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining(true);
  const auto flag = std::find_if(words.begin(), words.end(),
                                 [](const std::string& word) { return word.starts_with('-'); });
  return flag != words.end() ? *flag : words.empty() ? "" : words.front();
}

// "Could not convert: --dim = x", the parser's words for a value that is not of the flag's type.
std::string conversion(const CLI::App& command, std::string text) {
  const size_t colon = text.find(": "), equals = text.find(" = ");
  if (colon == std::string::npos || equals == std::string::npos) return text;
  const std::string flag = text.substr(colon + 2, equals - colon - 2);
  const CLI::Option* option = nullptr;
  for (const CLI::App* at = &command; at != nullptr && option == nullptr; at = at->get_parent())
    option = at->get_option_no_throw(flag);
  const bool whole = option != nullptr && option->get_type_name() != "FLOAT";
  return fmt::format("{}: expected a {}, got '{}'", flag,
                     whole ? "whole number that fits" : "number", text.substr(equals + 3));
}

bool overflows(const std::string& type, const std::string& text) {
  errno = 0;
  if (type == "INT")
    std::strtoll(text.c_str(), nullptr, 0);
  else if (type == "UINT")
    std::strtoull(text.c_str(), nullptr, 0);
  return errno == ERANGE;
}

}  // namespace

const CLI::Validator& not_negative() {
  static const CLI::Validator validator(
      [](std::string& text) {
        return text.starts_with('-') ? fmt::format("expected a number from 0 on, got {}", text)
                                     : std::string();
      },
      "");
  return validator;
}

void refuse_overflow(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& text : option->results()) {
      if (overflows(option->get_type_name(), text))
        bad_input(
            fmt::format("{}: expected a whole number that fits, got '{}' ({} --help lists its "
                        "flags)",
                        option->get_name(), text, full_name(app)));
    }
  }
  for (const CLI::App* command : app.get_subcommands()) refuse_overflow(*command);
}

std::string usage_sentence(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = innermost(app);
  const std::string name = full_name(command), below = names_below(command), word = stray_word(app);
  std::string sentence = error.what();
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    sentence = conversion(command, sentence);
  } else if (word.starts_with('-')) {
    sentence = fmt::format("{} has no flag '{}'", name, word);
  } else if (!word.empty() && !below.empty()) {
    sentence = fmt::format("there is no '{}' in {}; there are {}", word, name, below);
  } else if (!word.empty()) {
    sentence = fmt::format("{} does not expect '{}'; values follow their flags", name, word);
  } else if (!below.empty() && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    sentence = fmt::format("{} needs one of {}", name, below);
  }
  return fmt::format("{} ({} --help lists its flags)", sentence, name);
}

}  // namespace perseid::cli
