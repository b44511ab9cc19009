// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What host and device code of the splitting of float32 operands share: the configurations that
// kernels are compiled for, and the arguments of a launch.
#pragma once

#include "cuda/device/matmul/config.hpp"

namespace perseid::internal::cuda {

struct SplitConfig {
  int planes = 2;  // high and low halves; 1: high halves alone, which is TF32's accuracy

  static constexpr const char* kName = "SplitConfig";
  // Every field, in the order of declaration (cuda/runtime/kernel_name.hpp).
  template <class Config, class Visit>
  static constexpr void visit_fields(Config& c, Visit visit) {
    visit("planes", c.planes);
  }

  // A cluster of blocks splits kLines lines. A warp takes tiles of kLines lines and kDepth of k.
  static constexpr int kLines = 32, kDepth = 32, kWarps = 8, kMostCluster = 8;
  static constexpr int threads() { return 32 * kWarps; }
  // Elements of a line of planes: for every kDepth of k the high halves, then the low ones.
  constexpr int64_t row(int64_t depth) const { return ceil_div(depth, kDepth) * kDepth * planes; }
};

struct SplitOperand {
  MatmulOperand from;  // vectors: a line may be read 16 bytes at a time
  int64_t lines = 0;
  int64_t entries = 0;  // of the batch
  // [entries, lines, row] of f16, and [entries, lines]. The factor of a line that f16 cannot carry
  // is NaN.
  void* planes = nullptr;
  float* factors = nullptr;
};

struct SplitArguments {
  SplitOperand operands[2];
  int64_t depth = 0;
  int32_t cluster = 1;  // blocks of a cluster
};

}  // namespace perseid::internal::cuda
