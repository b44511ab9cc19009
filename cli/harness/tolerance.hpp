// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// How far a result may be from float64: one rule for the program's checks and every test.
//
// For each output, the largest error against float64 is at most
//   2 * the largest error of the same formula computed naively in the low precision (naive.hpp)
//   + 2 * max |(ref + 0.3 - 0.3) - ref|, evaluated in the output's type, and at most 16 roundings
//   of
//     the largest element: where all are below the roundoff of 0.3, even zeros would pass.
// The limit is never below what a few roundings of the accumulation type amount to in the sums at
// hand (Estimate::magnitude): sums taken in another order differ by as much even where the naive
// formula happens to be exact. And the naive error is a maximum over the output's elements, which
// says little where those are few (a single element may be right by luck): there, roundings of the
// element type count in the same way.
//
// The logsumexp is held to more: each element has a bound of its own (lse_limit), the roundoff of
// the float32 (or float64) computation that every kernel makes it by, whatever the element type.
//
// What is not finite must be equal in kind and sign.
#pragma once

#include <vector>

#include "harness/naive.hpp"

namespace perseid::harness {

// One limit for every element, or one for each.
struct Limit {
  double all = 0;
  std::vector<double> each;  // empty: all
  double at(size_t element) const { return each.empty() ? all : each[element]; }
};

// The error in units of its limit. No error is 0, whatever the limit.
double relative_error(double error, double limit);

// The element that comes nearest to its limit, or passes it the furthest.
struct Deviation {
  double error = 0;  // infinite where one is NaN or infinite and the other is not the same
  double limit = 0;
  size_t element = 0;
  int64_t wrong = 0;  // elements beyond their limits
  bool ok() const { return wrong == 0; }
};

Deviation deviation(const std::vector<double>& values, const std::vector<double>& reference,
                    const Limit& limit, DType dtype);

// By the rule above. `dtype`: of the output; `working`: see naive.hpp.
Limit limit_of(const Estimate& naive, const std::vector<double>& reference, DType dtype,
               DType working);
// The same for all elements.
double error_limit(const Estimate& naive, const std::vector<double>& reference, DType dtype,
                   DType working);

// The largest |value - reference|. Infinite where one is NaN and the other is not, or where they
// are unequal infinities; a reference beyond the range of `dtype` may have become infinite.
double largest_error(const std::vector<double>& values, const std::vector<double>& reference,
                     DType dtype);

}  // namespace perseid::harness
