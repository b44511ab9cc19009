// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The mask of attention's dropout, written by a GPU.
#pragma once

#include "cuda/device/attention/dropout_mask.hpp"
#include "cuda/runtime/gpu.hpp"

namespace perseid::internal::cuda {

// Name expression of the kernel, and its header.
inline constexpr const char* kDropoutMaskKernel = "perseid::internal::cuda::fill_dropout_mask";
inline constexpr const char* kDropoutMaskHeader = "cuda/device/attention/dropout_mask.hpp";

// `mask`: uint8 [batch, heads, q_len, kv_len], not empty. The first call loads the kernel.
Status write_dropout_mask(Gpu& gpu, const Dropout& dropout, const Tensor& mask, void* stream);

}  // namespace perseid::internal::cuda
