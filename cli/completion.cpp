// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Completion for shells, written from the parser's own tables. A script follows the words of the
// line to a command ("perseid run softmax"), then offers what may come there: the value of the flag
// before it, commands, or flags.
#include <fmt/format.h>

#include <functional>
#include <map>
#include <set>

#include "commands.hpp"
#include "help.hpp"
#include "streams.hpp"

namespace perseid::cli {
namespace {

using Names = std::vector<std::string>;

// Without a blank at either end, so that a list of patterns is "'a' | 'b'".
std::string joined(const Names& names, std::string_view between) {
  return fmt::format("{}", fmt::join(names, between));
}

// For every shell that has single quotes.
std::string quoted(std::string text) {
  for (size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += 4)
    text.replace(at, 1, "'\\''");
  return "'" + text + "'";
}

// A command and those below it, outermost first.
void walk(const CLI::App& command, const std::function<void(const CLI::App&)>& visit) {
  visit(command);
  for (const CLI::App* below : commands_below(command)) walk(*below, visit);
}

// Its own flags and those of the commands above, which it reads too; of a name the innermost.
std::vector<const CLI::Option*> readable_flags(const CLI::App& command) {
  std::vector<const CLI::Option*> flags;
  std::set<std::string> seen;
  for (const CLI::App* at = &command; at != nullptr; at = at->get_parent())
    for (const CLI::Option* flag : flags_of(*at))
      if (seen.insert(name_of(*flag)).second) flags.push_back(flag);
  return flags;
}

// The paths of all commands but the program itself, quoted.
Names paths_below(const CLI::App& program) {
  Names paths;
  walk(program, [&](const CLI::App& command) {
    if (&command != &program) paths.push_back(quoted(full_name(command)));
  });
  return paths;
}

// "path --flag" of every flag with a value, quoted, under what completes it: its choices, kFile, or
// "" where nothing does.
std::map<std::string, Names> values(const CLI::App& program) {
  std::map<std::string, Names> patterns;
  walk(program, [&](const CLI::App& command) {
    for (const CLI::Option* flag : readable_flags(command)) {
      if (!takes_value(*flag)) continue;
      const bool file = flag->get_type_name() == kFile;
      patterns[file ? kFile : joined(choices_of(*flag), " ")].push_back(
          quoted(full_name(command) + " " + name_of(*flag)));
    }
  });
  return patterns;
}

std::string bash_script(const CLI::App& program) {
  std::string text = fmt::format(R"(# Completion of perseid for bash, by `perseid completion bash`.
_perseid() {{
  local where=perseid word=${{COMP_WORDS[COMP_CWORD]}} flag=${{COMP_WORDS[COMP_CWORD - 1]}} i
  local commands='' flags=''
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$where ${{COMP_WORDS[i]}}" in
      {}) where="$where ${{COMP_WORDS[i]}}" ;;
    esac
  done
  # '--dtype=bf' is three words.
  if [[ $word == '=' ]]; then
    word=''
  elif [[ $flag == '=' ]]; then
    flag=${{COMP_WORDS[COMP_CWORD - 2]}}
  fi
  COMPREPLY=()
  case "$where $flag" in
)",
                                 joined(paths_below(program), " | "));
  for (const auto& [completions, patterns] : values(program)) {
    text += fmt::format("    {})\n", joined(patterns, " | "));
    if (completions == kFile)
      text +=
          "      compopt -o filenames 2>/dev/null\n"
          "      mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n";
    else if (!completions.empty())
      text += fmt::format("      mapfile -t COMPREPLY < <(compgen -W {} -- \"$word\")\n",
                          quoted(completions));
    text += "      return\n      ;;\n";
  }
  text += "  esac\n  case $where in\n";
  walk(program, [&](const CLI::App& command) {
    Names commands, flags;
    for (const CLI::App* below : commands_below(command)) commands.push_back(below->get_name());
    for (const CLI::Option* flag : readable_flags(command)) flags.push_back(name_of(*flag));
    text += fmt::format("    {})\n      commands={}\n      flags={}\n      ;;\n",
                        quoted(full_name(command)), quoted(joined(commands, " ")),
                        quoted(joined(flags, " ")));
  });
  return text + R"(  esac
  if [[ $word != -* && -n $commands ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$word")
  else
    mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$word")
  fi
}
complete -F _perseid perseid
)";
}

// "name:description", in which a colon of the name has a backslash.
std::string described(std::string name, const std::string& description) {
  for (size_t at = 0; (at = name.find(':', at)) != std::string::npos; at += 2)
    name.insert(at, "\\");
  return quoted(name + ":" + description);
}

std::string zsh_script(const CLI::App& program) {
  std::string text = fmt::format(R"(#compdef perseid
# Completion of perseid for zsh, by `perseid completion zsh`.
_perseid() {{
  local where=perseid word=${{words[CURRENT]}} flag=${{words[CURRENT-1]}} i
  local -a commands flags
  for ((i = 2; i < CURRENT; ++i)); do
    case "$where ${{words[i]}}" in
      ({}) where="$where ${{words[i]}}" ;;
    esac
  done
  if [[ $word == --*=* ]]; then
    flag=${{word%%=*}}
    compset -P '*='
  fi
  case "$where $flag" in
)",
                                 joined(paths_below(program), "|"));
  for (const auto& [completions, patterns] : values(program)) {
    const std::string offer = completions == kFile  ? "_files; "
                              : completions.empty() ? ""
                                                    : "compadd -- " + completions + "; ";
    text += fmt::format("    ({}) {}return ;;\n", joined(patterns, "|"), offer);
  }
  text += "  esac\n  case $where in\n";
  walk(program, [&](const CLI::App& command) {
    Names commands, flags;
    for (const CLI::App* below : commands_below(command))
      commands.push_back(described(below->get_name(), below->get_description()));
    for (const CLI::Option* flag : readable_flags(command))
      flags.push_back(described(name_of(*flag), flag->get_description()));
    text += fmt::format("    ({})\n      commands=({})\n      flags=({})\n      ;;\n",
                        quoted(full_name(command)), joined(commands, "\n        "),
                        joined(flags, "\n        "));
  });
  return text + R"(  esac
  if [[ $word != -* && ${#commands} -gt 0 ]]; then
    _describe command commands
  else
    _describe -o flag flags
  fi
}
if [[ ${funcstack[1]} == _perseid ]]; then
  _perseid "$@"
else
  compdef _perseid perseid
fi
)";
}

std::string fish_script(const CLI::App& program) {
  std::string text =
      fmt::format(R"fish(# Completion of perseid for fish, by `perseid completion fish`.
function __perseid_where
    set -l where perseid
    for word in (commandline -opc)[2..]
        switch "$where $word"
            case {}
                set where "$where $word"
        end
    end
    echo $where
end
function __perseid_at
    test (__perseid_where) = $argv[1]
end
function __perseid_below
    string match -q -- "$argv[1] *" (__perseid_where)" "
end
complete -c perseid -f
)fish",
                  joined(paths_below(program), " "));
  walk(program, [&](const CLI::App& command) {
    const std::string path = full_name(command);
    for (const CLI::App* below : commands_below(command))
      text += fmt::format("complete -c perseid -n \"__perseid_at '{}'\" -a {} -d {}\n", path,
                          below->get_name(), quoted(below->get_description()));
    for (const CLI::Option* flag : flags_of(command)) {
      if (flag->get_lnames().empty()) continue;
      const std::string choices = joined(choices_of(*flag), " ");
      const std::string value = !takes_value(*flag)              ? ""
                                : flag->get_type_name() == kFile ? " -r -F"
                                : choices.empty()                ? " -x"
                                                                 : " -x -a " + quoted(choices);
      text += fmt::format("complete -c perseid -n \"__perseid_below '{}'\" -l {}{} -d {}\n", path,
                          flag->get_lnames().front(), value, quoted(flag->get_description()));
    }
  });
  return text;
}

}  // namespace

void add_completion(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("completion", "print the completion script of a shell");
  command->footer("Example:\n  perseid completion bash >/etc/bash_completion.d/perseid");
  command->fallthrough()->require_subcommand(1);
  struct Shell {
    const char* name;
    std::string (*script)(const CLI::App&);
    const char* example;
  };
  constexpr Shell kShells[] = {{"bash", bash_script, "source <(perseid completion bash)"},
                               {"zsh", zsh_script, "source <(perseid completion zsh)"},
                               {"fish", fish_script, "perseid completion fish | source"}};
  for (const Shell& shell : kShells) {
    CLI::App* below =
        command->add_subcommand(shell.name, fmt::format("the script for {}", shell.name));
    below->footer(fmt::format("Example:\n  {}", shell.example));
    below->callback([&app, &action, script = shell.script] {
      action = [&app, script] {
        write_out(script(app));
        return kOk;
      };
    });
  }
}

}  // namespace perseid::cli
