// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What host and device code of the splitting of float32 operands share: the configurations that
// kernels are compiled for, and the arguments of a launch.
#pragma once

#include "cuda/device/matmul/config.hpp"

namespace perseid::internal::cuda {

struct SplitConfig {
  int planes = 2;        // high and low halves; 1: high halves alone, which is TF32's accuracy
  bool clusters = true;  // blocks of split_across work together: compute capability 9.0

  static constexpr const char* kName = "SplitConfig";
  // Every field, in the order of declaration (cuda/runtime/kernel_name.hpp).
  template <class Config, class Visit>
  static constexpr void visit_fields(Config& c, Visit visit) {
    visit("planes", c.planes);
    visit("clusters", c.clusters);
  }

  static constexpr int kDepth = 32;  // of k, whose halves lie together
  static constexpr int kWarps = 8, threads = 32 * kWarps;
  // split_along: a warp has a line of at most so many numbers, or the block has one.
  static constexpr int kShortLine = 1024;
  static constexpr int lines_of_block(int64_t depth) { return depth <= kShortLine ? kWarps : 1; }
  // split_across: a cluster of blocks (or one block) has some lines, of which each warp holds some
  // tiles.
  static constexpr int kLines = 32, kMostCluster = 16, kHeldTiles = 2;
  static constexpr int kDepthOfABlock = kDepth * kWarps * kHeldTiles;
  static constexpr int kTileBytes = 4 * kLines * kDepth;
  static constexpr int kTilesBytes = kWarps * kHeldTiles * kTileBytes;
  // Elements of a line of planes: for every kDepth of k the high halves, then the low ones.
  constexpr int64_t row(int64_t depth) const { return ceil_div(depth, kDepth) * kDepth * planes; }
};

struct SplitOperand {
  MatmulOperand from;   // vectors: a line may be read 16 bytes at a time
  int64_t lines = 0;    // 0: there is no such operand
  int64_t entries = 0;  // of the batch
  // [entries, lines, row] of f16, and [entries, lines]. The factor of a line that f16 cannot carry
  // is NaN.
  void* planes = nullptr;
  float* factors = nullptr;
};

struct SplitArguments {
  SplitOperand operands[2] = {};
  int64_t depth = 0;
  int32_t cluster = 1;  // blocks of a cluster of split_across
};

}  // namespace perseid::internal::cuda
