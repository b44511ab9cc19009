// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/split_k.hpp"

#include <utility>

#include "base/status.hpp"
#include "cuda/runtime/launch_number.hpp"

namespace perseid::internal::cuda {
namespace {

// What a split costs beyond its products, in multiply-adds of a multiprocessor: a round trip to
// memory, and each float of the tile that is written, or read at the end.
constexpr double kRoundTrip = 4.5e6, kWritten = 118, kRead = 194;
constexpr int32_t kMostSplits = 64, kFewestSteps = 4;
// Behind so many waves the last one hardly counts.
constexpr int64_t kMostWaves = 6;
// Splits have to gain so much. Memory brings so many bytes while a GPU multiplies and adds once.
constexpr double kGain = 0.95, kBytes = 0.008;
constexpr int64_t kAlignment = 256;

SplitKProblem transposed(SplitKProblem problem) {
  std::swap(problem.m, problem.n);
  return problem;
}

// The tiles of c, and the time of one that is whole.
struct Tiling {
  int64_t m, n, down, across;
  double time;

  Tiling(const SplitKProblem& problem, const Sm90MatmulTile& tile)
      : m(int64_t{64} * tile.consumers),
        n(tile.columns),
        down(ceil_div(problem.m, m)),
        across(ceil_div(problem.n, n)),
        time(area() / tile.rate * problem.work * static_cast<double>(problem.k)) {}
  double area() const { return static_cast<double>(m * n); }
  int64_t waves(const SplitKProblem& problem) const {
    return ceil_div(down * across, problem.multiprocessors);
  }
};

}  // namespace

SplitKChoice choose_split_k(const SplitKProblem& problem, const Sm90MatmulTile& tile) {
  const Tiling tiling(problem, tile);
  const int64_t waves = tiling.waves(problem);
  const int64_t groups = ceil_div(problem.k, int64_t{problem.depth} * problem.group);
  SplitKChoice best = {{1, static_cast<int32_t>(problem.m), static_cast<int32_t>(problem.n)},
                       static_cast<double>(waves) * tiling.time};
  if (waves > kMostWaves) return best;

  const auto most = min<int64_t>(kMostSplits, groups * problem.group / kFewestSteps);
  for (const bool by_rows : {false, true}) {
    const int64_t lines = by_rows ? tiling.down : tiling.across;
    const int64_t in_line = by_rows ? tiling.across : tiling.down;
    for (int64_t full = waves - 1; full >= max<int64_t>(0, waves - 2); --full) {
      const int64_t whole_lines = min(lines, full * problem.multiprocessors / in_line);
      const int64_t whole = whole_lines * in_line, split = (lines - whole_lines) * in_line;
      for (int64_t splits = 2; splits <= most && split > 0; ++splits) {
        const int64_t whole_waves = ceil_div(whole, problem.multiprocessors);
        const int64_t units =
            ceil_div(whole + split * splits, problem.multiprocessors) - whole_waves;
        const double share =
            static_cast<double>(ceil_div(groups, splits)) / static_cast<double>(groups);
        const double each = share * tiling.time + kRoundTrip + kWritten * tiling.area();
        const double time = static_cast<double>(whole_waves) * tiling.time +
                            static_cast<double>(units) * each + kRoundTrip +
                            kRead * tiling.area() * static_cast<double>(splits);
        if (time >= best.time) continue;
        best = {{static_cast<int32_t>(splits),
                 static_cast<int32_t>(by_rows ? whole_lines * tiling.m : problem.m),
                 static_cast<int32_t>(by_rows ? problem.n : whole_lines * tiling.n)},
                time};
      }
    }
  }
  return best;
}

double split_tiles(const SplitKProblem& problem, std::span<const Sm90MatmulTile> tiles,
                   double bytes, Sm90MatmulConfig* config) {
  const double least = bytes / kBytes / problem.multiprocessors;
  SplitKChoice best;
  Sm90MatmulTile chosen = {};
  double whole = 0;
  for (const Sm90MatmulTile& tile : tiles) {
    const SplitKChoice choice = choose_split_k(problem, tile);
    if (best.time == 0 || choice.time < best.time) best = choice, chosen = tile;
    const Tiling tiling(problem, tile);
    const double time = static_cast<double>(tiling.waves(problem)) * tiling.time;
    if (whole == 0 || time < whole) whole = time;
  }
  if (best.split.splits == 1 || max(best.time, least) > kGain * max(whole, least)) return 0;
  config->consumers = chosen.consumers;
  config->columns = chosen.columns;
  config->cluster = 1;
  config->split_k = true;
  return best.time;
}

SplitKLaunches::SplitKLaunches(const SplitKProblem& problem, std::span<const Sm90MatmulTile> tiles,
                               const Sm90MatmulConfig& config)
    : problem_(problem), config_(config) {
  if (!config.split_k) return;
  for (const Sm90MatmulTile& tile : tiles)
    if (tile.consumers == config.consumers && tile.columns == config.columns) {
      splits_[0] = choose_split_k(problem, tile).split;
      splits_[1] = choose_split_k(transposed(problem), tile).split;
    }
}

// With every tile that is not whole.
SplitKLaunches::Tiles SplitKLaunches::tiles_of(bool is_transposed) const {
  const SplitKProblem problem = is_transposed ? transposed(problem_) : problem_;
  const SplitK& split = splits_[is_transposed];
  const auto count = [&](int64_t m, int64_t n) {
    return ceil_div(m, config_.rows()) * ceil_div(n, config_.columns);
  };
  const int64_t all = count(problem.m, problem.n);
  return {all, split.splits == 1 ? 0 : all - count(split.m, split.n)};
}

size_t SplitKLaunches::counter_bytes(int64_t batch, bool is_transposed) const {
  const int64_t counters = batch * tiles_of(is_transposed).split * config_.consumers;
  return static_cast<size_t>(round_up(counters * int64_t{sizeof(uint64_t)}, kAlignment));
}

size_t SplitKLaunches::sum_bytes(int64_t batch, bool is_transposed) const {
  const int64_t units = batch * tiles_of(is_transposed).split * splits_[is_transposed].splits;
  return static_cast<size_t>(units * config_.rows() * config_.columns) * sizeof(float);
}

size_t SplitKLaunches::workspace(int64_t batch) const {
  const auto bytes = [&](bool is_transposed) {
    return counter_bytes(batch, is_transposed) + sum_bytes(batch, is_transposed);
  };
  return config_.split_k ? max(bytes(false), bytes(true)) : 0;
}

void SplitKLaunches::fill(const MatmulProblem& problem, const MatmulLaunch& given,
                          std::byte* workspace, Sm90MatmulArguments* arguments) const {
  if (!config_.split_k) return;
  MatmulSplits& splits = arguments->splits;
  splits.split = splits_[given.transposed];
  // Where all operands are here, split tiles come first: chunks of c leave one after the other.
  const bool arrives = problem.chunks_a.present() || problem.chunks_b.present();
  splits.split.first = problem.chunks_c.present() && !arrives;
  splits.launch = launch_number();
  splits.counters = reinterpret_cast<uint64_t*>(workspace);
  splits.sums =
      reinterpret_cast<float*>(workspace + counter_bytes(arguments->grid.batch, given.transposed));
}

std::string SplitKLaunches::description() const {
  const auto [all, split] = tiles_of(false);
  if (split == 0) return "";
  return concatenate(", ", split, " of ", all, " tiles in ", splits_[0].splits, " splits of k");
}

}  // namespace perseid::internal::cuda
