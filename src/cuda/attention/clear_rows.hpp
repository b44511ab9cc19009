// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Rows of queries that lengths of their own leave out (q_lens), cleared after the kernels of
// attention on any architecture.
#pragma once

#include <vector>

#include "cuda/device/attention/arguments.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/attention_problem.hpp"

namespace perseid::internal::cuda {

// Name expression of the kernel, and its header.
inline constexpr const char* kClearRowsKernel = "perseid::internal::cuda::clear_rows";
inline constexpr const char* kClearRowsHeader = "cuda/device/attention/clear_rows.hpp";

// Arguments of a launch that clears `rows` (out or the gradient of query) and sets `lse`, if not
// absent.
template <class Tensors>  // AttentionForward or AttentionBackward
ClearRowsArguments clear_rows_arguments(const AttentionProblem& problem, const Tensors& tensors,
                                        const Tensor& rows, const Tensor& lse);

class ClearRows {
 public:
  // Loads the kernel where the problem has q_lens.
  Status make(const AttentionProblem& problem, Gpu& gpu);
  // Queues the work, where there is any.
  template <class Tensors>
  Status launch(const Tensors& tensors, const Tensor& rows, const Tensor& lse, void* stream) const;

 private:
  const Gpu* gpu_ = nullptr;  // null: there are no such rows
  AttentionProblem problem_;
  std::vector<Kernel> kernels_;
};

}  // namespace perseid::internal::cuda
