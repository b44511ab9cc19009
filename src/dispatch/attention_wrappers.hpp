// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Wrappers of GPU attention kernels: a wait for all chunks before them, and a fallback for tensors
// that they refuse.
#pragma once

#include <functional>

#include "dispatch/implementation.hpp"

namespace perseid::internal::dispatch {

using MadeAttention = std::unique_ptr<Executable<Attention>>;

// Forward by kernels that know nothing of chunks of keys and values, after all of them. The wait
// needs up to so many bytes of workspace in addition.
inline constexpr size_t kChunksWorkspace = 32;
AttentionProblem without_chunks(AttentionProblem problem);
Status make_after_chunks(
    const AttentionProblem& problem, cuda::Gpu& gpu,
    const std::function<Status(const AttentionProblem& whole, MadeAttention*)>& make_whole,
    MadeAttention* made);

// A rank's two zigzag pieces, one after the other, as kernels whose rows follow one another have
// them: the second adds to what the first has written. Ragged: cu_seqlens_q has stride 2,
// [batch + 1][2]: where each of the two pieces begins. After it lie batch + 1 numbers: the rows of
// one piece of each sequence, and 0.
AttentionProblem piece_of(const AttentionProblem& problem, int64_t piece);

// The fallback for kernels that refuse some tensors at execution (PERSEID_UNSUPPORTED, before any
// launch). It is made with the plan if its kernels are compiled already, else at its first use,
// which stream capture does not allow.
struct AttentionFallback {
  MadeAttention made;  // null: not yet
  std::function<Status(MadeAttention*)> make;
  size_t forward_workspace = 0, backward_workspace = 0;
  std::function<Status(void* stream, bool* capturing)> is_capturing;
};
MadeAttention with_fallback(MadeAttention first, AttentionFallback fallback);

}  // namespace perseid::internal::dispatch
