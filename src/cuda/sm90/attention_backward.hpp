// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward on a GPU of compute capability 9.0, host side: the choice of a configuration,
// the workspace, and the launches. The kernels are in device/sm90/attention/backward.hpp.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cuda/attention/key_chunks.hpp"
#include "cuda/device/sm90/attention/config.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/attention_problem.hpp"

namespace perseid::internal::cuda {

// Depends on dims and masks, never on the batch.
AttentionBackwardConfig choose_attention_backward(const AttentionProblem& problem);
// Name expressions of the kernels, in the order of their launch, and their header.
std::vector<std::string> attention_backward_kernels(const AttentionBackwardConfig& config);
inline constexpr const char* kAttentionBackwardHeader = "cuda/device/sm90/attention/backward.hpp";

// Of the blocks of a cluster, by heads and the length of keys: 0, 1 or 2.
int32_t backward_cluster_log2(const AttentionProblem& problem,
                              const AttentionBackwardConfig& config);
// The arguments of a launch but for tensors and workspace.
AttentionBackwardArguments attention_backward_arguments(const AttentionProblem& problem,
                                                        const AttentionBackwardConfig& config,
                                                        int32_t cluster_log2);

// Why the kernels do not take the backward of a problem whose forward is taken, as a sentence's
// end; "" where they do.
std::string refuse_attention_backward(const AttentionProblem& problem);

class Sm90AttentionBackward {
 public:
  // What make() loads.
  static KernelNames kernels_of(const AttentionProblem& problem, const GpuFacts&) {
    return {kAttentionBackwardHeader,
            attention_backward_kernels(choose_attention_backward(problem))};
  }
  static Status make(const AttentionProblem& problem, Gpu& gpu,
                     std::unique_ptr<Sm90AttentionBackward>* made) {
    return make(problem, choose_attention_backward(problem), gpu, made);
  }
  static Status make(const AttentionProblem& problem, const AttentionBackwardConfig& config,
                     Gpu& gpu, std::unique_ptr<Sm90AttentionBackward>* made);

  ~Sm90AttentionBackward();
  Sm90AttentionBackward(const Sm90AttentionBackward&) = delete;
  Sm90AttentionBackward& operator=(const Sm90AttentionBackward&) = delete;

  size_t workspace() const { return layout_.bytes; }
  Status backward(const AttentionBackward& tensors, std::byte* workspace, void* stream) const;
  // Which kernels were chosen, for explain.
  std::string description() const;

 private:
  // Bytes from the beginning of the workspace.
  struct Layout {
    // lse_log2 comes first.
    size_t delta = 0, sums = 0, dq_semaphore = 0, complete = 0, cursor = 0, timed_out = 0, tile = 0;
    size_t arrived = 0, nonfinite_queries = 0, nonfinite_keys = 0, split_sums = 0, failed = 0;
    size_t leaf_keys = 0, leaf_values = 0, bytes = 0;
  };

  Sm90AttentionBackward(const AttentionProblem& problem, const Gpu& gpu)
      : problem_(problem), gpu_(gpu), chunks_(gpu) {}
  Status make_order();
  Status set_chunks(const AttentionBackward& tensors, std::byte* workspace, void* stream,
                    AttentionBackwardArguments* arguments) const;
  int64_t blocks_of_queries(const AttentionBackwardArguments& fixed) const;
  void lay_out();
  // The maps of a kernel whose tiles are those of the configuration.
  Status map_tensors(const AttentionBackwardConfig& config, const AttentionBackward& tensors,
                     AttentionBackwardArguments* arguments) const;
  // Sums gradients of keys in canonical order.
  Status add_leaves(const AttentionBackwardArguments& arguments, void* stream) const;

  AttentionProblem problem_;
  const Gpu& gpu_;
  AttentionBackwardConfig config_;
  std::vector<Kernel> kernels_;       // prepare, products, finish, gradient of bias or leaves
  AttentionBackwardArguments fixed_;  // without tensors and workspace
  BiasTiles bias_;
  Layout layout_;
  KeyChunks chunks_;          // where they arrive
  int32_t* order_ = nullptr;  // memory of the device
};

}  // namespace perseid::internal::cuda
