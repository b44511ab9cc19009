// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul of 8-bit types on sm_90a, the host side: configuration, scales and launch. The kernel is
// device/sm90/matmul/matmul.hpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/device/sm90/matmul/config.hpp"
#include "cuda/matmul/matmul_async.hpp"
#include "cuda/runtime/gpu.hpp"
#include "cuda/sm90/split_k.hpp"
#include "math/matmul_problem.hpp"

namespace perseid::internal::cuda {

// Why the kernels do not take the problem, as a sentence's end; "" where they do.
std::string refuse_sm90_f8_matmul(const MatmulProblem& problem);
Sm90MatmulConfig choose_sm90_f8_matmul(const MatmulProblem& problem, int32_t multiprocessors);
// Name expressions of the kernels; their header is kSm90MatmulHeader. Where the types of a and b
// differ, a second one for the transposed product.
std::vector<std::string> sm90_f8_matmul_kernels(const Sm90MatmulConfig& config);

// wgmma multiplies 8-bit operands along k alone: the rows of a and the columns of b are contiguous.
// Other layouts, and tensors that TMA does not take, fail with a sentence.
class Sm90F8Matmul {
 public:
  static Status make(const MatmulProblem& problem, Gpu& gpu, std::unique_ptr<Sm90F8Matmul>* made) {
    return make(problem, choose_sm90_f8_matmul(problem, gpu.facts().multiprocessors), gpu, made);
  }
  static Status make(const MatmulProblem& problem, const Sm90MatmulConfig& config, Gpu& gpu,
                     std::unique_ptr<Sm90F8Matmul>* made);

  size_t workspace() const { return splits_at() + splits_.workspace(problem_.batch); }
  Status run(const MatmulArguments& arguments, void* workspace, void* stream) const;
  // Which kernel was chosen, for explain.
  std::string description() const;

 private:
  Sm90F8Matmul(const MatmulProblem& problem, const Sm90MatmulConfig& config, const Gpu& gpu);

  // In the workspace.
  size_t splits_at() const {
    return async_ == nullptr
               ? 0
               : static_cast<size_t>(round_up(static_cast<int64_t>(async_->workspace()), 16));
  }

  MatmulProblem problem_;
  Sm90MatmulConfig config_;
  const Gpu& gpu_;
  SplitKLaunches splits_;
  std::vector<Kernel> kernels_;         // in the order of sm90_f8_matmul_kernels
  std::unique_ptr<MatmulAsync> async_;  // null without chunks
};

}  // namespace perseid::internal::cuda
