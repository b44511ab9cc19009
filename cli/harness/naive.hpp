// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Every operation as somebody would first write it in the low precision: each intermediate array
// rounded to the element type, sums in float32 (float64 for f64), one element after another. Its
// error is the measure of what a kernel may err (see check.hpp).
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
};
using Estimates = std::map<std::string, Estimate, std::less<>>;

// Of every output of the problem. `inputs`: in float64 and packed. `keep`: the dropout mask
// [batch, heads, q_len, kv_len], empty without dropout.
Estimates naive(const Problem& problem, const Operands& inputs, const std::vector<double>& keep);

// The type that intermediate arrays have in the naive formula, and that of sums over it.
DType working_type(const Problem& problem);
DType accumulation_type(DType working);

}  // namespace perseid::harness
