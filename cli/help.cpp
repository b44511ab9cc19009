// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "help.hpp"

#include <fmt/format.h>

#include <memory>

#include "commands.hpp"
#include "streams.hpp"
#include "table.hpp"
#include "usage.hpp"

namespace perseid::cli {
namespace {

constexpr size_t kNameColumns = 30;

class Layout : public CLI::Formatter {
 public:
  Layout() { column_width(kNameColumns); }

  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    // Within --help-all the help of each command is of mode Sub.
    if (mode != CLI::AppFormatMode::Sub) everything_ = mode == CLI::AppFormatMode::All;
    std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
    for (size_t at = 0; (at = text.find("\n\n\n", at)) != std::string::npos;) text.erase(at, 1);
    return text;
  }
  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> flags) const override {
    if (group == kTestFlags && !everything_) return "";
    return CLI::Formatter::make_group(std::move(group), is_positional, std::move(flags));
  }
  std::string make_option_desc(const CLI::Option* flag) const override {
    return described(flag->get_description());
  }
  std::string make_subcommand(const CLI::App* command) const override {
    std::ostringstream text;
    CLI::detail::format_help(text, command->get_display_name(true),
                             described(command->get_description()), kNameColumns);
    return text.str();
  }
  // Sentences, then what is below "Example:": commands.
  std::string make_footer(const CLI::App* app) const override {
    std::istringstream footer(app->get_footer());
    std::string text;
    bool commands = false;
    for (std::string line; std::getline(footer, line);) {
      text += (commands ? wrapped_command(line, width_) : wrapped(line, width_)) + "\n";
      commands = commands || line == "Example:";
    }
    return text;
  }

 private:
  // On the line of the names. What --help-all shows is indented by four characters at most.
  std::string described(const std::string& text) const {
    const size_t taken = kNameColumns + (everything_ ? 4 : 0);
    return wrapped(text, width_ > taken + kLeastText ? width_ - taken : kLeastText);
  }

  static constexpr size_t kLeastText = 20;
  size_t width_ = output_width();
  mutable bool everything_ = false;
};

}  // namespace

void set_help(CLI::App& app) {
  app.set_help_flag("-h,--help", "this text");
  app.set_help_all_flag("--help-all", "also the flags of the commands below, and those for tests");
  app.formatter(std::make_shared<Layout>());
}

void add_help(CLI::App& app, Action& action) {
  CLI::App* help =
      app.add_subcommand("help", "print the help of the program, or of a command, as --help does");
  auto words = std::make_shared<std::vector<std::string>>();
  help->add_option("COMMAND", *words, "such as: run softmax")->type_name("");
  help->footer("Example:\n  perseid help run softmax");
  help->fallthrough()->callback([&app, &action, words] {
    action = [&app, words] {
      const CLI::App* command = &app;
      for (const std::string& word : *words) {
        const auto below = commands_below(*command);
        const auto named = std::find_if(below.begin(), below.end(), [&](const CLI::App* each) {
          return each->get_name() == word;
        });
        if (named == below.end()) bad_input(no_command(*command, word));
        command = *named;
      }
      write_out(command->get_formatter()->make_help(command, full_name(*command),
                                                    CLI::AppFormatMode::Normal));
      return kOk;
    };
  });
}

std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return (parent == nullptr ? "" : full_name(*parent) + " ") + command.get_name();
}

const CLI::App& innermost(const CLI::App& app) {
  const std::vector<CLI::App*> called = app.get_subcommands();
  return called.empty() ? app : innermost(*called.front());
}

std::vector<const CLI::App*> commands_below(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<const CLI::Option*> flags_of(const CLI::App& command) {
  return command.get_options([](const CLI::Option* flag) {
    return flag->nonpositional() && flag->get_group() != kTestFlags;
  });
}

const CLI::Option* find_flag(const CLI::App& command, const std::string& name) {
  for (const CLI::App* at = &command; at != nullptr; at = at->get_parent())
    if (const CLI::Option* flag = at->get_option_no_throw(name)) return flag;
  return nullptr;
}

std::string name_of(const CLI::Option& flag) {
  return flag.get_lnames().empty() ? "-" + flag.get_snames().front()
                                   : "--" + flag.get_lnames().front();
}

bool takes_value(const CLI::Option& flag) { return flag.get_type_size() != 0; }

std::vector<std::string> choices_of(const CLI::Option& flag) {
  const std::string type = flag.get_type_name();
  std::vector<std::string> choices;
  if (type.find('|') == std::string::npos) return choices;
  for (size_t begin = 0; begin <= type.size();) {
    const size_t end = std::min(type.find('|', begin), type.size());
    choices.push_back(type.substr(begin, end - begin));
    begin = end + 1;
  }
  return choices;
}

}  // namespace perseid::cli
