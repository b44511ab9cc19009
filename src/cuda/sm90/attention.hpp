// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention on a GPU of compute capability 9.0, the host's part: which kernel a problem gets, and
// its launch. The kernels are in device/sm90.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device/sm90/attention/config.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/attention_problem.hpp"

namespace perseid::internal::cuda {

// The configuration of the forward kernel, chosen by the problem's lengths, dims and masks, never
// by its batch, so that a row's result does not depend on which others are in the batch.
AttentionForwardConfig choose_attention_forward(const AttentionProblem& problem);
// Name expressions of the kernels, in the order of their launch, and their header: the products,
// and if keys are split what merges their parts, and what stores NaN and infinity under masks. They
// are compiled together: reading their sources takes the compiler as long as a small kernel.
std::vector<std::string> attention_forward_kernels(const AttentionForwardConfig& config);
inline constexpr const char* kAttentionForwardHeader = "cuda/device/sm90/attention/forward.hpp";

// Why the kernels do not take the problem, as a sentence's end; "" where they do.
std::string refuse_attention(const AttentionProblem& problem, const GpuFacts& facts);

class Sm90Attention {
 public:
  static Status make(const AttentionProblem& problem, Gpu& gpu,
                     std::unique_ptr<Sm90Attention>* made) {
    return make(problem, choose_attention_forward(problem), gpu, made);
  }
  static Status make(const AttentionProblem& problem, const AttentionForwardConfig& config,
                     Gpu& gpu, std::unique_ptr<Sm90Attention>* made);

  size_t forward_workspace() const;
  Status forward(const AttentionForward& tensors, std::byte* workspace, void* stream) const;
  // Which kernels were chosen, for explain.
  std::string description() const;

 private:
  Sm90Attention(const AttentionProblem& problem, const Gpu& gpu) : problem_(problem), gpu_(gpu) {}
  struct Workspace;
  Workspace divide_workspace() const;
  // Whether the copy engine reaches it.
  bool map_bias(const Tensor& bias, AttentionForwardArguments* arguments) const;
  Status map_tensors(const AttentionForwardConfig& config, const AttentionForward& tensors,
                     AttentionForwardArguments* arguments) const;

  AttentionProblem problem_;
  const Gpu& gpu_;
  AttentionForwardConfig config_;
  std::vector<Kernel> kernels_;      // products, and what follows them
  AttentionForwardArguments fixed_;  // all but the tensors, the counter and the launch
};

}  // namespace perseid::internal::cuda
