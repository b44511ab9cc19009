// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// How explain, check and bench are told their problems: by an operation with flags, by a file, or
// not at all.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common.hpp"
#include "harness/problem_text.hpp"

namespace perseid::cli {

struct ProblemFlags {
  std::optional<harness::Op> op;
  std::string file;
  std::vector<std::pair<std::string, std::string>> given;  // fields in the order of the flags
};

// Adds --problems, and a subcommand for each of `ops` with the flags of that operation.
void add_problem_flags(CLI::App& command, ProblemFlags& flags, uint32_t ops, const char* example);

// The flags of an operation alone.
void add_fields(CLI::App& app, ProblemFlags& flags, harness::Op op);

// The operations that have every implementation of `impl`, names divided by commas; at least one.
std::set<harness::Op> operations_with(const std::string& impl);

// One problem for the flags; those of the file (and of the operation, if one is named) with the
// flags put over them; else those of the built-in list. --dtype, --impl and --threads count as
// flags; without an operation, --impl leaves those out that have no implementation of its names.
std::vector<harness::Problem> problems_of(const ProblemFlags& flags, const Common& common,
                                          const std::string& built_in);

}  // namespace perseid::cli
