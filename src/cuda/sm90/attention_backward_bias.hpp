// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward on sm_90, the host's part of bias and its gradient.
#pragma once

#include "cuda/device/sm90/attention/config.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/attention_problem.hpp"

namespace perseid::internal::cuda {

// Blocks of the gradient of bias, and the parts that its sums are cut into.
AttentionBackwardBiasArguments divide_bias(const AttentionProblem& problem,
                                           const AttentionBackwardConfig& config);
// What the parts need of the workspace.
size_t bytes_of_parts(const AttentionBackwardBiasArguments& bias,
                      const AttentionBackwardConfig& config);

// Bias that the copy engine cannot reach is read, and its gradient made, without it: then it is not
// mapped.
Status map_bias(const Gpu& gpu, const AttentionBackwardConfig& config,
                const AttentionBackward& tensors, AttentionBackwardArguments* arguments);
// The kernel that makes the gradient apart; `divided` are those of divide_bias, and its
// part_sums.
Status launch_bias(const Gpu& gpu, const Kernel& kernel, const AttentionBackwardConfig& config,
                   const AttentionBackwardArguments& products,
                   const AttentionBackwardBiasArguments& divided, void* stream);

}  // namespace perseid::internal::cuda
