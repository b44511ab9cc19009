// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Lengths that the host can read, checked before kernels take their bounds from them.
#pragma once

#include "math/tensor.hpp"
#include "op/check.hpp"

namespace perseid::internal::op {

// The most that a number may be, as the end of a sentence: "5, the plan's q_len; make a plan ...".
struct Bound {
  int64_t most;
  const char* of;
};

// That `cumulative`, int32 or int64 [batch + 1], begins with 0, rises by no more than `longest`,
// and ends at most at `total`.
void check_cumulative(Check& check, const char* name, const Tensor& cumulative,
                      const Bound& longest, const Bound& total);

}  // namespace perseid::internal::op
