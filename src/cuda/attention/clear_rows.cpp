// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/clear_rows.hpp"

#include "cuda/attention/arguments.hpp"

namespace perseid::internal::cuda {

template <class Tensors>
ClearRowsArguments clear_rows_arguments(const AttentionProblem& problem, const Tensors& tensors,
                                        const Tensor& rows, const Tensor& lse) {
  ClearRowsArguments arguments;
  static_cast<AttentionArguments&>(arguments) = arguments_of(problem);
  bind(tensors, &arguments);
  arguments.rows = rows_in_memory(with_batch(rows));
  arguments.columns = static_cast<int32_t>(rows.shape[rows.rank - 1]);
  arguments.element_bytes = static_cast<int32_t>(size_of(rows.dtype));
  arguments.lse = rows_in_memory(with_element(lse));
  arguments.lse_bytes = static_cast<int32_t>(size_of(lse.dtype));
  return arguments;
}

Status ClearRows::make(const AttentionProblem& problem, Gpu& gpu) {
  // Rows beyond those of a rank's piece are the next piece's.
  if (!problem.q_lens || !problem.rows.all()) return {};
  problem_ = problem;
  gpu_ = &gpu;
  return gpu.load(kClearRowsHeader, {kClearRowsKernel}, &kernels_);
}

template <class Tensors>
Status ClearRows::launch(const Tensors& tensors, const Tensor& rows, const Tensor& lse,
                         void* stream) const {
  if (gpu_ == nullptr || !rows.present() || rows.elements() == 0) return {};
  AttentionProblem problem = problem_;
  if constexpr (requires { tensors.lengths; }) problem = with_lengths(problem, tensors.lengths);
  const ClearRowsArguments arguments = clear_rows_arguments(problem, tensors, rows, lse);
  const Gpu::Current current(*gpu_);
  if (!current.status().ok()) return current.status();
  return gpu_->launch(kernels_[0],
                      {.blocks = problem.batch * problem.heads, .threads = kClearRowsThreads},
                      &arguments, stream);
}

template ClearRowsArguments clear_rows_arguments(const AttentionProblem&, const AttentionForward&,
                                                 const Tensor&, const Tensor&);
template ClearRowsArguments clear_rows_arguments(const AttentionProblem&, const AttentionBackward&,
                                                 const Tensor&, const Tensor&);
template Status ClearRows::launch(const AttentionForward&, const Tensor&, const Tensor&,
                                  void*) const;
template Status ClearRows::launch(const AttentionBackward&, const Tensor&, const Tensor&,
                                  void*) const;

}  // namespace perseid::internal::cuda
