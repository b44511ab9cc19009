// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul of f32 by multiply-add, the host side: configuration and launch. The kernel is
// device/matmul/fma.hpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/device/matmul/config.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/matmul_problem.hpp"

namespace perseid::internal::cuda {

// Why the kernel does not take the problem, as a sentence's end; "" where it does.
std::string refuse_fma_matmul(const MatmulProblem& problem);
MatmulFmaConfig choose_fma_matmul(const MatmulProblem& problem, int32_t multiprocessors);
// The configuration that computes the rows and columns of c whose factor is NaN, and no others.
MatmulFmaConfig choose_fixup_matmul(const MatmulProblem& problem, int32_t multiprocessors);
// Name expression of the kernel, and its header.
std::vector<std::string> fma_matmul_kernels(const MatmulFmaConfig& config);
inline constexpr const char* kFmaMatmulHeader = "cuda/device/matmul/fma.hpp";

class FmaMatmul {
 public:
  static Status make(const MatmulProblem& problem, Gpu& gpu, std::unique_ptr<FmaMatmul>* made) {
    return make(problem, choose_fma_matmul(problem, gpu.facts().multiprocessors), gpu, made);
  }
  static Status make(const MatmulProblem& problem, const MatmulFmaConfig& config, Gpu& gpu,
                     std::unique_ptr<FmaMatmul>* made);

  Status run(const MatmulArguments& arguments, void* stream) const;
  // Runs a problem of another batch, with the factors of a fixup.
  Status run(const MatmulProblem& problem, MatmulLaunch launch, void* stream) const;
  // Which kernel was chosen, for explain.
  std::string description() const;

 private:
  FmaMatmul(const MatmulProblem& problem, const MatmulFmaConfig& config, const Gpu& gpu)
      : problem_(problem), config_(config), gpu_(gpu) {}

  MatmulProblem problem_;
  MatmulFmaConfig config_;
  const Gpu& gpu_;
  std::vector<Kernel> kernels_;
};

}  // namespace perseid::internal::cuda
