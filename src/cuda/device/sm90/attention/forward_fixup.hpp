// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Fixup of attention forward (attention/row_fixup.hpp) on sm_90a. Without split-KV the consumers do
// this after their second pass (forward_consumer.hpp); with split-KV the kernel attention_fixup
// runs after attention_combine and returns at once if no tile was listed. A warp has a row.
#pragma once

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
  const int heads = a.heads << a.pack_gqa, warps = static_cast<int>(gridDim.x) * kRowWarps;
  const int warp = static_cast<int>(blockIdx.x) * kRowWarps + static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
  for (int batch = 0; batch < a.batch; ++batch) {
    const AttentionSequence sequence = find_sequence<C.lengths>(a, batch);
    const int64_t rows = int64_t{heads} * sequence.q_len;
#pragma unroll 1
    for (int64_t row = warp; row < rows; row += warps)
      fixup_row<C>(a, sequence, static_cast<int>(row / sequence.q_len),
                   static_cast<int>(row % sequence.q_len));
  }
}

}  // namespace perseid::internal::cuda
