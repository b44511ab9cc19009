// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/matmul/arguments.hpp"

#include <cstdlib>
#include <utility>

#include "cuda/runtime/signals.hpp"

namespace perseid::internal::cuda {
namespace {

// The stride of a dimension of size 1 is unused: 0.
int64_t stride_of(const Tensor& tensor, int dim) {
  return tensor.shape[dim] > 1 ? tensor.stride[dim] : 0;
}

// `bytes` is a power of 2.
bool is_aligned(const void* data, int64_t bytes) {
  return (reinterpret_cast<uintptr_t>(data) & static_cast<uintptr_t>(bytes - 1)) == 0;
}

MatmulOperand operand_of(const Tensor& tensor, int line, int depth) {
  MatmulOperand operand{tensor.data, stride_of(tensor, 0), stride_of(tensor, line),
                        stride_of(tensor, depth), false};
  // 16-byte copies: stride 1 along one dimension, the other strides multiples of 16 bytes.
  const int64_t vector = 16 / size_of(tensor.dtype);
  const bool across = lies_across(operand, tensor.shape[line]);
  const int inner = across ? line : depth;
  const int64_t neighbours = across ? operand.line : operand.depth;
  const int64_t between = across ? operand.depth : operand.line;
  operand.vectors = (tensor.shape[inner] == 1 || neighbours == 1) && between % vector == 0 &&
                    operand.batch % vector == 0 && is_aligned(tensor.data, 16);
  return operand;
}

MatmulResult result_of(const MatmulProblem& problem, const MatmulArguments& arguments) {
  const Tensor &c = arguments.c, &c0 = arguments.c0, &bias = arguments.bias;
  MatmulResult result{.data = c.data,
                      .batch = stride_of(c, 0),
                      .row = stride_of(c, 1),
                      .column = stride_of(c, 2),
                      .alpha = problem.alpha,
                      .beta = problem.beta};
  if (problem.beta != 0) {
    result.c0 = c0.data;
    result.c0_batch = c0.stride[0];
    result.c0_row = c0.stride[1];
    result.c0_column = c0.stride[2];
  }
  if (problem.bias) {
    result.bias = bias.data;
    result.bias_column = bias.stride[0];
    result.bias_as_out = bias.dtype == problem.out_dtype;
  }
  if (problem.amax) result.amax = arguments.amax.data;
  return result;
}

// c^T = b^T a^T.
void transpose(MatmulLaunch* launch) {
  std::swap(launch->a, launch->b);
  std::swap(launch->rows, launch->columns);
  launch->transposed = !launch->transposed;
  MatmulResult& c = launch->c;
  std::swap(c.row, c.column);
  std::swap(c.c0_row, c.c0_column);
  std::swap(c.bias_row, c.bias_column);
}

}  // namespace

int64_t matmul_tiles(const MatmulProblem& problem, int rows, int columns) {
  return problem.batch * ceil_div(problem.m, rows) * ceil_div(problem.n, columns);
}

std::string refuse_large_matmul(const MatmulProblem& problem) {
  constexpr int64_t kMost = int64_t{1} << 30;
  for (const auto& [name, size] : {std::pair{"m", problem.m}, {"n", problem.n}, {"k", problem.k}})
    if (size > kMost) return concatenate(name, " is ", size, ", expected at most ", kMost);
  const int64_t tiles = matmul_tiles(problem, 64, 64);
  if (problem.chunks_c.present() && tiles > kMostParts)
    return concatenate("c has ", tiles, " tiles of 64 x 64, expected at most ", kMostParts,
                       " where it leaves in chunks");
  if (tiles > kMost)
    return concatenate("c has ", tiles, " tiles of 64 x 64, expected at most ", kMost);
  return "";
}

bool lies_across(const MatmulOperand& operand, int64_t lines) {
  return lines > 1 && operand.line == 1 && operand.depth != 1;
}

MatmulLaunch matmul_launch(const MatmulProblem& problem, const MatmulArguments& arguments) {
  MatmulLaunch launch{.a = operand_of(arguments.a, 1, 2),
                      .b = operand_of(arguments.b, 2, 1),
                      .c = result_of(problem, arguments),
                      .rows = problem.m,
                      .columns = problem.n,
                      .depth = problem.depth()};
  // Adjacent threads store adjacent elements of a row. In canonical order f32, whose products of
  // planes have another order in the transpose, has the same bits for any strides of c.
  const bool transposable = problem.leaves == 0 || problem.dtype != DType::kF32;
  if (std::abs(launch.c.row) < std::abs(launch.c.column) && problem.m > 1 && transposable)
    transpose(&launch);
  MatmulResult& c = launch.c;
  c.pairs = c.column == 1 && c.row % 2 == 0 && c.batch % 2 == 0 &&
            is_aligned(c.data, 2 * size_of(problem.out_dtype));
  return launch;
}

Status clear_amax(const Gpu& gpu, const MatmulProblem& problem, const MatmulArguments& arguments,
                  void* stream) {
  if (!problem.amax) return {};
  Status status;
  auto* words = static_cast<uint32_t*>(arguments.amax.data);
  for (int64_t i = 0; i < size_of(arguments.amax.dtype) / 4 && status.ok(); ++i)
    status = set_signal(gpu, words + i, 0, stream);
  return status;
}

int64_t divide_into_tiles(const MatmulProblem& problem, int rows, int columns,
                          MatmulLaunch* launch) {
  launch->tiles_down = ceil_div(launch->rows, rows);
  launch->tiles_across = ceil_div(launch->columns, columns);
  launch->tiles = problem.batch * launch->tiles_down * launch->tiles_across;
  return launch->tiles;
}

}  // namespace perseid::internal::cuda
