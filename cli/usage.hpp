// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the parser of the command line refuses, as a sentence: what was expected, what was got, and
// where to read on.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace perseid::cli {

// The parser would read -1 as the largest number there is.
const CLI::Validator& not_negative();

// The parser would read a whole number beyond 64 bits as the largest one. Ends with a sentence
// where one of the flags that were given has such a value.
void refuse_overflow(const CLI::App& app);

// The sentence about a word where a command below `command` is expected.
std::string no_command(const CLI::App& command, const std::string& word);

std::string usage_sentence(const CLI::App& app, const CLI::ParseError& error);

}  // namespace perseid::cli
