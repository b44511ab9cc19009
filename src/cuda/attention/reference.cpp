// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/reference.hpp"

#include "cuda/runtime/kernel_name.hpp"

namespace perseid::internal::cuda {
namespace {

// Blocks of a multiprocessor: some more than run at once. Rows are taken in turns.
constexpr int64_t kBlocksEach = 32;

Launch launch_of(int64_t rows, const GpuFacts& facts) {
  return {.blocks = min(rows, kBlocksEach * facts.multiprocessors), .threads = kReferenceThreads};
}

}  // namespace

std::string refuse_reference_attention(const GpuFacts& facts) {
  if (facts.major < 8)
    return concatenate("made for compute capability 8.0 and up, the GPU has ", facts.major, ".",
                       facts.minor);
  return "";
}

std::vector<std::string> reference_attention_kernels(const AttentionProblem& problem,
                                                     bool backward) {
  if (!backward) return {kernel_name("reference_attention_forward", problem.dtype)};
  return {kernel_name("reference_attention_grad_queries", problem.dtype),
          kernel_name("reference_attention_grad_keys", problem.dtype),
          kernel_name("reference_attention_grad_bias", problem.dtype)};
}

Status ReferenceAttention::make(const AttentionProblem& problem, Gpu& gpu,
                                std::unique_ptr<ReferenceAttention>* made) {
  std::unique_ptr<ReferenceAttention> attention(new ReferenceAttention(problem, gpu));
  Status status =
      gpu.load(kReferenceHeader, reference_attention_kernels(problem, false), &attention->kernels_);
  if (status.ok()) *made = std::move(attention);
  return status;
}

Status ReferenceAttention::forward(const AttentionForward& tensors, std::byte*,
                                   void* stream) const {
  if (tensors.out.empty() && tensors.lse.empty()) return {};
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  const ReferenceArguments<AttentionForward> arguments{with_lengths(problem_, tensors.lengths),
                                                       tensors};
  const AttentionProblem& problem = arguments.problem;
  return gpu_.launch(kernels_[0],
                     launch_of(problem.batch * problem.heads * problem.q_len, gpu_.facts()),
                     &arguments, stream);
}

size_t reference_attention_backward_workspace(const AttentionProblem& problem) {
  const int64_t rows =
      problem.heads * (problem.ragged ? problem.total_q : problem.batch * problem.q_len);
  return static_cast<size_t>(rows) * sizeof(ReferenceSums);
}

Status ReferenceAttentionBackward::make(const AttentionProblem& problem, Gpu& gpu,
                                        std::unique_ptr<ReferenceAttentionBackward>* made) {
  std::unique_ptr<ReferenceAttentionBackward> backward(
      new ReferenceAttentionBackward(problem, gpu));
  Status status =
      gpu.load(kReferenceHeader, reference_attention_kernels(problem, true), &backward->kernels_);
  if (status.ok()) *made = std::move(backward);
  return status;
}

Status ReferenceAttentionBackward::backward(const AttentionBackward& tensors, std::byte* workspace,
                                            void* stream) const {
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  const ReferenceArguments<AttentionBackward> arguments{
      with_lengths(problem_, tensors.lengths), tensors,
      reinterpret_cast<ReferenceSums*>(workspace)};
  const AttentionProblem& p = arguments.problem;
  // Also without grad_query: the sums of each row.
  Status status = gpu_.launch(kernels_[0], launch_of(p.batch * p.heads * p.q_len, gpu_.facts()),
                              &arguments, stream);
  if (status.ok() && (!tensors.grad_key.empty() || !tensors.grad_value.empty()))
    status = gpu_.launch(kernels_[1], launch_of(p.batch * p.kv_heads * p.kv_len, gpu_.facts()),
                         &arguments, stream);
  if (status.ok() && !tensors.grad_bias.empty())
    status = gpu_.launch(kernels_[2], launch_of(tensors.grad_bias.elements(), gpu_.facts()),
                         &arguments, stream);
  return status;
}

}  // namespace perseid::internal::cuda
