// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What host and device code of cuda:reference share (reference.hpp).
#pragma once

#include "math/attention_problem.hpp"

namespace perseid::internal::cuda {

inline constexpr int kReferenceThreads = 128;  // of a block

// Of a query row: p = exp(score - maximum) / sum, and grad_lse - sum_k p_k grad_p_k.
struct ReferenceSums {
  double maximum, sum, shift;
};

template <class Tensors>  // AttentionForward or AttentionBackward
struct ReferenceArguments {
  AttentionProblem problem;
  Tensors tensors;
  ReferenceSums* sums = nullptr;  // backward: [batch, heads, q_len], ragged [heads, total_q]
};
// The parameters of a kernel have at most 4 KB.
static_assert(sizeof(ReferenceArguments<AttentionBackward>) <= 4096);

// Of a block, in shared memory.
struct ReferenceShared {
  double number[kReferenceThreads];
  bool seen[kReferenceThreads];
};

}  // namespace perseid::internal::cuda
