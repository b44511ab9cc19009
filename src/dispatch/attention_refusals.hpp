// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What several implementations of attention refuse, each as the end of a sentence; "" where they do
// not.
#pragma once

#include <string>

#include "dispatch/implementation.hpp"

namespace perseid::internal::dispatch {

// float32 scores must hold query * key for any scale, and on GPUs bias / scale down to values that
// count as -inf.
std::string refuse_scale(const AttentionProblem& problem, bool divides_bias);

// Whose backward by cuda:sm90 has kernels of its own, or is by those of any GPU.
bool has_other_backward(const AttentionProblem& problem);

// ---- Canonical order ----
//
// All ranks take the implementation that one rank takes, whose kernels have the same bits for a row
// on any rank. So what decides is the same for any number of ranks; where the rows of a rank are
// refused nevertheless, nothing takes them.

// Refuses canonical order.
inline constexpr const char* kOrderOfRows =
    "sums in an order that depends on the number of queries";

// The problem of one rank that has the queries of all.
AttentionProblem whole_of(AttentionProblem problem);
// Whether cuda:sm90 computes zigzag pieces one after the other.
bool takes_pieces(const AttentionProblem& problem, const Device& device);
// Of cuda:sm90, all that it refuses.
std::string refuse_sm90_in_order(const AttentionProblem& problem, const Device& device);
// Of the other implementations of GPUs. Leaves of gradients are plans of their own
// (collective/context_leaves.hpp).
std::string refuse_order(const AttentionProblem& problem, const Device& device);

}  // namespace perseid::internal::dispatch
