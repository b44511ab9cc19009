// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Tools of the softmax tests: a problem, and its execution by the kernel table.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "compare.hpp"
#include "cpu/kernel_table.hpp"
#include "cpu/reference/reference.hpp"
#include "tensor.hpp"

namespace perseid::internal::softmax_tests {

using namespace tests;

inline const cpu::KernelTable& table() {
  std::string error;
  static const cpu::KernelTable* const selected = cpu::select_kernel_table(error);
  EXPECT_NE(selected, nullptr) << error;
  return *selected;
}

inline void forward(const SoftmaxProblem& problem, const SoftmaxForward& arguments,
                    int32_t threads = 2) {
  const auto pool = cpu::make_thread_pool(threads);
  const Array workspace({static_cast<int64_t>(table().softmax_workspace(problem, threads, false))},
                        DType::kBool);
  table().softmax_forward(problem, arguments, {*pool, workspace.tensor.as<std::byte>()});
  workspace.expect_guards();
}
inline void backward(const SoftmaxProblem& problem, const SoftmaxBackward& arguments,
                     int32_t threads = 2) {
  const auto pool = cpu::make_thread_pool(threads);
  const Array workspace({static_cast<int64_t>(table().softmax_workspace(problem, threads, true))},
                        DType::kBool);
  table().softmax_backward(problem, arguments, {*pool, workspace.tensor.as<std::byte>()});
  workspace.expect_guards();
}

inline SoftmaxProblem make_problem(const Shape& shape, int32_t dim, DType dtype = DType::kF32,
                                   DType out_dtype = DType::kNone) {
  SoftmaxProblem problem;
  problem.dtype = dtype;
  problem.out_dtype = out_dtype == DType::kNone ? dtype : out_dtype;
  problem.rank = static_cast<int32_t>(shape.size());
  problem.dim = dim;
  std::copy(shape.begin(), shape.end(), problem.shape);
  return problem;
}

// The same problem in float64, for the reference.
inline SoftmaxProblem exact(SoftmaxProblem problem) {
  problem.dtype = problem.out_dtype = DType::kF64;
  return problem;
}

// Elements of the row-th row along dim, as row-major indices.
inline std::vector<int64_t> row_indices(const SoftmaxProblem& problem, int64_t row) {
  int64_t inner = 1;
  for (int32_t d = problem.dim + 1; d < problem.rank; ++d) inner *= problem.shape[d];
  std::vector<int64_t> indices;
  for (int64_t j = 0; j < problem.length(); ++j)
    indices.push_back((row / inner * problem.length() + j) * inner + row % inner);
  return indices;
}

inline std::string text_of(const SoftmaxProblem& problem) {
  std::string text = std::string(problem.log ? "log-" : "") + "softmax " + name_of(problem.dtype) +
                     " to " + name_of(problem.out_dtype) + " [";
  for (int32_t d = 0; d < problem.rank; ++d) text += std::to_string(problem.shape[d]) + " ";
  return text + "] dim " + std::to_string(problem.dim) + (problem.visible ? " masked" : "");
}

}  // namespace perseid::internal::softmax_tests
