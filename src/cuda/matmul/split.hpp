// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Splitting float32 operands into planes of f16, the host side: which products are made so, and the
// planes of both operands. The kernel is device/split/split.hpp.
#pragma once

#include <string>
#include <vector>

#include "cuda/device/split/config.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/matmul_problem.hpp"

namespace perseid::internal::cuda {

// Why an f32 product is not made of planes, as a sentence's end; "" where it may be.
std::string refuse_split_matmul(const MatmulProblem& problem);
// Why multiply-add is faster, as a sentence's end; "" where it is not.
std::string avoid_split_matmul(const MatmulProblem& problem);

inline constexpr const char* kSplitHeader = "cuda/device/split/split.hpp";
std::vector<std::string> split_kernels(const SplitConfig& config);

class Split {
 public:
  Status make(const SplitConfig& config, Gpu& gpu);

  const SplitConfig& config() const { return config_; }
  // Batch entries of a product whose planes are in the workspace at a time, and the bytes of those;
  // a multiple of 256.
  static int64_t entries_at_a_time(const MatmulProblem& problem);
  size_t bytes(const MatmulProblem& problem) const {
    return bytes(problem, entries_at_a_time(problem));
  }
  size_t bytes(const MatmulProblem& problem, int64_t entries) const;
  // a and b of a launch over so many entries of the problem, and over all or some of its rows and
  // columns: their planes and factors lie in a workspace of so many bytes, which begins at a
  // multiple of 256, those of b where they lie for all rows and columns.
  struct Operands {
    SplitOperand a, b;
  };
  Operands place(const MatmulProblem& problem, const MatmulLaunch& launch, int64_t entries,
                 void* workspace) const;
  // The context must be current. Operands without lines are left out.
  Status run(const Gpu& gpu, const Operands& operands, int64_t depth, void* stream) const;

 private:
  size_t bytes_of(int64_t lines, int64_t depth) const;

  SplitConfig config_;
  std::vector<Kernel> kernels_;
};

// An operand's factors, as the kernel that multiplies planes takes them.
inline MatmulFactors factors_of(const SplitOperand& operand) {
  return {operand.factors, operand.entries == 1 ? 0 : operand.lines};
}

// Calls multiply(problem, arguments) for as many entries of the batch as are split at a time.
template <class Multiply>
Status for_each_split(const MatmulProblem& problem, const MatmulArguments& arguments,
                      const Multiply& multiply) {
  const int64_t most = Split::entries_at_a_time(problem);
  for (int64_t first = 0; first < problem.batch; first += most) {
    MatmulProblem part = problem;
    part.batch = min(most, problem.batch - first);
    MatmulArguments of_part = arguments;
    for (Tensor* tensor : {&of_part.a, &of_part.b, &of_part.c, &of_part.c0}) {
      if (tensor->data == nullptr) continue;
      tensor->data = static_cast<std::byte*>(tensor->data) +
                     first * tensor->stride[0] * size_of(tensor->dtype);
      tensor->shape[0] = part.batch;
    }
    if (Status status = multiply(part, of_part); !status.ok()) return status;
  }
  return {};
}

}  // namespace perseid::internal::cuda
