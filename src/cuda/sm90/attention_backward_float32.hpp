// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward for f32 on a GPU of compute capability 9.0, host side. The kernels are in
// device/sm90/attention/backward_planes.hpp.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device/sm90/attention/config.hpp"
#include "cuda/portable/planes.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/attention_problem.hpp"

namespace perseid::internal::cuda {

// Why the kernels do not take the backward of a problem in f32 whose forward is taken, as a
// sentence's end; "" where they do. Those of any GPU (cuda/portable) take the others.
std::string refuse_float32_attention_backward(const AttentionProblem& problem);
// Depends on dims and masks, never on the batch.
AttentionBackwardConfig choose_float32_attention_backward(const AttentionProblem& problem);
// Name expressions of the kernels, in the order of their launch, and their header.
std::vector<std::string> float32_attention_backward_kernels(const AttentionBackwardConfig& config);
inline constexpr const char* kFloat32AttentionBackwardHeader =
    "cuda/device/sm90/attention/backward_planes.hpp";

class Sm90Float32AttentionBackward {
 public:
  // What make() loads.
  static KernelNames kernels_of(const AttentionProblem& problem, const GpuFacts&) {
    return {kFloat32AttentionBackwardHeader,
            float32_attention_backward_kernels(choose_float32_attention_backward(problem))};
  }
  static Status make(const AttentionProblem& problem, Gpu& gpu,
                     std::unique_ptr<Sm90Float32AttentionBackward>* made);

  size_t workspace() const { return layout_.planes + planes_.workspace(); }
  Status backward(const AttentionBackward& tensors, std::byte* workspace, void* stream) const;
  // Which kernels were chosen, for explain.
  std::string description() const;

 private:
  // Bytes from the beginning of the workspace; numbers of queries come first.
  struct Layout {
    size_t lse_log2 = 0, delta = 0, sums = 0, planes = 0;
  };

  Sm90Float32AttentionBackward(const AttentionProblem& problem, const Gpu& gpu)
      : problem_(problem), gpu_(gpu) {}
  // Decides whether keys and values are copied.
  Status map_rows(const AttentionBackward& tensors,
                  AttentionBackwardPlanesArguments* arguments) const;

  AttentionProblem problem_;
  const Gpu& gpu_;
  AttentionBackwardConfig config_;
  std::vector<Kernel> kernels_;             // in the order of float32_attention_backward_kernels
  AttentionBackwardPlanesArguments fixed_;  // without tensors and workspace
  AttentionPlanes planes_;
  Layout layout_;
};

}  // namespace perseid::internal::cuda
