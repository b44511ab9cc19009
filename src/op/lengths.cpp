// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "op/lengths.hpp"

namespace perseid::internal::op {

void check_cumulative(Check& check, const char* name, const Tensor& cumulative,
                      const Bound& longest, const Bound& total) {
  int64_t previous = read_length(cumulative, 0);
  check.require(previous == 0, name, "[0] is ", previous,
                ", expected 0: the first sequence begins at row 0");
  if (cumulative.stride[0] == 0) return;  // every entry is the first
  for (int64_t i = 1; i < cumulative.shape[0] && check.ok(); ++i) {
    const int64_t next = read_length(cumulative, i);
    check.require(next >= previous, name, "[", i, "] is ", next, ", expected at least ", previous,
                  ", the one before it: cumulative lengths rise") &&
        check.require(next - previous <= longest.most, name, " gives sequence ", i - 1,
                      " a length of ", next - previous, ", expected at most ", longest.most,
                      longest.of);
    previous = next;
  }
  check.require(previous <= total.most, name, " ends at ", previous, ", expected at most ",
                total.most, total.of);
}

}  // namespace perseid::internal::op
