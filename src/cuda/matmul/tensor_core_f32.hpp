// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul of f32 on tensor cores of any GPU by products of f16, the host side: a kernel splits a and
// b into planes (device/split/split.hpp), matmul_tensor_core multiplies them
// (device/matmul/tensor_core.hpp), and a fixup computes the rows and columns that f16 cannot carry
// (device/matmul/fma.hpp).
#pragma once

#include <memory>
#include <string>

#include "cuda/matmul/fma.hpp"
#include "cuda/matmul/split.hpp"
#include "cuda/matmul/tensor_core.hpp"

namespace perseid::internal::cuda {

// Takes what refuse_split_matmul does not refuse, with any strides, but no chunks.
class TensorCoreF32Matmul {
 public:
  static Status make(const MatmulProblem& problem, Gpu& gpu,
                     std::unique_ptr<TensorCoreF32Matmul>* made) {
    const auto& [multiprocessors, shared_bytes] =
        std::pair(gpu.facts().multiprocessors, gpu.facts().shared_bytes);
    return make(problem, choose_tensor_core_matmul(problem, multiprocessors, shared_bytes), gpu,
                made);
  }
  static Status make(const MatmulProblem& problem, const MatmulTensorConfig& config, Gpu& gpu,
                     std::unique_ptr<TensorCoreF32Matmul>* made);

  // The planes of as many batch entries as are multiplied at a time.
  size_t workspace() const { return split_.bytes(problem_); }
  Status run(const MatmulArguments& arguments, void* workspace, void* stream) const;
  // Which kernel was chosen, for explain.
  std::string description() const;

 private:
  TensorCoreF32Matmul(const MatmulProblem& problem, const MatmulTensorConfig& config,
                      const Gpu& gpu)
      : problem_(problem), config_(config), gpu_(gpu) {}
  Status multiply(const MatmulProblem& problem, MatmulLaunch launch, void* workspace,
                  void* stream) const;

  MatmulProblem problem_;
  MatmulTensorConfig config_;
  const Gpu& gpu_;
  std::vector<Kernel> kernels_;
  Split split_;
  std::unique_ptr<FmaMatmul> fixup_;
};

}  // namespace perseid::internal::cuda
