// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/matmul/fma.hpp"

#include "cuda/matmul/arguments.hpp"
#include "cuda/runtime/kernel_name.hpp"

namespace perseid::internal::cuda {
namespace {

// From large to small: the first with as many tiles as the GPU has multiprocessors, else the last.
constexpr int kEach[] = {8, 4};

}  // namespace

std::string refuse_fma_matmul(const MatmulProblem& problem) {
  if (problem.dtype == DType::kF32) return "";
  return concatenate("made for f32, got ", name_of(problem.dtype));
}

MatmulFmaConfig choose_fma_matmul(const MatmulProblem& problem, int32_t multiprocessors) {
  MatmulFmaConfig config{.activation = problem.activation, .amax = problem.amax};
  for (const int each : kEach) {
    config.each = each;
    if (matmul_tiles(problem, config.tile(), config.tile()) >= multiprocessors) break;
  }
  return config;
}

MatmulFmaConfig choose_fixup_matmul(const MatmulProblem& problem, int32_t multiprocessors) {
  MatmulFmaConfig config = choose_fma_matmul(problem, multiprocessors);
  config.fixup = true;
  return config;
}

std::vector<std::string> fma_matmul_kernels(const MatmulFmaConfig& config) {
  return {kernel_name("matmul_fma", config)};
}

Status FmaMatmul::make(const MatmulProblem& problem, const MatmulFmaConfig& config, Gpu& gpu,
                       std::unique_ptr<FmaMatmul>* made) {
  std::unique_ptr<FmaMatmul> matmul(new FmaMatmul(problem, config, gpu));
  Status status = gpu.load(kFmaMatmulHeader, fma_matmul_kernels(config), &matmul->kernels_);
  if (status.ok()) *made = std::move(matmul);
  return status;
}

Status FmaMatmul::run(const MatmulArguments& arguments, void* stream) const {
  if (Status status = clear_amax(gpu_, problem_, arguments, stream); !status.ok()) return status;
  return run(problem_, matmul_launch(problem_, arguments), stream);
}

Status FmaMatmul::run(const MatmulProblem& problem, MatmulLaunch launch, void* stream) const {
  if (launch.rows == 0 || launch.columns == 0 || problem.batch == 0) return {};
  const int64_t tiles = divide_into_tiles(problem, config_.tile(), config_.tile(), &launch);
  // A fixup looks for its tiles by blocks that are all resident.
  const int64_t resident = 2 * gpu_.facts().multiprocessors;
  const Launch grid{.blocks = config_.fixup ? min(tiles, resident) : tiles,
                    .threads = MatmulFmaConfig::threads};
  const Gpu::Current current(gpu_);
  if (!current.status().ok()) return current.status();
  return gpu_.launch(kernels_[0], grid, &launch, stream);
}

std::string FmaMatmul::description() const {
  return concatenate("tiles of ", config_.tile(), " x ", config_.tile());
}

}  // namespace perseid::internal::cuda
