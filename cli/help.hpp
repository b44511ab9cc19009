// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The descriptions of commands and flags in the parser's tables, as --help, the manual, completion
// and error sentences print them.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace perseid::cli {

// The group of the flags that only tests use. --help leaves it out, --help-all has it.
inline constexpr const char* kTestFlags = "For tests";
// The type of a flag that takes the name of a file.
inline constexpr const char* kFile = "FILE";

// Adds --help-all and the layout of help, which fits stdout. Before the first command is added.
void set_help(CLI::App& app);

// "perseid run softmax"
std::string full_name(const CLI::App& command);
// The command whose flags were being read: `app` or one below it.
const CLI::App& innermost(const CLI::App& app);
std::vector<const CLI::App*> commands_below(const CLI::App& command);
// Those of the command itself, with --help and without the flags for tests.
std::vector<const CLI::Option*> flags_of(const CLI::App& command);
// By its name with dashes; also one that the commands above read. Null: there is none.
const CLI::Option* find_flag(const CLI::App& command, const std::string& name);

// "--scale" of the option, or "-h" where it has that alone.
std::string name_of(const CLI::Option& flag);
bool takes_value(const CLI::Option& flag);
// Out of the type "bshd|bhsd"; none where the type is another.
std::vector<std::string> choices_of(const CLI::Option& flag);

}  // namespace perseid::cli
