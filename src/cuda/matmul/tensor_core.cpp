// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/matmul/tensor_core.hpp"

#include <span>

#include "cuda/matmul/arguments.hpp"
#include "cuda/runtime/kernel_name.hpp"

namespace perseid::internal::cuda {
namespace {

// From large to small: the first that fits a block's shared memory and makes as many tiles as the
// GPU has multiprocessors, else the last.
struct Tile {
  int rows, columns, warp_rows, warp_columns, stages;
};
constexpr Tile kTiles[] = {
    {128, 256, 64, 64, 3},
    {128, 128, 64, 64, 3},
    {64, 64, 32, 32, 3},
};
// For two planes, where a warp keeps both its sums and the products of a stage.
constexpr Tile kPlaneTiles[] = {
    {128, 128, 64, 32, 3},
    {64, 64, 32, 32, 3},
};
constexpr Tile kDoubleTiles[] = {
    {128, 128, 64, 32, 3},
    {64, 64, 32, 32, 3},
};

// The tiles in the order of chunks: as many as divide_into_tiles has.
TileGrid<int32_t> tile_grid(const MatmulProblem& problem, const MatmulTensorConfig& config,
                            const MatmulLaunch& launch) {
  const auto size = [](int64_t value) { return static_cast<int32_t>(value); };
  constexpr int32_t kGroup = 8;
  return {.batch = size(problem.batch),
          .m = size(launch.rows),
          .n = size(launch.columns),
          .tile_m = config.rows,
          .tile_n = config.columns,
          .group = kGroup};
}

}  // namespace

std::string refuse_tensor_core_matmul(const MatmulProblem& problem) {
  if (problem.dtype != DType::kF16 && problem.dtype != DType::kBF16 && problem.dtype != DType::kF64)
    return concatenate("made for f16, bf16, f32 and f64, got ", name_of(problem.dtype));
  return problem.async() ? refuse_large_matmul(problem) : "";
}

MatmulTensorConfig choose_tensor_core_matmul(const MatmulProblem& problem, int32_t multiprocessors,
                                             int32_t shared_bytes) {
  MatmulTensorConfig config{.in = problem.dtype,
                            .out = problem.out_dtype,
                            .activation = problem.activation,
                            .amax = problem.amax,
                            .async = problem.async()};
  if (problem.dtype == DType::kF64 && problem.leaves == 2) config.leaves = 2;
  std::span<const Tile> tiles = problem.dtype == DType::kF64 ? std::span<const Tile>(kDoubleTiles)
                                                             : std::span<const Tile>(kTiles);
  if (problem.dtype == DType::kF32) {
    config.in = DType::kF16;
    config.planes = problem.precision == Precision::kTF32 ? 1 : 2;
    if (config.planes == 2) tiles = kPlaneTiles;
  }
  for (const Tile& tile : tiles) {
    config.rows = tile.rows;
    config.columns = tile.columns;
    config.warp_rows = tile.warp_rows;
    config.warp_columns = tile.warp_columns;
    config.stages = tile.stages;
    if (config.shared_bytes() <= shared_bytes &&
        matmul_tiles(problem, tile.rows, tile.columns) >= multiprocessors)
      break;
  }
  return config;
}

int64_t leaves_of_tensor_cores(const MatmulProblem& problem, int32_t shared_bytes) {
  MatmulProblem pair = problem;
  pair.leaves = 2;
  const MatmulTensorConfig config = choose_tensor_core_matmul(pair, 1, shared_bytes);
  const bool takes = problem.dtype == DType::kF64 && problem.leaves > 1 && !problem.async() &&
                     problem.k % (problem.leaves * config.depth()) == 0 &&
                     config.shared_bytes() <= shared_bytes;
  return takes ? 2 : 1;
}

std::vector<std::string> tensor_core_matmul_kernels(const MatmulTensorConfig& config) {
  if (config.planes > 0) return {kernel_name("matmul_tensor_core", config)};
  std::vector<std::string> names;
  MatmulTensorConfig layout = config;
  for (const bool a_across : {false, true})
    for (const bool b_across : {false, true}) {
      layout.a_across = a_across;
      layout.b_across = b_across;
      names.push_back(kernel_name("matmul_tensor_core", layout));
    }
  return names;
}

Status TensorCoreMatmul::make(const MatmulProblem& problem, const MatmulTensorConfig& config,
                              Gpu& gpu, std::unique_ptr<TensorCoreMatmul>* made) {
  std::unique_ptr<TensorCoreMatmul> matmul(new TensorCoreMatmul(problem, config, gpu));
  Status status =
      gpu.load(kTensorCoreMatmulHeader, tensor_core_matmul_kernels(config), &matmul->kernels_);
  for (const Kernel& kernel : matmul->kernels_)
    if (status.ok()) status = gpu.allow_shared(kernel, config.shared_bytes());
  if (status.ok() && problem.async()) {
    matmul->async_ = std::make_unique<MatmulAsync>(gpu);
    status = matmul->async_->prepare(problem);
  }
  if (status.ok()) *made = std::move(matmul);
  return status;
}

Status TensorCoreMatmul::run(const MatmulArguments& arguments, void* workspace,
                             void* stream) const {
  if (Status status = clear_amax(gpu_, problem_, arguments, stream); !status.ok()) return status;
  if (arguments.c.elements() == 0) return {};
  MatmulLaunch launch = matmul_launch(problem_, arguments);
  const Launch grid{.blocks = divide_into_tiles(problem_, config_.rows, config_.columns, &launch),
                    .threads = config_.threads(),
                    .shared_bytes = config_.shared_bytes()};
  const bool a_across = lies_across(launch.a, launch.rows);
  const bool b_across = lies_across(launch.b, launch.columns);
  const int64_t vector = 16 / size_of(problem_.dtype);
  launch.whole_vectors = launch.a.vectors && launch.b.vectors &&
                         (a_across ? launch.rows : launch.depth) % vector == 0 &&
                         (b_across ? launch.columns : launch.depth) % vector == 0;
  const Gpu::Current current(gpu_);
  Status status = current.status();
  if (status.ok() && async_ != nullptr) {
    launch.grid = tile_grid(problem_, config_, launch);
    status = async_->fill(arguments, launch.transposed, workspace, stream, &launch.async);
    MatmulAsync::order_tiles(launch.async, &launch.grid);
  }
  if (!status.ok()) return status;
  return gpu_.launch(kernels_[(a_across ? 2 : 0) + (b_across ? 1 : 0)], grid, &launch, stream);
}

std::string TensorCoreMatmul::description() const {
  return concatenate("tiles of ", config_.rows, " x ", config_.columns, ", ",
                     config_.threads() / 32, " warps, ", config_.stages, " stages",
                     config_.leaves > 1 ? concatenate(", ", config_.leaves, " leaves") : "");
}

}  // namespace perseid::internal::cuda
