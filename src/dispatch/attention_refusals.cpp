// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "dispatch/attention_refusals.hpp"

#include <cmath>

#include "cuda/attention/arguments.hpp"
#include "cuda/sm90/attention.hpp"
#include "cuda/sm90/attention_backward.hpp"
#include "dispatch/attention_wrappers.hpp"
#include "math/leaf_tree.hpp"

namespace perseid::internal::dispatch {
namespace {

// Whether the keys that a row sees depend on the row. Then the order in which kernels of cuda:sm90
// visit blocks of keys follows from the Q tile, so that Q tiles of ranks are those of all rows.
bool has_bounds(const AttentionProblem& problem) {
  const cuda::BoundsByRow bounds = cuda::bounds_by_row(whole_of(problem));
  return bounds.left || bounds.right;
}
// For cuda:sm90 the rows of a rank, or of a piece, begin at a multiple of so many.
int64_t unit_of_rows(const AttentionProblem& problem) {
  if (has_bounds(problem)) return cuda::kPieceUnit;
  return cuda::has_dropout(problem) ? kDropoutTileRows : 1;
}

// Why cuda:sm90 does not take the queries of all ranks; "" where it does.
std::string refuse_order_of_sm90(const AttentionProblem& problem, const Device& device) {
  const AttentionProblem whole = whole_of(problem);
  if (std::string why = cuda::refuse_attention(whole, device.gpu->facts()); !why.empty())
    return why;
  if (std::string why = refuse_scale(problem, true); !why.empty()) return why;
  if (has_other_backward(problem)) return kOrderOfRows;
  if (problem.ragged) return "made for sequences of one length in canonical order";
  // Of eight ranks.
  const int64_t pieces = problem.rows.zigzag ? 2 * kLeaves : kLeaves, unit = unit_of_rows(problem);
  if (unit > 1 && whole.q_len % (pieces * unit) != 0)
    return concatenate("made for a multiple of ", pieces * unit, " queries of all ranks in ",
                       "canonical order, with such a mask or dropout, got ", whole.q_len);
  return "";
}
// Why it does not take those of this rank.
std::string refuse_rows_of_sm90(const AttentionProblem& problem, const Device& device) {
  const int64_t first = problem.rows.position(0, problem.q_len), unit = unit_of_rows(problem);
  if (problem.q_len > 0 && first % unit != 0)
    return concatenate("made for a rank whose rows begin at a multiple of ", unit, ", got ", first);
  if (!takes_pieces(problem, device)) return cuda::refuse_attention(problem, device.gpu->facts());
  std::string why;
  for (int64_t piece = 0; piece < 2 && why.empty(); ++piece)
    why = cuda::refuse_attention(piece_of(problem, piece), device.gpu->facts());
  return why;
}

}  // namespace

std::string refuse_scale(const AttentionProblem& problem, bool divides_bias) {
  constexpr double kMost = 0x1p64, kLeast = 0x1p-27;
  const double scale = std::abs(problem.scale);
  if (problem.dtype == DType::kF64) return {};
  if (scale > kMost)
    return concatenate("made for scales up to 2^64, which leave room in float32, got ",
                       problem.scale);
  if (divides_bias && problem.bias && scale < kLeast)
    return concatenate("made for scales from 2^-27 on where there is a bias, got ", problem.scale);
  return {};
}

bool has_other_backward(const AttentionProblem& problem) {
  return problem.dtype == DType::kF32 || cuda::has_large_dims(problem);
}

AttentionProblem whole_of(AttentionProblem problem) {
  problem.q_len = problem.rows.length(problem.q_len);
  problem.total_q *= problem.rows.ranks;
  problem.rows = {.canonical = true};
  return problem;
}

bool takes_pieces(const AttentionProblem& problem, const Device& device) {
  return problem.rows.canonical && problem.rows.zigzag && !problem.backward() &&
         !has_bounds(problem) && !cuda::refuse_attention(problem, device.gpu->facts()).empty();
}

std::string refuse_sm90_in_order(const AttentionProblem& problem, const Device& device) {
  std::string why = refuse_order_of_sm90(problem, device);
  if (why.empty() && !problem.async())
    why = "made for keys that arrive in chunks in canonical order";
  if (why.empty()) why = refuse_rows_of_sm90(problem, device);
  if (why.empty() && problem.backward()) why = cuda::refuse_attention_backward(problem);
  return why;
}
std::string refuse_order(const AttentionProblem& problem, const Device& device) {
  if (!problem.rows.canonical) return "";
  if (problem.backward()) return kOrderOfRows;
  if (!refuse_order_of_sm90(problem, device).empty()) return "";
  const std::string why = refuse_rows_of_sm90(problem, device);
  return why.empty() ? ""
                     : concatenate("in canonical order takes no rows of what one rank has by ",
                                   "cuda:sm90, which is ", why);
}

}  // namespace perseid::internal::dispatch
