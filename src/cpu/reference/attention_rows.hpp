// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What attention forward and backward share: the probabilities of a block of kLanes query rows,
//
//   score = M(scale * query . key) + bias    p = exp(score - lse)    lse = log(sum exp(score))
//
// M is the problem's score modifier: without one, score = scale * query . key + bias.
//
// A worker holds the block as lanes, one per row, so that inner loops have a constant length: for
// every key one group of lanes. Keys and values are widened to float64 one row at a time. A lane
// that may not see a key is skipped wherever that key is used, never multiplied by 0: what a masked
// key, value or query row holds, NaN and infinity included, has no way into a result.
#pragma once

#include <cmath>
#include <limits>

#include "cpu/executor.hpp"
#include "cpu/reference/access.hpp"
#include "math/attention_problem.hpp"

namespace perseid::internal::cpu::reference {

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

// rows[i] . values[i], summed over i, in every lane.
inline Lanes dot(const Lanes* rows, const double* values, int64_t count) {
  Lanes sums{};
  for (int64_t i = 0; i < count; ++i)
    for (int64_t r = 0; r < kLanes; ++r) sums.at[r] += rows[i].at[r] * values[i];
  return sums;
}

// M of a scaled product, and M' there.
struct Modified {
  double score, slope;
};
inline Modified modify(const ScoreModifier& modifier, double scaled) {
  switch (modifier.kind) {
    case ScoreModifierKind::kNone:
      break;
  }
  return {scaled, 1};
}

// One per worker, cut from the workspace. What backward alone needs is absent in forward.
struct RowBlock {
  double* narrow;      // [max(head_dim, value_dim)] one key or value row
  Lanes* query;        // [head_dim]
  Lanes* probability;  // [kv_len]
  uint32_t* seen;      // [kv_len] lanes that may see the key and have a probability
  uint32_t* kept;      // [kv_len] lanes whose probability dropout keeps
  Lanes* out;          // [value_dim] forward: out; backward: grad_out
  Lanes* grad_score;   // [kv_len]
  Lanes* slope;        // [kv_len] M', where the problem has a modifier
  Lanes* grad_query;   // [head_dim]
  double* grad_key;    // [kv_len, head_dim]
  double* grad_value;  // [kv_len, value_dim]
  Lanes* grad_bias;    // [kv_len]
  Lanes lse{};
  bool has_slopes = false;
  int64_t rows = 0;            // lanes in use
  int64_t begin = 0, end = 0;  // keys that some row may see; the arrays are stale elsewhere

  RowBlock(const AttentionProblem& problem, bool backward, Arena& arena) {
    narrow = arena.take<double>(max(problem.head_dim, problem.value_dim));
    query = arena.take<Lanes>(problem.head_dim);
    probability = arena.take<Lanes>(problem.kv_len);
    seen = arena.take<uint32_t>(problem.kv_len);
    kept = arena.take<uint32_t>(problem.dropout > 0 ? problem.kv_len : 0);
    out = arena.take<Lanes>(problem.value_dim);
    grad_score = arena.take<Lanes>(backward ? problem.kv_len : 0);
    has_slopes = backward && problem.modifier.kind != ScoreModifierKind::kNone;
    slope = arena.take<Lanes>(has_slopes ? problem.kv_len : 0);
    grad_query = arena.take<Lanes>(backward && problem.grad_query ? problem.head_dim : 0);
    grad_key =
        arena.take<double>(backward && problem.grad_key ? problem.kv_len * problem.head_dim : 0);
    grad_value =
        arena.take<double>(backward && problem.grad_value ? problem.kv_len * problem.value_dim : 0);
    grad_bias = arena.take<Lanes>(backward && problem.grad_bias ? problem.kv_len : 0);
  }

  static size_t bytes(const AttentionProblem& problem, bool backward) {
    Arena arena(nullptr);
    RowBlock(problem, backward, arena);
    return arena.bytes();
  }
  static RowBlock of_worker(const AttentionProblem& problem, bool backward,
                            const Execution& execution, int32_t worker) {
    Arena arena(execution.workspace + static_cast<size_t>(worker) * bytes(problem, backward));
    return RowBlock(problem, backward, arena);
  }

