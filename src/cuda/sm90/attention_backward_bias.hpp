// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward on sm_90, host side of bias and its gradient.
#pragma once

#include "cuda/device/sm90/attention/config.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/attention_problem.hpp"

namespace perseid::internal::cuda {

// Tiles of the gradient of a repeated bias, and the splits of their sums.
AttentionBackwardBiasArguments divide_bias(const AttentionProblem& problem,
                                           const AttentionBackwardConfig& config);
// Workspace of the split sums.
size_t bytes_of_splits(const AttentionBackwardBiasArguments& bias,
                       const AttentionBackwardConfig& config);

// Tensor maps of bias and its gradient, where TMA can address them; else kernels access them
// without TMA.
Status map_bias(const Gpu& gpu, const AttentionBackwardConfig& config,
                const AttentionBackward& tensors, AttentionBackwardArguments* arguments);
// Launches attention_backward_bias; `divided` is the result of divide_bias, with split_sums set.
Status launch_bias(const Gpu& gpu, const Kernel& kernel, const AttentionBackwardConfig& config,
                   const AttentionBackwardArguments& products,
                   const AttentionBackwardBiasArguments& divided, void* stream);

}  // namespace perseid::internal::cuda
