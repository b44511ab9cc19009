// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/backward_order.hpp"

#include <algorithm>
#include <functional>
#include <queue>
#include <span>
#include <utility>

namespace perseid::internal::cuda {
namespace {

// Of a multiprocessor, in FLOPs a second; and what a block takes besides its steps.
constexpr double kRate = 4.5e12, kBlock = 4e-6;
// Of stage 0 that come first: half, unless others take so much of its time or less.
constexpr int64_t kEighths[] = {4, 2, 6};
constexpr double kShorter = 0.98;

// The tiles of keys of a launch.
class Tiles {
 public:
  Tiles(const AttentionProblem& problem, const BackwardLaunch& launch)
      : steps_(static_cast<size_t>(ceil_div(problem.kv_len, launch.keys)), 0) {
    for (int64_t row = 0; row < problem.q_len; row += launch.queries) {
      const int64_t last = min(row + launch.queries, problem.q_len) - 1;
      const int64_t begin = visible_keys(problem, row, problem.q_len, problem.kv_len).begin;
      const int64_t end = visible_keys(problem, last, problem.q_len, problem.kv_len).end;
      for (int64_t tile = begin / launch.keys; tile * launch.keys < end; ++tile)
        ++steps_[static_cast<size_t>(tile)];
    }
    const ChunkTable<int64_t> chunks{problem.chunks_kv.begin, problem.chunks_kv.count};
    for (int64_t tile = 0; tile < count(); ++tile) {
      const ChunkRange<int64_t> of = chunks.covering(tile * launch.keys, (tile + 1) * launch.keys);
      int64_t last = 0;
      for (int64_t chunk = of.first; chunk <= of.last; ++chunk)
        last = max(last, int64_t{problem.chunk_stages[chunk]});
      stage_.push_back(last);
    }
  }
  int64_t count() const { return std::ssize(steps_); }
  int64_t stages() const {
    return stage_.empty() ? 0 : *std::max_element(stage_.begin(), stage_.end()) + 1;
  }
  int64_t stage(int64_t tile) const { return stage_[static_cast<size_t>(tile)]; }
  // Blocks of queries that see it.
  int64_t steps(int64_t tile) const { return steps_[static_cast<size_t>(tile)]; }
  // Those of some stages, the longest ones first.
  std::vector<int64_t> of_stages(int64_t first, int64_t end) const {
    std::vector<int64_t> tiles;
    for (int64_t tile = 0; tile < count(); ++tile)
      if (first <= stage(tile) && stage(tile) < end) tiles.push_back(tile);
    std::stable_sort(tiles.begin(), tiles.end(),
                     [&](int64_t a, int64_t b) { return steps(a) > steps(b); });
    return tiles;
  }

 private:
  std::vector<int64_t> steps_, stage_;
};

std::vector<int32_t> order_of(const Tiles& tiles, const BackwardLaunch& launch,
                              int64_t heads_of_group, int64_t eighths) {
  std::vector<int32_t> order;
  order.reserve(static_cast<size_t>(tiles.count() * launch.heads));
  const auto add = [&](std::span<const int64_t> added, int64_t from, int64_t to) {
    for (int64_t head = from; head < to; head += launch.heads_per_section)
      for (const int64_t tile : added)
        for (int64_t h = head; h < min(head + launch.heads_per_section, to); ++h)
          order.push_back(static_cast<int32_t>(tile * launch.heads + h));
  };
  const std::vector<int64_t> here = tiles.of_stages(0, 1),
                             arriving = tiles.of_stages(1, tiles.stages());
  const size_t first =
      arriving.empty() ? here.size() : here.size() * static_cast<size_t>(eighths) / 8;
  for (int64_t head = 0; head < launch.heads; head += heads_of_group) {
    const int64_t end = min(head + heads_of_group, launch.heads);
    add(std::span(here).first(first), head, end);
    add(arriving, head, end);
  }
  add(std::span(here).subspan(first), 0, launch.heads);
  return order;
}

double seconds_of(const Tiles& tiles, const AttentionProblem& problem, const BackwardLaunch& launch,
                  const std::vector<int32_t>& order) {
  const int64_t stages = max(tiles.stages(), int64_t{1}), groups = problem.arriving_groups;
  const auto flops = static_cast<double>(2 * launch.keys * launch.queries *
                                         (3 * problem.head_dim + 2 * problem.value_dim));
  const double step = flops / kRate * static_cast<double>(problem.group()) /
                      static_cast<double>(launch.cluster_size);
  const ChunkTraffic& traffic = problem.chunk_traffic;
  // Clusters that run, by when they end.
  std::priority_queue<double, std::vector<double>, std::greater<>> running;
  for (int64_t i = 0; i < max(launch.multiprocessors / launch.cluster_size, int64_t{1}); ++i)
    running.push(0);
  std::vector<double> complete(static_cast<size_t>(stages * groups), 0);
  double last = 0;
  for (const int32_t number : order) {
    const int64_t tile = number / launch.heads, stage = tiles.stage(tile);
    const int64_t group = number % launch.heads / problem.heads_of_arrival();
    double end = running.top();
    running.pop();
    if (tiles.steps(tile) > 0) {
      if (stage > 0)
        end = max(end, traffic.latency +
                           traffic.arrival * static_cast<double>(group * (stages - 1) + stage));
      end += kBlock + step * static_cast<double>(tiles.steps(tile));
    }
    running.push(end);
    last = max(last, end);
    double& of_stage = complete[static_cast<size_t>(group * stages + stage)];
    of_stage = max(of_stage, end);
  }
  double left = 0;
  for (int64_t i = 0; i < stages * groups; ++i)
    if (i % stages > 0) left = max(left, complete[static_cast<size_t>(i)]) + traffic.departure;
  return max(last, left);
}

}  // namespace

std::vector<int32_t> backward_order(const AttentionProblem& problem, const BackwardLaunch& launch) {
  const Tiles tiles(problem, launch);
  std::vector<int32_t> best;
  double fewest = 0;
  for (const int64_t eighths : kEighths) {
    std::vector<int32_t> order = order_of(tiles, launch, problem.heads_of_arrival(), eighths);
    const double seconds = seconds_of(tiles, problem, launch, order);
    if (!best.empty() && seconds > kShorter * fewest) continue;
    fewest = seconds;
    best = std::move(order);
  }
  return best;
}

double backward_seconds(const AttentionProblem& problem, const BackwardLaunch& launch,
                        const std::vector<int32_t>& order) {
  return seconds_of(Tiles(problem, launch), problem, launch, order);
}

}  // namespace perseid::internal::cuda
