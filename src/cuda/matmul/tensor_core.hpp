// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul of f16, bf16 and f64 on tensor cores, the host side: configuration and launch. The kernel
// is device/matmul/tensor_core.hpp. tensor_core_f32.hpp launches it for f32.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/device/matmul/config.hpp"
#include "cuda/matmul/matmul_async.hpp"

namespace perseid::internal::cuda {

// Why TensorCoreMatmul does not take the problem, as a sentence's end; "" where it does.
std::string refuse_tensor_core_matmul(const MatmulProblem& problem);
// `shared_bytes`: that a block may have.
MatmulTensorConfig choose_tensor_core_matmul(const MatmulProblem& problem, int32_t multiprocessors,
                                             int32_t shared_bytes);
// How many leaves of the problem a launch sums: 2, or 1.
int64_t leaves_of_tensor_cores(const MatmulProblem& problem, int32_t shared_bytes);
// Name expressions of the kernels, and their header: one for each layout of the operands, a along k
// and across it, for each of which b along k and across it; for planes, which lie along k, one.
std::vector<std::string> tensor_core_matmul_kernels(const MatmulTensorConfig& config);
inline constexpr const char* kTensorCoreMatmulHeader = "cuda/device/matmul/tensor_core.hpp";

class TensorCoreMatmul {
 public:
  static Status make(const MatmulProblem& problem, Gpu& gpu,
                     std::unique_ptr<TensorCoreMatmul>* made) {
    const auto& [multiprocessors, shared_bytes] =
        std::pair(gpu.facts().multiprocessors, gpu.facts().shared_bytes);
    return make(problem, choose_tensor_core_matmul(problem, multiprocessors, shared_bytes), gpu,
                made);
  }
  static Status make(const MatmulProblem& problem, const MatmulTensorConfig& config, Gpu& gpu,
                     std::unique_ptr<TensorCoreMatmul>* made);

  size_t workspace() const { return async_ == nullptr ? 0 : async_->workspace(); }
  Status run(const MatmulArguments& arguments, void* workspace, void* stream) const;
  // Which kernel was chosen, for explain.
  std::string description() const;

 private:
  TensorCoreMatmul(const MatmulProblem& problem, const MatmulTensorConfig& config, const Gpu& gpu)
      : problem_(problem), config_(config), gpu_(gpu) {}

  MatmulProblem problem_;
  MatmulTensorConfig config_;
  const Gpu& gpu_;
  std::vector<Kernel> kernels_;         // in the order of tensor_core_matmul_kernels
  std::unique_ptr<MatmulAsync> async_;  // null without chunks
};

}  // namespace perseid::internal::cuda
