// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Split-K of matmul on sm_90a, the host side: which tiles are split, and the workspace for their
// sums. The kernel's side is device/sm90/matmul/split_k.hpp.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "cuda/device/matmul/config.hpp"
#include "cuda/device/sm90/matmul/config.hpp"
#include "math/matmul_problem.hpp"

namespace perseid::internal::cuda {

// `rate`: of the tensor cores while a block computes such tiles, relative to the best.
struct Sm90MatmulTile {
  int consumers, columns;
  double rate;
};

// One entry of a batch. How it is split depends on nothing else, so that its bits do not depend on
// the batch, the chunks or the epilogue.
struct SplitKProblem {
  int64_t m = 0, n = 0, k = 0;
  int depth = 64, group = 1;  // of a step along k; steps that stay together
  double work = 1;            // of a multiply-add, relative to one of 16 bits
  int32_t multiprocessors = 0;
};

// `time`: 16-bit multiply-adds that a multiprocessor would do meanwhile at its best rate.
struct SplitKChoice {
  SplitK split;
  double time = 0;
};
// The best splits of such tiles; none where they gain nothing.
SplitKChoice choose_split_k(const SplitKProblem& problem, const Sm90MatmulTile& tile);

// Sets the tile of the configuration and split_k, where split tiles are faster than the best of
// whole ones and reading `bytes` of operands takes less. Returns the time then, else 0.
double split_tiles(const SplitKProblem& problem, std::span<const Sm90MatmulTile> tiles,
                   double bytes, Sm90MatmulConfig* config);

// The splits of a plan's launches, of which some are transposed, and their part of the workspace.
class SplitKLaunches {
 public:
  SplitKLaunches() = default;  // there are none
  SplitKLaunches(const SplitKProblem& problem, std::span<const Sm90MatmulTile> tiles,
                 const Sm90MatmulConfig& config);

  // For so many entries of the batch.
  size_t workspace(int64_t batch) const;
  // The arguments of a launch of the problem.
  void fill(const MatmulProblem& problem, const MatmulLaunch& given, std::byte* workspace,
            Sm90MatmulArguments* arguments) const;
  // For explain: "", or which tiles are split.
  std::string description() const;

 private:
  struct Tiles {
    int64_t all, split;
  };
  Tiles tiles_of(bool transposed) const;
  size_t counter_bytes(int64_t batch, bool transposed) const;
  size_t sum_bytes(int64_t batch, bool transposed) const;

  SplitKProblem problem_;
  Sm90MatmulConfig config_;
  SplitK splits_[2];  // of launches as they are, and transposed
};

}  // namespace perseid::internal::cuda
