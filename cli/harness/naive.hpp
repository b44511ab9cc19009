// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Every operation as somebody would first write it in the low precision: what enters a matrix
// product (probabilities, dS) and what is written is rounded to the element type, the rest is
// float32 (float64 for f64), and sums take one element after another. Its error is the measure of
// what a kernel may err (see tolerance.hpp).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/data.hpp"

namespace perseid::harness {

struct Estimate {
  std::vector<double> value;  // row-major, rounded to the operand's type
  // The largest sum, over the elements, of the absolute values that an element is summed from: what
  // one unit of roundoff of the working type in each of them can amount to. Scores, which are as
  // large as their exponentials are sensitive, count with a unit of the accumulation type.
  double magnitude = 0;
  // A limit for each element of outputs that need their own: the logsumexp (lse_limit). Else empty.
  std::vector<double> limit;
};
using Estimates = std::map<std::string, Estimate, std::less<>>;

// Estimates every output of the problem. `inputs`: in float64 and packed. `keep`: the dropout mask
// [batch, heads, q_len, kv_len], empty without dropout. `out`: the result of forward that
// backward read (out of attention, output of softmax), row-major; empty: the naive forward's.
//
// Backward of attention takes sum(P dP) as sum(out grad_out), so that the rounding of out is an
// error of every gradient, in which little averages out: one number for each row. Another out that
// is as right may err several times as much, so a kernel is measured by what it was given.
Estimates naive(const Problem& problem, const Operands& inputs, const std::vector<double>& keep,
                const std::vector<double>& out = {});

// The type that intermediate arrays have in the naive formula, and that of sums over it.
DType working_type(const Problem& problem);
DType accumulation_type(DType working);
// Below it, roundings do not shrink any more.
double smallest_normal(DType dtype);

// How far log(sum exp(scores)) may be from float64 where scores and sum are of the accumulation
// type of `dtype`, with unit roundoff u. With A the largest sum of the absolute values that a
// finite score is summed from (`score`), over `depth` products and a bias:
//   a score is off by at most (8 + 2 sqrt(depth)) u A: its products are exact or rounded once, and
//     sums of `depth` terms err by less than 2 sqrt(depth) u A (Higham and Mary 2019, lambda = 2);
//     8 stands for the scale, the bias, the factor log2(e) and the subtracted maximum
//   the sum of `count` exponentials is off, relatively, by 16 u + count / 8 u at most where it is
//     taken in 8 lanes or more, 16 sqrt(count) u where it is long; and as the exponential is
//   log and the added maximum round twice: 2 u |lse|, and |lse| <= A + log(count).
double lse_limit(double score, int64_t depth, int64_t count, DType dtype);

}  // namespace perseid::harness
