// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The flags of `perseid run` that say how an operand arrives in chunks.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "arriving.hpp"

namespace perseid::cli {

struct ArrivalFlags {
  std::optional<int64_t> chunks, pivot;
  std::optional<std::string> arrival_order;
  std::optional<uint64_t> arrival_delay;  // microseconds
  std::optional<double> deadline;         // milliseconds
};
// `chunks`: what --chunks says in the help.
void add_arrival_flags(CLI::App& app, ArrivalFlags& flags, const std::string& chunks);

struct PlannedArrival {
  int64_t count = 0;  // 0: all is present
  int64_t pivot = 0;
  std::chrono::nanoseconds deadline{0};
  std::vector<Delivery> order;
};
// Chunks cut `dim`, which is `size`. Ends with a sentence where a flag is wrong.
PlannedArrival read_arrival(const ArrivalFlags& flags, const char* dim, int64_t size);

}  // namespace perseid::cli
