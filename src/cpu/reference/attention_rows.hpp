// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What attention forward and backward share: the probabilities of a block of kLanes query rows,
//
//   score = scale * query . key + bias      p = exp(score - lse)      lse = log(sum exp(score))
//
// A worker holds the block as lanes, one per row, so that inner loops have a constant length: for
// every key one group of lanes. Keys and values are widened to float64 one row at a time. A lane
// that may not see a key is skipped wherever that key is used, never multiplied by 0: what a masked
// key, value or query row holds, NaN and infinity included, has no way into a result.
#pragma once

#include "cpu/executor.hpp"
#include "cpu/reference/access.hpp"
#include "math/attention_problem.hpp"

namespace perseid::cpu::reference {

inline constexpr int64_t kLanes = 16;
inline constexpr uint32_t kAllLanes = (1u << kLanes) - 1;

struct Lanes {
  double at[kLanes];
};

// sums[i] += values[i] * weight, in the lanes that are set.
inline void accumulate(Lanes* sums, const double* values, int64_t count, const Lanes& weight,
                       uint32_t lanes) {
  for (int64_t i = 0; i < count; ++i) {
    if (lanes == kAllLanes) {
      for (int64_t r = 0; r < kLanes; ++r) sums[i].at[r] += values[i] * weight.at[r];
    } else {
      for (int64_t r = 0; r < kLanes; ++r)
        if ((lanes >> r & 1u) != 0) sums[i].at[r] += values[i] * weight.at[r];
    }
  }
}

// sums[i] += the total of values[i] * weight over the lanes that are set.
inline void accumulate_over_lanes(double* sums, const Lanes* values, int64_t count,
                                  const Lanes& weight, uint32_t lanes) {
  for (int64_t i = 0; i < count; ++i) {
    Lanes products;
    for (int64_t r = 0; r < kLanes; ++r) products.at[r] = values[i].at[r] * weight.at[r];
    if (lanes != kAllLanes)
      for (int64_t r = 0; r < kLanes; ++r)
        if ((lanes >> r & 1u) == 0) products.at[r] = 0;
    for (int64_t width = kLanes / 2; width > 0; width /= 2)
      for (int64_t r = 0; r < width; ++r) products.at[r] += products.at[r + width];
    sums[i] += products.at[0];
  }
}

// One per worker, cut from the workspace. What backward alone needs is absent in forward.
struct RowBlock {
  double* narrow;          // [max(head_dim, value_dim)] one key or value row
  Lanes* query;            // [head_dim]
  Lanes* probability;      // [kv_len]
  uint32_t* seen;          // [kv_len] lanes that may see the key; those without a row count as set
  uint32_t* kept;          // [kv_len] lanes whose probability dropout keeps
  Lanes* out;              // [value_dim] forward: out; backward: grad_out
  Lanes* grad_score;       // [kv_len]
  Lanes* grad_query;       // [head_dim]
  double* grad_key;        // [kv_len, head_dim]
  double* grad_value;      // [kv_len, value_dim]
  Lanes* grad_bias;        // [kv_len]
  Lanes lse;
  int64_t rows;            // lanes in use
  int64_t begin, end;      // keys that some row may see

  RowBlock(const AttentionProblem& problem, bool backward, Arena& arena) {
    narrow = arena.take<double>(max(problem.head_dim, problem.value_dim));
    query = arena.take<Lanes>(problem.head_dim);
    probability = arena.take<Lanes>(problem.kv_len);
    seen = arena.take<uint32_t>(problem.kv_len);
    kept = arena.take<uint32_t>(problem.dropout > 0 ? problem.kv_len : 0);
    out = arena.take<Lanes>(problem.value_dim);
    grad_score = arena.take<Lanes>(backward ? problem.kv_len : 0);
    grad_query = arena.take<Lanes>(backward && problem.grad_query ? problem.head_dim : 0);
    grad_key = arena.take<double>(
        backward && problem.grad_key ? problem.kv_len * problem.head_dim : 0);
    grad_value = arena.take<double>(
        backward && problem.grad_value ? problem.kv_len * problem.value_dim : 0);
    grad_bias = arena.take<Lanes>(backward && problem.grad_bias ? problem.kv_len : 0);
  }

  static size_t bytes(const AttentionProblem& problem, bool backward) {
    Arena arena(nullptr);
    RowBlock(problem, backward, arena);
    return arena.bytes();
  }
  static RowBlock of_worker(const AttentionProblem& problem, bool backward,
                            const Execution& execution, int32_t worker) {
    const size_t offset = static_cast<size_t>(worker) * bytes(problem, backward);
    Arena arena(execution.workspace == nullptr ? nullptr : execution.workspace + offset);
    return RowBlock(problem, backward, arena);
  }
};

}  // namespace perseid::cpu::reference
