// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The oracle: every operation written from its formula, in float64. It shares no code with the fast
// kernels, so an error in one cannot hide in the other. Any dtype is
// read and written by conversion; an all-float64 problem gives the reference that every backend is
// held to.
#pragma once

#include "cpu/executor.hpp"
#include "math/attention_problem.hpp"
#include "math/matmul_problem.hpp"
#include "math/softmax_problem.hpp"

namespace perseid::internal::cpu::reference {

void softmax_forward(const SoftmaxProblem&, const SoftmaxForward&, const Execution&);
void softmax_backward(const SoftmaxProblem&, const SoftmaxBackward&, const Execution&);

// For each worker the scores of 16 query rows and, in backward, the float64 gradients of one head's
// keys and values.
size_t attention_workspace(const AttentionProblem&, int32_t workers, bool backward);
void attention_forward(const AttentionProblem&, const AttentionForward&, const Execution&);
void attention_backward(const AttentionProblem&, const AttentionBackward&, const Execution&);

void matmul(const MatmulProblem&, const MatmulArguments&, const Execution&);

}  // namespace perseid::internal::cpu::reference
