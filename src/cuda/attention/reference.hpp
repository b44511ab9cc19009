// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward and backward by its formula in float64 on a GPU, the host side. The kernels are
// those of device/attention/reference.hpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/device/attention/reference_arguments.hpp"
#include "cuda/runtime/gpu.hpp"

namespace perseid::internal::cuda {

// Why the kernels do not take the problem, as a sentence's end; "" where they do.
std::string refuse_reference_attention(const GpuFacts& facts);

inline constexpr const char* kReferenceHeader = "cuda/device/attention/reference.hpp";
// Name expressions of the kernels.
std::vector<std::string> reference_attention_kernels(const AttentionProblem& problem,
                                                     bool backward);

class ReferenceAttention {
 public:
  static constexpr bool kClearsRows = true;  // those that q_lens leaves out
  // What make() loads.
  static KernelNames kernels_of(const AttentionProblem& problem, const GpuFacts&) {
    return {kReferenceHeader, reference_attention_kernels(problem, false)};
  }
  static Status make(const AttentionProblem& problem, Gpu& gpu,
                     std::unique_ptr<ReferenceAttention>* made);

  size_t forward_workspace() const { return 0; }
  Status forward(const AttentionForward& tensors, std::byte* workspace, void* stream) const;
  // Which kernels they are, for explain.
  std::string description() const { return "forward: a query a block, in float64"; }

 private:
  ReferenceAttention(const AttentionProblem& problem, const Gpu& gpu)
      : problem_(problem), gpu_(gpu) {}

  AttentionProblem problem_;
  const Gpu& gpu_;
  std::vector<Kernel> kernels_;
};

size_t reference_attention_backward_workspace(const AttentionProblem& problem);

class ReferenceAttentionBackward {
 public:
  // What make() loads.
  static KernelNames kernels_of(const AttentionProblem& problem, const GpuFacts&) {
    return {kReferenceHeader, reference_attention_kernels(problem, true)};
  }
  static Status make(const AttentionProblem& problem, Gpu& gpu,
                     std::unique_ptr<ReferenceAttentionBackward>* made);

  size_t workspace() const { return reference_attention_backward_workspace(problem_); }
  Status backward(const AttentionBackward& tensors, std::byte* workspace, void* stream) const;
  std::string description() const { return "backward: a query, a key or a bias a block"; }

 private:
  ReferenceAttentionBackward(const AttentionProblem& problem, const Gpu& gpu)
      : problem_(problem), gpu_(gpu) {}

  AttentionProblem problem_;
  const Gpu& gpu_;
  std::vector<Kernel> kernels_;
};

}  // namespace perseid::internal::cuda
