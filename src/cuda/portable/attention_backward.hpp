// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward on sm_80 and up, the host side: configurations and launches. The kernels are
// those of device/portable/attention/backward.hpp.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device/portable/attention/backward_config.hpp"
#include "cuda/portable/planes.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/attention_problem.hpp"

namespace perseid::internal::cuda {

// Why the kernels do not take a problem that forward takes, as a sentence's end; "" where they do.
std::string refuse_portable_attention_backward(const AttentionProblem& problem);
// By the problem's dims and masks and the shared memory that a block may have, never by the batch,
// so that a row's result does not depend on it.
PortableBackwardConfig choose_portable_attention_backward(const AttentionProblem& problem,
                                                          GradientsOf gradients,
                                                          int32_t shared_bytes);
// The gradients that the problem wants, in the order of launches.
std::vector<GradientsOf> gradients_of(const AttentionProblem& problem, int32_t shared_bytes);
// Name expressions of the kernels: preparation, of float32 the planes, each of gradients_of, and
// finishing where dQ is summed in memory.
std::vector<std::string> portable_attention_backward_kernels(const AttentionProblem& problem,
                                                             int32_t shared_bytes);
// The arguments of a launch that the problem determines, and its blocks. Real: of sums, of float64
// double, else float.
template <class Real>
PortableBackwardArgumentsOf<Real> portable_attention_backward_arguments(
    const AttentionProblem& plan, const PortableBackwardConfig& config,
    const AttentionLengths& lengths = {});
template <class Real>
int64_t portable_attention_backward_blocks(const PortableBackwardArgumentsOf<Real>& arguments,
                                           const PortableBackwardConfig& config);
// Returns how many blocks of queries preparation has.
int64_t portable_attention_backward_q_blocks(const AttentionProblem& problem);
// float32 alone has planes.
AttentionPlanes portable_attention_backward_planes(const AttentionProblem& problem,
                                                   int32_t shared_bytes);
AttentionPlanes portable_attention_backward_planes(const AttentionProblem& problem,
                                                   const PortableBackwardConfig& config);
size_t portable_attention_backward_workspace(const AttentionProblem& problem,
                                             const AttentionPlanes& planes);
// Adds the tensors of an execution and the workspace of the plan. Returns the arguments of the
// planes, which are those of the execution's lengths.
template <class Real>
PlanesArguments bind_portable_attention_backward(const AttentionProblem& plan,
                                                 const AttentionPlanes& planes,
                                                 const AttentionBackward& tensors,
                                                 std::byte* workspace,
                                                 PortableBackwardArgumentsOf<Real>* arguments);

inline constexpr const char* kPortableAttentionBackwardHeader =
    "cuda/device/portable/attention/backward.hpp";

class PortableAttentionBackward {
 public:
  // What make() loads.
  static KernelNames kernels_of(const AttentionProblem& problem, const GpuFacts& facts) {
    return {kPortableAttentionBackwardHeader,
            portable_attention_backward_kernels(problem, facts.shared_bytes)};
  }
  static Status make(const AttentionProblem& problem, Gpu& gpu,
                     std::unique_ptr<PortableAttentionBackward>* made) {
    return make(problem, gpu.facts().shared_bytes, gpu, made);
  }
  static Status make(const AttentionProblem& problem, int32_t shared_bytes, Gpu& gpu,
                     std::unique_ptr<PortableAttentionBackward>* made);

  size_t workspace() const { return portable_attention_backward_workspace(problem_, planes_); }
  Status backward(const AttentionBackward& tensors, std::byte* workspace, void* stream) const;
  // Which kernels were chosen, for explain.
  std::string description() const;

 private:
  PortableAttentionBackward(const AttentionProblem& problem, const Gpu& gpu)
      : problem_(problem), gpu_(gpu) {}
  template <class Real>
  Status launch(const AttentionBackward& tensors, std::byte* workspace, void* stream) const;

  AttentionProblem problem_;
  const Gpu& gpu_;
  std::vector<Kernel> kernels_;  // in the order of portable_attention_backward_kernels
  std::vector<PortableBackwardConfig> configs_;  // of those that sum gradients
  AttentionPlanes planes_;
};

}  // namespace perseid::internal::cuda
