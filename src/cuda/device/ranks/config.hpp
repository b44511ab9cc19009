// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What host and device code of sums over ranks share.
#pragma once

#include "cuda/device/chunk_waits.hpp"
#include "math/dtype.hpp"
#include "math/leaf_tree.hpp"

namespace perseid::internal::cuda {

struct RankSumConfig {
  DType in = DType::kF32;     // of the parts
  DType out = DType::kF32;    // of the result
  DType bias = DType::kNone;  // kNone: there is none
  int vector = 4;             // elements that a thread loads together
  bool in_pairs = false;      // math/leaf_tree.hpp; of 1, 2, 4 or 8 ranks

  static constexpr const char* kName = "RankSumConfig";
  // Every field, in the order of declaration (cuda/runtime/kernel_name.hpp).
  template <class Config, class Visit>
  static constexpr void visit_fields(Config& c, Visit visit) {
    visit("in", c.in);
    visit("out", c.out);
    visit("bias", c.bias);
    visit("vector", c.vector);
    visit("in_pairs", c.in_pairs);
  }
  static constexpr int threads() { return 256; }
};

// [batch, rows, columns]. Strides in elements; columns lie side by side but where a stride of
// columns is said.
struct RankSumTensor {
  void* data = nullptr;
  int64_t batch = 0, row = 0;
};

// A sum of some parts.
struct RankSumSection {
  RankSumTensor out;
  RankSumTensor bias;
  int64_t out_stride = 1, bias_stride = 0;  // between columns; that of out is 1 with vectors
  int64_t batch = 0, rows = 0, columns = 0;
  int32_t first = 0, ranks = 0;  // of the parts
};

struct RankSumArguments {
  static constexpr int kMostRanks = 64, kMostSections = 8;
  AsyncArguments async;  // arrivals[0]: the signals of all parts
  RankSumTensor parts[kMostRanks];
  RankSumSection sections[kMostSections];
  int64_t rows = 0;              // of all sections
  int32_t ranks = 0, count = 0;  // parts and sections
  int32_t lane_bits = 0;         // 2^lane_bits threads have a row together
  bool average = false;
};

}  // namespace perseid::internal::cuda
