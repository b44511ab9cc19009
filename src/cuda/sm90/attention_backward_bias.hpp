// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward on sm_90, host side of bias and its gradient.
#pragma once

#include "cuda/device/sm90/attention/config.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/attention_problem.hpp"

namespace perseid::internal::cuda {

// Tensor maps of bias and its gradient, where TMA can address them; else kernels access them
// without TMA.
Status map_bias(const Gpu& gpu, const AttentionBackwardConfig& config,
                const AttentionBackward& tensors, AttentionBackwardArguments* arguments);
// Launches attention_backward_bias; `tiles` is the result of divide_bias, with split_sums set.
Status launch_bias(const Gpu& gpu, const Kernel& kernel, const AttentionBackwardConfig& config,
                   const AttentionBackwardArguments& products, const BiasTiles& tiles,
                   void* stream);

}  // namespace perseid::internal::cuda
