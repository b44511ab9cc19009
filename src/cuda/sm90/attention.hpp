// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention forward on sm_90, the host side: the kernels' configuration and their launches. The
// kernels are in device/sm90/attention.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cuda/attention/key_chunks.hpp"
#include "cuda/device/sm90/attention/config.hpp"
#include "cuda/portable/planes.hpp"
#include "math/attention_problem.hpp"

namespace perseid::internal::cuda {

// The configuration of the forward kernel, chosen by the problem's lengths, dims and masks, never
// by its batch, so that a row's result does not depend on which others are in the batch.
AttentionForwardConfig choose_attention_forward(const AttentionProblem& problem);
// Name expressions of the kernels, in the order of their launch, and their header: the main kernel
// (of float32 after the one that writes planes, which is last);
// with split keys, the one that merges the splits, and under a mask the fixup of non-finite
// results; with tiles of bias, the main kernel for a bias that TMA cannot load.
std::vector<std::string> attention_forward_kernels(const AttentionForwardConfig& config);
inline constexpr const char* kAttentionForwardHeader = "cuda/device/sm90/attention/forward.hpp";

// Sets what follows from the lengths, but not how heads are packed and where keys are split:
// shorter tensors have those of the plan.
void set_attention_lengths(const AttentionProblem& problem, const AttentionForwardConfig& config,
                           AttentionForwardArguments* arguments);

// A Q tile, and a step of backward, have rows of one piece of a rank.
inline constexpr int64_t kPieceUnit = 128;

// Whether a head dim is beyond those of backward, and keys and values arrive in pieces.
bool has_large_dims(const AttentionProblem& problem);

// Why the kernels do not take the problem, as a sentence's end; "" where they do.
std::string refuse_attention(const AttentionProblem& problem, const GpuFacts& facts);

class Sm90Attention {
 public:
  // What make() loads.
  static KernelNames kernels_of(const AttentionProblem& problem, const GpuFacts&) {
    return {kAttentionForwardHeader, attention_forward_kernels(choose_attention_forward(problem))};
  }
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
  Sm90Attention(const AttentionProblem& problem, const Gpu& gpu)
      : problem_(problem), gpu_(gpu), chunks_(gpu) {}
  struct Workspace;
  Workspace divide_workspace(const AttentionForwardArguments& fixed) const;
  // False if TMA cannot load the bias.
  bool map_bias(const Tensor& bias, AttentionForwardArguments* arguments) const;
  Status map_tensors(const AttentionForwardConfig& config, const AttentionForward& tensors,
                     AttentionForwardArguments* arguments) const;
  // Of float32. Decides whether queries are copied.
  Status map_planes(const Tensor& query, PlanesArguments* planes,
                    AttentionForwardArguments* arguments) const;
  // At once; a block holds a multiprocessor.
  int32_t most_blocks() const {
    const int32_t most = gpu_.facts().multiprocessors - (config_.async ? problem_.spared : 0);
    return max(1, most / config_.cluster) * config_.cluster;
  }

  AttentionProblem problem_;
  const Gpu& gpu_;
  KeyChunks chunks_;
  AttentionForwardConfig config_;
  std::vector<Kernel> kernels_;      // in the order of attention_forward_kernels
  AttentionForwardArguments fixed_;  // all but the tensors, the counter and the launch
  AttentionPlanes planes_;           // of float32
};

}  // namespace perseid::internal::cuda
