// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "arrival_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "common.hpp"
#include "usage.hpp"

namespace perseid::cli {
namespace {

constexpr double kLongestDeadline = 9e12;  // milliseconds: in nanoseconds it fits 64 bits
constexpr uint64_t kLongestDelay = 1'000'000'000'000;

// The chunks of --arrival-order, each once. Without it: from the pivot round.
std::vector<int64_t> read_order(const ArrivalFlags& flags, int64_t count, int64_t pivot) {
  std::vector<int64_t> order;
  if (!flags.arrival_order) {
    for (int64_t visit = 0; visit < count; ++visit) order.push_back((pivot + visit) % count);
    return order;
  }
  const std::string& text = *flags.arrival_order;
  std::vector<bool> named(static_cast<size_t>(count));
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    int64_t chunk = -1;
    const auto parsed = std::from_chars(text.data() + at, text.data() + end, chunk);
    if (parsed.ec != std::errc{} || parsed.ptr != text.data() + end || chunk < 0 || chunk >= count)
      bad_input(fmt::format("--arrival-order lists chunks from 0 to {}, got '{}'", count - 1,
                            text.substr(at, end - at)));
    if (named[static_cast<size_t>(chunk)])
      bad_input(fmt::format("--arrival-order names chunk {} twice: each arrives once", chunk));
    named[static_cast<size_t>(chunk)] = true;
    order.push_back(chunk);
    at = end + 1;
  }
  return order;
}

}  // namespace

void add_arrival_flags(CLI::App& app, ArrivalFlags& flags, const std::string& chunks) {
  app.add_option("--chunks", flags.chunks, chunks);
  app.add_option("--pivot", flags.pivot, "the chunk that is used first (0)");
  app.add_option("--arrival-order", flags.arrival_order,
                 "chunks in the order of their arrival, such as 2,0,1; one that is left out never "
                 "arrives (from the pivot round)")
      ->type_name("LIST");
  app.add_option("--arrival-delay", flags.arrival_delay, "microseconds between arrivals (0)")
      ->check(not_negative());
  app.add_option("--deadline", flags.deadline,
                 "milliseconds that a chunk is waited for; then the exit code is 5 (30000)");
}

PlannedArrival read_arrival(const ArrivalFlags& flags, const char* dim, int64_t size) {
  if (!flags.chunks) {
    if (flags.arrival_order || flags.pivot || flags.arrival_delay || flags.deadline)
      bad_input(
          "--pivot, --arrival-order, --arrival-delay and --deadline say how chunks arrive; say "
          "with --chunks how many there are");
    return {};
  }
  PlannedArrival planned{.count = *flags.chunks, .pivot = flags.pivot.value_or(0), .order = {}};
  const int64_t most = std::min<int64_t>(size, PERSEID_MAX_CHUNKS);
  if (planned.count < 1 || planned.count > most)
    bad_input(fmt::format("--chunks must be from 1 to {}, as {} is {}; got {}", most, dim, size,
                          planned.count));
  if (planned.pivot < 0 || planned.pivot >= planned.count)
    bad_input(fmt::format("--pivot must be from 0 to {}, one of the chunks; got {}",
                          planned.count - 1, planned.pivot));
  const double deadline = flags.deadline.value_or(30000);
  if (!(deadline > 0) || deadline > kLongestDeadline)
    bad_input(fmt::format("--deadline must be a time above 0 in milliseconds, got {}", deadline));
  planned.deadline = std::chrono::nanoseconds(std::max<int64_t>(std::llround(deadline * 1e6), 1));
  const uint64_t delay = flags.arrival_delay.value_or(0);
  if (delay > kLongestDelay)
    bad_input(fmt::format("--arrival-delay must be at most {} microseconds, got {}", kLongestDelay,
                          delay));
  for (const int64_t chunk : read_order(flags, planned.count, planned.pivot))
    planned.order.push_back({chunk, std::chrono::microseconds(planned.order.empty() ? 0 : delay)});
  return planned;
}

}  // namespace perseid::cli
