// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Fixup of attention forward (attention/row_fixup.hpp) on sm_90a. Without split-KV the consumers do
// this after their second pass (forward_consumer.hpp); with split-KV the kernel attention_fixup
// runs after attention_combine and returns at once if no tile was listed. A warp has a row.
#pragma once

#include "cuda/device/attention/combine.hpp"
#include "cuda/device/attention/row_fixup.hpp"
#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/ptx/memory_order.hpp"
#include "cuda/device/sm90/attention/config.hpp"

namespace perseid::internal::cuda {

template <AttentionForwardConfig C>
__global__ void __launch_bounds__(32 * kRowWarps)
    attention_fixup(const __grid_constant__ AttentionForwardArguments a) {
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  if (ptx::load_acquire(&a.counter->nonfinite) != a.launch) return;
  fixup_rows<C, kRowWarps>(a);
}

}  // namespace perseid::internal::cuda
