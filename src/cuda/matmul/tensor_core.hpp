// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul on a GPU, the host's part: which kernel a problem gets, and its launch. The kernels are in
// device/matmul.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "cuda/device/matmul/config.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/matmul_problem.hpp"

namespace perseid::internal::cuda {

// f16 and bf16 are for tensor cores, f32 and f64 for multiply-add. Sums do not depend on the tile.
using MatmulChoice = std::variant<MatmulTensorConfig, MatmulFmaConfig>;
bool matmul_on_tensor_cores(const MatmulProblem& problem);
MatmulChoice choose_matmul(const MatmulProblem& problem, int32_t multiprocessors);
// Name expressions of the kernels of a choice, and their header. For tensor cores: one for each way
// in which the operands may lie, a along k and across it, for each of which b is.
std::vector<std::string> matmul_kernels(const MatmulChoice& choice);
const char* matmul_header(const MatmulChoice& choice);

class MatmulOnGpu {
 public:
  static Status make(const MatmulProblem& problem, Gpu& gpu, std::unique_ptr<MatmulOnGpu>* made) {
    return make(problem, choose_matmul(problem, gpu.facts().multiprocessors), gpu, made);
  }
  static Status make(const MatmulProblem& problem, const MatmulChoice& choice, Gpu& gpu,
                     std::unique_ptr<MatmulOnGpu>* made);

  Status run(const MatmulArguments& arguments, void* stream) const;
  // Which kernel was chosen, for explain.
  std::string description() const;

 private:
  MatmulOnGpu(const MatmulProblem& problem, const MatmulChoice& choice, const Gpu& gpu)
      : problem_(problem), choice_(choice), gpu_(gpu) {}

  MatmulProblem problem_;
  MatmulChoice choice_;
  const Gpu& gpu_;
  std::vector<Kernel> kernels_;
};

}  // namespace perseid::internal::cuda