  bool sees(int64_t key, int64_t lane) const { return (seen[key] >> lane & 1u) != 0; }
  // Lanes without a row hold zeros; taking them along keeps the loops whole.
  uint32_t lanes(int64_t key) const { return seen[key] | (kAllLanes << rows & kAllLanes); }
  // What dropout multiplies a probability by.
  double dropout_factor(const Dropout& dropout, int64_t key, int64_t lane) const {
    if (!dropout.enabled()) return 1;
    return (kept[key] >> lane & 1u) != 0 ? 256.0 / dropout.threshold : 0.0;
  }
  // The gradient of the scaled products with a key.
  Lanes grad_product(int64_t key) const {
    Lanes result = grad_score[key];
    for (int64_t r = 0; has_slopes && r < kLanes; ++r) result.at[r] *= slope[key].at[r];
    return result;
  }
  Lanes dropped(const Dropout& dropout, int64_t key) const {
    Lanes result = probability[key];
    if (dropout.enabled())
      for (int64_t r = 0; r < kLanes; ++r) result.at[r] *= dropout_factor(dropout, key, r);
    return result;
  }
};

// The element that begins a row; `row` counts from the start of the packed tensor where it is one.
inline int64_t offset_of(const AttentionProblem& problem, const Tensor& tensor, int64_t batch,
                         int64_t head, int64_t row) {
  return problem.ragged
             ? head * tensor.stride[0] + row * tensor.stride[1]
             : batch * tensor.stride[0] + head * tensor.stride[1] + row * tensor.stride[2];
}

inline void load_vector(const AttentionProblem& problem, const Tensor& tensor, int64_t batch,
                        int64_t head, int64_t row, int64_t count, double* to) {
  load_row(tensor, offset_of(problem, tensor, batch, head, row), tensor.stride[tensor.rank - 1],
           count, to, 1);
}

inline void load_lanes(const AttentionProblem& problem, const Tensor& tensor, int64_t batch,
                       int64_t head, int64_t row, int64_t rows, int64_t count, Lanes* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = {};
  for (int64_t r = 0; r < rows; ++r)
    load_row(tensor, offset_of(problem, tensor, batch, head, row + r),
             tensor.stride[tensor.rank - 1], count, to->at + r, kLanes);
}

inline void store_lanes(const AttentionProblem& problem, const Tensor& tensor, int64_t batch,
                        int64_t head, int64_t row, int64_t rows, int64_t count, const Lanes* from,
                        double factor, bool add = false) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t offset = offset_of(problem, tensor, batch, head, row + r);
    for (int64_t i = 0; i < count; ++i)
      store_or_add(add, tensor, offset + i * tensor.stride[tensor.rank - 1],
                   factor * from[i].at[r]);
  }
}

// Fills query, probability, seen, kept, lse, rows, begin and end for the rows of a sequence from
// `first` on.
template <class Arguments>  // AttentionForward or AttentionBackward
void compute_probabilities(const AttentionProblem& problem, const Arguments& arguments,
                           const Sequence& sequence, int64_t batch, int64_t head, int64_t first,
                           RowBlock& block) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  block.rows = min(kLanes, sequence.q_len - first);
  load_lanes(problem, arguments.query, batch, head, sequence.q_begin + first, block.rows,
             problem.head_dim, block.query);
  KeyRange ranges[kLanes] = {};
  block.begin = sequence.kv_len;
  block.end = 0;
  for (int64_t r = 0; r < block.rows; ++r) {
    ranges[r] = visible_keys(problem, first + r, sequence.q_len, sequence.kv_len);
    block.begin = min(block.begin, ranges[r].begin);
    block.end = max(block.end, ranges[r].end);
  }
  const auto masked_offset = [&](const Tensor& tensor, int64_t r, int64_t j) {
    return batch * tensor.stride[0] + head * tensor.stride[1] + (first + r) * tensor.stride[2] +
           j * tensor.stride[3];
  };

  Lanes maximum, sum{};
  for (double& value : maximum.at) value = -kInfinity;
  for (int64_t j = block.begin; j < block.end; ++j) {
    uint32_t seen = 0;
    for (int64_t r = 0; r < block.rows; ++r)
      if (j >= ranges[r].begin && j < ranges[r].end &&
          (!problem.visible ||
           load_bool(arguments.visible, masked_offset(arguments.visible, r, j))))
        seen |= 1u << r;
    block.seen[j] = seen;
    if (seen == 0) continue;
    load_vector(problem, arguments.key, sequence.kv_entry, head / problem.group(),
                sequence.kv_begin + j, problem.head_dim, block.narrow);
    if (block.has_slopes) block.slope[j] = {};
    Lanes& scores = block.probability[j] = dot(block.query, block.narrow, problem.head_dim);
    for (int64_t r = 0; r < block.rows; ++r) {
      if (!block.sees(j, r)) continue;
      const Modified modified = modify(problem.modifier, problem.scale * scores.at[r]);
      double score = modified.score;
      if (block.has_slopes) block.slope[j].at[r] = modified.slope;
      if (problem.bias) score += load(arguments.bias, masked_offset(arguments.bias, r, j));
      scores.at[r] = score;
      if (score > maximum.at[r] || std::isnan(score)) maximum.at[r] = score;  // NaN stays NaN
    }
  }

  // A row whose scores are all -inf, or count as that, sees nothing either.
  const double least = problem.dtype == DType::kF64 ? -kInfinity : double{kLeastScore};
  uint32_t nonempty = 0;
  for (int64_t r = 0; r < block.rows; ++r)
    if (!(maximum.at[r] <= least)) nonempty |= 1u << r;
  for (int64_t j = block.begin; j < block.end; ++j) {
    block.seen[j] &= nonempty;
    for (int64_t r = 0; r < kLanes; ++r) {
      double& value = block.probability[j].at[r];
      value = block.sees(j, r) ? std::exp(value - maximum.at[r]) : 0.0;
      sum.at[r] += value;
    }
  }
  for (int64_t r = 0; r < kLanes; ++r)
    block.lse.at[r] = (nonempty >> r & 1u) != 0 ? maximum.at[r] + std::log(sum.at[r]) : -kInfinity;
  for (int64_t j = block.begin; j < block.end; ++j)
    for (int64_t r = 0; r < kLanes; ++r)
      if (block.sees(j, r)) block.probability[j].at[r] /= sum.at[r];

  if (!arguments.dropout.enabled()) return;
  for (int64_t j = block.begin; j < block.end; ++j) {
    block.kept[j] = 0;
    for (int64_t r = 0; r < block.rows; ++r)
      if (block.sees(j, r) && dropout_keeps(arguments.dropout, batch * problem.heads + head,
                                            problem.rows.position(first + r, sequence.q_len), j))
        block.kept[j] |= 1u << r;
  }
}

}  // namespace perseid::internal::cpu::reference
