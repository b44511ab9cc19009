// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/matmul.hpp"

#include <cstdlib>
#include <utility>

#include "cuda/runtime/kernel_name.hpp"

namespace perseid::internal::cuda {
namespace {

// ---- Which kernel ----

// From large to small: the first with as many tiles as the GPU has multiprocessors, else the last.
struct Tile {
  int rows, columns, warp_rows, warp_columns, stages;
};
constexpr Tile kTensorTiles[] = {
    {128, 128, 64, 64, 2},
    {64, 64, 32, 32, 3},
};
constexpr int kFmaEach[] = {8, 4};

int64_t tiles_of(const MatmulProblem& problem, int rows, int columns) {
  return problem.batch * ceil_div(problem.m, rows) * ceil_div(problem.n, columns);
}

MatmulTensorConfig choose_tensor(const MatmulProblem& problem, int32_t multiprocessors) {
  MatmulTensorConfig config{problem.dtype, problem.out_dtype, 0, 0, 0, 0, 0};
  for (const Tile& tile : kTensorTiles) {
    config.rows = tile.rows;
    config.columns = tile.columns;
    config.warp_rows = tile.warp_rows;
    config.warp_columns = tile.warp_columns;
    config.stages = tile.stages;
    if (tiles_of(problem, tile.rows, tile.columns) >= multiprocessors) break;
  }
  return config;
}

MatmulFmaConfig choose_fma(const MatmulProblem& problem, int32_t multiprocessors) {
  MatmulFmaConfig config{problem.dtype, 0};
  for (const int each : kFmaEach) {
    config.each = each;
    if (tiles_of(problem, config.tile(), config.tile()) >= multiprocessors) break;
  }
  return config;
}

// ---- Arguments of a launch ----

// A dimension of one element has no stride that matters.
int64_t stride_of(const Tensor& tensor, int dim) {
  return tensor.shape[dim] > 1 ? tensor.stride[dim] : 0;
}

// Whether the elements along k lie farther apart than those of different lines.
bool lies_across(const MatmulOperand& operand, int64_t lines) {
  return lines > 1 && operand.line == 1 && operand.depth != 1;
}

bool is_aligned(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
}

MatmulOperand operand_of(const Tensor& tensor, int line, int depth) {
  MatmulOperand operand{tensor.data, stride_of(tensor, 0), stride_of(tensor, line),
                        stride_of(tensor, depth), false};
  // Copies of 16 bytes: neighbours along one dimension, all else in multiples.
  constexpr int64_t kVector = 8;
  const bool across = lies_across(operand, tensor.shape[line]);
  const int inner = across ? line : depth;
  const int64_t neighbours = across ? operand.line : operand.depth;
  const int64_t between = across ? operand.depth : operand.line;
  operand.vectors = (tensor.shape[inner] == 1 || neighbours == 1) && between % kVector == 0 &&
                    operand.batch % kVector == 0 && is_aligned(tensor.data, 16);
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
  return result;
}

// c^T = b^T a^T.
void transpose(MatmulLaunch* launch) {
  std::swap(launch->a, launch->b);
  std::swap(launch->rows, launch->columns);
  MatmulResult& c = launch->c;
  std::swap(c.row, c.column);
  std::swap(c.c0_row, c.c0_column);
  std::swap(c.bias_row, c.bias_column);
}

}  // namespace

bool matmul_on_tensor_cores(const MatmulProblem& problem) { return size_of(problem.dtype) == 2; }

MatmulChoice choose_matmul(const MatmulProblem& problem, int32_t multiprocessors) {
  if (matmul_on_tensor_cores(problem)) return choose_tensor(problem, multiprocessors);
  return choose_fma(problem, multiprocessors);
}

std::vector<std::string> matmul_kernels(const MatmulChoice& choice) {
  if (const auto* fma = std::get_if<MatmulFmaConfig>(&choice))
    return {kernel_name("matmul_fma", *fma)};
  std::vector<std::string> names;
  MatmulTensorConfig config = std::get<MatmulTensorConfig>(choice);
  for (const bool a_across : {false, true})
    for (const bool b_across : {false, true}) {
      config.a_across = a_across;
      config.b_across = b_across;
      names.push_back(kernel_name("matmul_tensor_core", config));
    }
  return names;
}

const char* matmul_header(const MatmulChoice& choice) {
  return std::holds_alternative<MatmulFmaConfig>(choice) ? "cuda/device/matmul/fma.hpp"
                                                         : "cuda/device/matmul/tensor_core.hpp";
}

Status MatmulOnGpu::make(const MatmulProblem& problem, const MatmulChoice& choice, Gpu& gpu,
                         std::unique_ptr<MatmulOnGpu>* made) {
  std::unique_ptr<MatmulOnGpu> matmul(new MatmulOnGpu(problem, choice, gpu));
  if (Status status = gpu.load(matmul_header(choice), matmul_kernels(choice), &matmul->kernels_);
      !status.ok())
    return status;
  if (const auto* tensor = std::get_if<MatmulTensorConfig>(&choice))
    for (const Kernel& kernel : matmul->kernels_)
      if (Status status = gpu.allow_shared(kernel, tensor->shared_bytes()); !status.ok())
        return status;
  *made = std::move(matmul);
  return {};
}

Status MatmulOnGpu::run(const MatmulArguments& arguments, void* stream) const {
  if (arguments.c.elements() == 0) return {};
  MatmulLaunch launch{operand_of(arguments.a, 1, 2),
                      operand_of(arguments.b, 2, 1),
                      result_of(problem_, arguments),
                      problem_.m,
                      problem_.n,
                      problem_.depth(),
                      0,
                      0};
  // Threads write neighbours of a row.
  if (std::abs(launch.c.row) < std::abs(launch.c.column) && problem_.m > 1) transpose(&launch);
  MatmulResult& c = launch.c;
  c.pairs = c.column == 1 && c.row % 2 == 0 && c.batch % 2 == 0 &&
            is_aligned(c.data, 2 * size_of(problem_.out_dtype));

  const Kernel* kernel = &kernels_[0];
  Launch grid;
  int rows = 0, columns = 0;
  if (const auto* tensor = std::get_if<MatmulTensorConfig>(&choice_)) {
    const size_t a_across = lies_across(launch.a, launch.rows) ? 2 : 0;
    kernel = &kernels_[a_across + (lies_across(launch.b, launch.columns) ? 1 : 0)];
    rows = tensor->rows;
    columns = tensor->columns;
    grid.threads = tensor->threads();
    grid.shared_bytes = tensor->shared_bytes();
  } else {
    rows = columns = std::get<MatmulFmaConfig>(choice_).tile();
    grid.threads = MatmulFmaConfig::threads;
  }
  launch.tiles_down = ceil_div(launch.rows, rows);
  launch.tiles_across = ceil_div(launch.columns, columns);
  grid.blocks = problem_.batch * launch.tiles_down * launch.tiles_across;
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  return gpu_.launch(*kernel, grid, &launch, stream);
}

std::string MatmulOnGpu::description() const {
  if (const auto* tensor = std::get_if<MatmulTensorConfig>(&choice_))
    return concatenate("tiles of ", tensor->rows, " x ", tensor->columns, ", ",
                       tensor->threads() / 32, " warps, ", tensor->stages, " stages");
  const int tile = std::get<MatmulFmaConfig>(choice_).tile();
  return concatenate("tiles of ", tile, " x ", tile);
}

}  // namespace perseid::internal::cuda
