// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// `perseid explain` of what ranks compute together: threads of this program make the plan, and rank
// 0 explains it.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench_collective.hpp"
#include "problem_flags.hpp"

namespace perseid::cli {

struct ExplainedRanks {
  RankOp op = RankOp::kGather;
  CollectiveSizes sizes;
  std::optional<int64_t> gather_dim, scatter_dim;
  std::string reduce = "sum", placement = "contiguous", assume;  // "": no GPU is assumed
  bool bias = false;
  ProblemFlags attention;  // of whole sequences
};

// Adds a subcommand for each operation.
std::vector<CLI::App*> add_explained_ranks(CLI::App& command, ExplainedRanks& ranks);
// Rank 0's explanation, with --json as JSON.
std::string explain_ranks(const Common& common, const ExplainedRanks& ranks);
std::string explanation_of(const Common& common, perseid_plan_t plan);

}  // namespace perseid::cli
