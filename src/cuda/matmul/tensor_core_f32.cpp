// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/matmul/tensor_core_f32.hpp"

#include "cuda/matmul/arguments.hpp"

namespace perseid::internal::cuda {

Status TensorCoreF32Matmul::make(const MatmulProblem& problem, const MatmulTensorConfig& config,
                                 Gpu& gpu, std::unique_ptr<TensorCoreF32Matmul>* made) {
  std::unique_ptr<TensorCoreF32Matmul> matmul(new TensorCoreF32Matmul(problem, config, gpu));
  Status status =
      gpu.load(kTensorCoreMatmulHeader, tensor_core_matmul_kernels(config), &matmul->kernels_);
  if (status.ok()) status = gpu.allow_shared(matmul->kernels_[0], config.shared_bytes());
  if (status.ok()) status = matmul->split_.make({.planes = config.planes, .clusters = false}, gpu);
  if (status.ok())
    status = FmaMatmul::make(problem, choose_fixup_matmul(problem, gpu.facts().multiprocessors),
                             gpu, &matmul->fixup_);
  if (status.ok()) *made = std::move(matmul);
  return status;
}

Status TensorCoreF32Matmul::run(const MatmulArguments& arguments, void* workspace,
                                void* stream) const {
  if (Status status = clear_amax(gpu_, problem_, arguments, stream); !status.ok()) return status;
  if (arguments.c.elements() == 0) return {};
  return for_each_split(problem_, arguments,
                        [&](const MatmulProblem& problem, const MatmulArguments& part) {
                          return multiply(problem, matmul_launch(problem, part), workspace, stream);
                        });
}

Status TensorCoreF32Matmul::multiply(const MatmulProblem& problem, MatmulLaunch launch,
                                     void* workspace, void* stream) const {
  const Split::Operands operands = split_.place(problem_, launch, problem.batch, workspace);
  const Gpu::Current current(gpu_);
  Status status = current.status();
  if (status.ok()) status = split_.run(gpu_, operands, launch.depth, stream);
  launch.row_factors = factors_of(operands.a);
  launch.column_factors = factors_of(operands.b);

  MatmulLaunch of_planes = launch;
  const int64_t row = split_.config().row(launch.depth);
  const auto planes = [&](const SplitOperand& operand) {
    const int64_t batch = operand.entries == 1 ? 0 : operand.lines * row;
    return MatmulOperand{operand.planes, batch, row, 1, true};
  };
  of_planes.a = planes(operands.a);
  of_planes.b = planes(operands.b);
  of_planes.depth = row;
  of_planes.whole_vectors = true;
  const Launch grid{.blocks = divide_into_tiles(problem, config_.rows, config_.columns, &of_planes),
                    .threads = config_.threads(),
                    .shared_bytes = config_.shared_bytes()};
  if (status.ok()) status = gpu_.launch(kernels_[0], grid, &of_planes, stream);
  if (status.ok()) status = fixup_->run(problem, launch, stream);
  return status;
}

std::string TensorCoreF32Matmul::description() const {
  return concatenate(
      config_.planes == 2 ? "three products of f16, tiles of " : "one product of f16, tiles of ",
      config_.rows, " x ", config_.columns, ", ", config_.threads() / 32, " warps, ",
      config_.stages, " stages");
}

}  // namespace perseid::internal::cuda
