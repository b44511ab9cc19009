// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Manual pages, written from the parser's own tables: one of the program, one of each command.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>

#include "commands.hpp"
#include "help.hpp"
#include "streams.hpp"
#include "table.hpp"

namespace perseid::cli {
namespace {

constexpr size_t kExampleColumns = 72;  // a page indents its text, on a terminal of 80 columns

struct Variable {
  const char* name;
  const char* effect;
};
constexpr Variable kVariables[] = {
    {"PERSEID_CPU_ISA", "the kernels of the CPU: avx512bf16, avx512, avx2, neon or scalar"},
    {"PERSEID_NUM_THREADS", "threads of the CPU pool, where --threads does not say"},
    {"PERSEID_FORCE_IMPL", "the implementation of every plan, by its name in perseid-explain(1)"},
    {"PERSEID_DISABLE_IMPL", "names of implementations, divided by commas, that no plan uses"},
    {"PERSEID_DETERMINISTIC",
     "1: attention's backward is bitwise repeatable in every plan; warn: plans whose backward is "
     "not are logged"},
    {"PERSEID_VERBOSE", "1: plans on stderr; 2: every execution with its time, too"},
    {"PERSEID_TRACE",
     "a file for a trace of plans and executions, read by chrome://tracing and "
     "Perfetto; %p in its name is the number of the process"},
    {"NVTX_INJECTION64_PATH", "set by profilers: plans and executions are NVTX ranges"},
    {"PERSEID_DISABLE_CUDA", "1: as on a machine without a GPU"},
    {"PERSEID_CACHE_DIR", "the folder of compiled GPU kernels"},
    {"PERSEID_NVRTC", "the library that compiles GPU kernels"},
    {"PERSEID_TUNE", "0: the built-in choices, not what `perseid tune` has kept"},
    {"PERSEID_PACK", "the file of GPU kernels that were compiled with the library"},
    {"NO_COLOR", "no colours, where it is not empty"}};

// As troff reads it: dashes are dashes, and no line begins with a request.
std::string escaped(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool begins = i == 0 || text[i - 1] == '\n';
    if (begins && (text[i] == '.' || text[i] == '\'')) result += "\\&";
    if (text[i] == '\\') {
      result += "\\e";
    } else if (text[i] == '-') {
      result += "\\-";
    } else {
      result += text[i];
    }
  }
  return result;
}

std::string entry(const std::string& term, const std::string& text) {
  return fmt::format(".TP\n.B {}\n{}\n", escaped(term), escaped(text));
}

std::string entry(const CLI::Option& flag) {
  std::string term = flag.get_name(false, true);
  if (takes_value(flag)) term += " " + flag.get_type_name();
  std::string text = flag.get_description();
  if (!flag.get_default_str().empty()) text += fmt::format(" (default {})", flag.get_default_str());
  if (flag.get_required()) text += " (required)";
  return entry(term, text);
}

// The flags, under a heading for each group.
std::string flags_text(const CLI::App& command, const char* macro) {
  std::string text;
  for (const std::string& group : command.get_groups()) {
    std::string entries;
    for (const CLI::Option* flag : flags_of(command))
      if (flag->get_group() == group) entries += entry(*flag);
    if (entries.empty()) continue;
    text += fmt::format("{} {}\n{}", macro, group == "Common" ? "COMMON FLAGS" : "FLAGS", entries);
  }
  return text;
}

// What the footer of the help says before the example, and the example.
std::string notes_of(const CLI::App& command) {
  const std::string footer = command.get_footer();
  std::string notes = escaped(footer.substr(0, std::min(footer.find("Example:"), footer.size())));
  for (size_t at = 0; (at = notes.find('\n', at)) != std::string::npos; at += 5)
    notes.replace(at, 1, "\n.br\n");
  return notes;
}
std::string examples_of(const CLI::App& command) {
  const std::string footer = command.get_footer();
  const size_t at = footer.find("Example:\n");
  if (at == std::string::npos) return "";
  std::istringstream commands(footer.substr(at + 9));
  std::string text;
  for (std::string line; std::getline(commands, line);)
    text += escaped(wrapped_command(line, kExampleColumns)) + "\n";
  return fmt::format(".PP\n.nf\n{}.fi\n", text);
}

std::string page_name(const CLI::App& command) {
  std::string name = full_name(command);
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string page(const CLI::App& command) {
  const bool program = command.get_parent() == nullptr;
  const std::string name = page_name(command), path = full_name(command);
  std::string title = name, description = command.get_description();
  std::transform(title.begin(), title.end(), title.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  std::string text = fmt::format(
      ".\\\" Written by `{}`.\n.TH {} 1 \"\" \"Perseid {}\" \"Perseid\"\n.SH NAME\n{} \\- {}\n",
      program ? "perseid man" : "perseid man " + command.get_name(), escaped(title), version(),
      escaped(name), escaped(description));
  const std::vector<const CLI::App*> below = commands_below(command);
  const char* operand = below.empty()                               ? ""
                        : program                                   ? " COMMAND"
                        : command.get_require_subcommand_min() == 0 ? " [OPERATION [PROBLEM]]"
                                                                    : " OPERATION";
  text += fmt::format(".SH SYNOPSIS\n.B {}\n[FLAGS]{}\n", escaped(path), operand);
  if (const std::string notes = notes_of(command); !notes.empty())
    text += ".SH DESCRIPTION\n" + notes;
  if (program) {
    text += ".SH COMMANDS\n";
    for (const CLI::App* each : below)
      text += entry(fmt::format("{}(1)", page_name(*each)), each->get_description());
  }
  text += flags_text(command, ".SH");
  if (!program) {
    for (const CLI::App* each : below)
      text += fmt::format(".SH {}\n{}\n{}{}", escaped(full_name(*each)),
                          escaped(each->get_description()), flags_text(*each, ".SS"),
                          examples_of(*each));
  }
  if (program) {
    text += ".SH ENVIRONMENT\n";
    for (const Variable& variable : kVariables) text += entry(variable.name, variable.effect);
  }
  text += ".SH EXAMPLE\n" + examples_of(command);
  text += program ? "" : ".SH SEE ALSO\n.BR perseid (1),\nfor the common flags and exit codes\n";
  return text;
}

}  // namespace

void add_man(CLI::App& app, Action& action) {
  CLI::App* man =
      app.add_subcommand("man", "print the manual page of the program, or of a command");
  man->footer("Example:\n  perseid man run | man -l -");
  man->fallthrough()->require_subcommand(0, 1);
  const auto print_page = [&action](const CLI::App& command) {
    action = [&command] {
      write_out(page(command));
      return kOk;
    };
  };
  man->callback([print_page, &app, man] {
    if (man->get_subcommands().empty()) print_page(app);
  });
  for (const CLI::App* command : commands_below(app)) {
    CLI::App* below = man->add_subcommand(
        command->get_name(), fmt::format("the page of perseid {}", command->get_name()));
    below->footer(fmt::format("Example:\n  perseid man {} | man -l -", command->get_name()));
    below->callback([print_page, command] { print_page(*command); });
  }
}

}  // namespace perseid::cli
