// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "usage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "common.hpp"
#include "help.hpp"
#include "sentences.hpp"

namespace perseid::cli {
namespace {

std::vector<std::string> names_of_commands(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* each : commands_below(command)) names.push_back(each->get_name());
  return names;
}

std::string names_below(const CLI::App& command) {
  return fmt::format("{}", fmt::join(names_of_commands(command), ", "));
}

std::string with_hint(const std::string& sentence, const CLI::App& command) {
  return fmt::format("{} ({} --help lists its flags)", sentence, full_name(command));
}

// The word that nothing takes; "" where there is none. Behind a word that is no command no flag is
// known; behind a flag that is none its value is a stray word, too.
std::string stray_word(const CLI::App& app, bool expects_command) {
  const std::vector<std::string> words = app.remaining(true);
  if (!words.empty() && expects_command) return words.front();
  const auto flag = std::find_if(words.begin(), words.end(),
                                 [](const std::string& word) { return word.starts_with('-'); });
  return flag != words.end() ? *flag : words.empty() ? "" : words.front();
}

// "Could not convert: --dim = x", the parser's words for a value that is not of the flag's type.
std::string conversion(const CLI::App& command, std::string text) {
  const size_t colon = text.find(": "), equals = text.find(" = ");
  if (colon == std::string::npos || equals == std::string::npos) return text;
  const std::string flag = text.substr(colon + 2, equals - colon - 2);
  const CLI::Option* option = find_flag(command, flag);
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

// "; did you mean 'softmax'?" of a name that is near, else "".
std::string question(std::string_view word, const std::vector<std::string>& names) {
  const std::string name = nearest(word, names);
  return name.empty() ? "" : fmt::format("; did you mean '{}'?", name);
}

// With those of the commands above.
std::vector<std::string> names_of_flags(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* at = &command; at != nullptr; at = at->get_parent())
    for (const CLI::Option* flag : at->get_options()) names.push_back(name_of(*flag));
  return names;
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

std::string no_command(const CLI::App& command, const std::string& word) {
  const std::string name = full_name(command), below = names_below(command);
  if (below.empty()) return with_hint(fmt::format("there is no '{}' in {}", word, name), command);
  return with_hint(fmt::format("there is no '{}' in {}; there are {}{}", word, name, below,
                               question(word, names_of_commands(command))),
                   command);
}

std::string usage_sentence(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = innermost(app);
  const std::string name = full_name(command), below = names_below(command),
                    word = stray_word(app, !below.empty());
  std::string sentence = error.what();
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    sentence = conversion(command, sentence);
  } else if (word.starts_with('-')) {
    const std::string flag = word.substr(0, word.find('='));
    sentence =
        fmt::format("{} has no flag '{}'{}", name, flag, question(flag, names_of_flags(command)));
  } else if (!word.empty() && !below.empty()) {
    return no_command(command, word);
  } else if (!word.empty()) {
    sentence = fmt::format("{} does not expect '{}'; values follow their flags", name, word);
  } else if (!below.empty() && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    sentence = fmt::format("{} needs one of {}", name, below);
  }
  return with_hint(sentence, command);
}

}  // namespace perseid::cli
