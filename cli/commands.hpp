// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The commands of the program. Each adds itself to the app; the one that was called leaves what is
// to be done in `action`, which returns the exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "common.hpp"

namespace perseid::cli {

using Action = std::function<int()>;

void add_info(CLI::App& app, const Common& common, Action& action);
void add_explain(CLI::App& app, const Common& common, Action& action);
void add_check(CLI::App& app, const Common& common, Action& action);
void add_tune(CLI::App& app, const Common& common, Action& action);
void add_bench(CLI::App& app, const Common& common, Action& action);
// The script of a shell, and the manual, out of the parser's tables.
void add_completion(CLI::App& app, Action& action);
void add_man(CLI::App& app, Action& action);
// `perseid help COMMAND`, for those who expect it.
void add_help(CLI::App& app, Action& action);
// A program as several ranks.
void add_launch(CLI::App& app, const Common& common, Action& action);
// `perseid run` and one of these under it for each operation.
void add_run(CLI::App& app, const Common& common, Action& action);
void add_run_softmax(CLI::App& run, const Common& common, Action& action);
void add_run_attention(CLI::App& run, const Common& common, Action& action);
void add_run_matmul(CLI::App& run, const Common& common, Action& action);
void add_run_collective(CLI::App& run, const Common& common, Action& action);
void add_run_context_attention(CLI::App& run, const Common& common, Action& action);
void add_run_dropout_mask(CLI::App& run, const Common& common, Action& action);

}  // namespace perseid::cli
