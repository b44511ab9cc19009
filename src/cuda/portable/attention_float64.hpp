// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward in float64 on sm_80 and up, the host side: configurations and launches. The
// kernel is that of device/portable/attention/float64_forward.hpp.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device/portable/attention/float64_config.hpp"
#include "cuda/portable/attention.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/attention_problem.hpp"

namespace perseid::internal::cuda {

// By the problem's lengths, dims and masks, never by its batch or the GPU, so that a row's result
// depends on neither. This and what follows have packed problems (with_heads_as_rows).
Float64ForwardConfig choose_float64_attention(const AttentionProblem& problem);
// Name expressions of the kernels: with vectors and without.
std::vector<std::string> float64_attention_kernels(const Float64ForwardConfig& config);
// Blocks, which may be more than a launch can have.
int64_t float64_attention_blocks(const AttentionProblem& problem);
int64_t float64_attention_blocks(const Float64Arguments& fixed, const Float64ForwardConfig& config);
// The arguments of a launch that the problem determines.
Float64Arguments float64_attention_arguments(const AttentionProblem& problem,
                                             const Float64ForwardConfig& config);
// Those that follow from the lengths of an execution: keys are split where the plan splits them.
void set_float64_attention_lengths(const AttentionProblem& problem,
                                   const Float64ForwardConfig& config, Float64Arguments* arguments);
// The workspace of split keys: its bytes, and its pointers.
size_t float64_attention_workspace(const Float64Arguments& fixed);
void bind_float64_attention_workspace(std::byte* workspace, Float64Arguments* arguments);
// Adds the tensors of an execution. Returns whether they can be accessed by vectors.
bool bind_float64_attention(const AttentionForward& tensors, Float64Arguments* arguments);

inline constexpr const char* kFloat64AttentionHeader =
    "cuda/device/portable/attention/float64_forward.hpp";

class Float64Attention {
 public:
  // What make() loads.
  static KernelNames kernels_of(const AttentionProblem& problem, const GpuFacts&) {
    return {kFloat64AttentionHeader,
            float64_attention_kernels(choose_float64_attention(with_heads_as_rows(problem)))};
  }
  static Status make(const AttentionProblem& problem, Gpu& gpu,
                     std::unique_ptr<Float64Attention>* made);

  size_t forward_workspace() const { return float64_attention_workspace(fixed_); }
  Status forward(const AttentionForward& tensors, std::byte* workspace, void* stream) const;
  // Which kernel was chosen, for explain.
  std::string description() const;

 private:
  Float64Attention(const AttentionProblem& problem, const Gpu& gpu)
      : problem_(problem),
        config_(choose_float64_attention(with_heads_as_rows(problem))),
        gpu_(gpu) {}

  AttentionProblem problem_;
  Float64ForwardConfig config_;
  Float64Arguments fixed_;
  const Gpu& gpu_;
  std::vector<Kernel> kernels_;  // in the order of float64_attention_kernels
};

}  // namespace perseid::internal::cuda
