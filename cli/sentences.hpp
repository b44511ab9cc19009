// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The library's sentences in the words of the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace perseid::cli {

// A sentence of the library with the command's flags in place of the C interface's fields:
// "heads is 3, expected a multiple of kv_heads" becomes "--heads is 3, expected a multiple of
// --kv-heads". Words that are no flag of the command stay.
std::string in_flags(const CLI::App& command, std::string_view sentence);

// The same of its advice alone, where no command's flags are meant.
std::string in_program_words(std::string_view sentence);

// The name that `word` may be meant for: at most a third of its letters differ. "": none.
std::string nearest(std::string_view word, const std::vector<std::string>& names);

}  // namespace perseid::cli
