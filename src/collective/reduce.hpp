// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Sums over ranks. In the order of ranks, or in pairs of neighbours, always in float32 (float64 for
// f64), rounded once: the result has the same bits in every run, and on every rank that computes
// it.
#pragma once

#include "math/tensor.hpp"

namespace perseid::internal::collective {

enum class Reduction : uint32_t { kSum = 0, kAverage = 1 };

// A run of elements that every rank has its own of.
struct ReducedRun {
  const void* const* parts;  // one for each rank, of contiguous elements
  int32_t ranks;
  DType dtype;  // of the parts
  Reduction reduction;
  bool in_pairs = false;  // math/leaf_tree.hpp: of 1, 2, 4 or 8 ranks
  // Added to the reduced elements; none where dtype is kNone.
  const void* bias;
  DType bias_dtype;
  int64_t bias_stride;
  void* out;
  DType out_dtype;
  int64_t out_stride;
  int64_t count;
};
void reduce(const ReducedRun& run);

}  // namespace perseid::internal::collective
