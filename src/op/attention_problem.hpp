// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention's descriptor: what it must be, and how much work it describes.
#pragma once

#include <array>
#include <vector>

#include "dispatch/explain.hpp"
#include "math/attention_problem.hpp"
#include "op/tensor_argument.hpp"

namespace perseid::internal::op {

using Extent4 = std::array<Extent, 4>;
// [batch, heads, q_len, kv_len]: what bias and masks broadcast against.
Extent4 score_extents(const AttentionProblem& problem);

// `chunks`: the boundaries of the chunks of key and value, to which the problem points.
Status read_problem(const perseid_attention_desc& desc, const QueryRows& rows,
                    std::vector<int64_t>* chunks, AttentionProblem* problem);

// The pairs of a query and a key it sees, over all batch entries and heads, before a boolean mask
// is asked. Lengths that are known at execution alone are taken as the mean (ragged) or the longest
// (kv_lens). In closed form: sizes may be as large as a descriptor allows.
double visible_pairs(const AttentionProblem& problem);

// The operation, the problem and its work.
dispatch::Explanation describe(const AttentionProblem& problem);

// What of dropout is wrong, where the probability is not one or the counter of the random numbers
// is too short for the problem; "" where nothing is.
std::string dropout_flaw(double probability, int64_t batch_heads, int64_t q_len, int64_t kv_len);

}  // namespace perseid::internal::op
