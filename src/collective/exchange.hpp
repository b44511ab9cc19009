// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// All-gather, reduce-scatter, all-reduce and barrier, through the inboxes of the slab: each rank
// writes a piece into its own, and reads those of the others in place. An inbox has two halves,
// so that a rank writes the next piece while others read the last one; what bounds a transfer is
// one copy in and one copy out.
//
// Tensors are row-major without gaps. Every rank says what it calls with; where they differ, all
// ranks return the same sentence, and the group stays usable.
#pragma once

#include "collective/group.hpp"
#include "collective/reduce.hpp"

namespace perseid::internal::collective {

Status barrier(Group& group, uint64_t deadline_ns);
// Waits until all ranks have come, within an operation.
Status meet_within(Group& group, const Operation& operation);
// Output: the inputs of all ranks, one after the other along dimension 0, which may be uneven.
Status all_gather(Group& group, const DLTensor* input, const DLTensor* output,
                  uint64_t deadline_ns);
// Rank r of P gets rows [r m / P, (r + 1) m / P) of the reduced input [m, ...].
Status reduce_scatter(Group& group, Reduction reduction, const DLTensor* input,
                      const DLTensor* output, uint64_t deadline_ns);
// Output may be the input.
Status all_reduce(Group& group, Reduction reduction, const DLTensor* input, const DLTensor* output,
                  uint64_t deadline_ns);

}  // namespace perseid::internal::collective
