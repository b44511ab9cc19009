// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Split-KV combine of attention forward on sm_90a (attention/combine.hpp).
#pragma once

#include "cuda/device/attention/combine.hpp"
#include "cuda/device/sm90/attention/config.hpp"

namespace perseid::internal::cuda {

template <DType D>
__global__ void __launch_bounds__(32 * kRowWarps, 8)
    attention_combine(const __grid_constant__ AttentionForwardArguments a) {
  combine_splits<D>(a, 1);
}

}  // namespace perseid::internal::cuda
