// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the host side of every matmul kernel shares: the arguments of a launch.
#pragma once

#include "cuda/device/matmul/config.hpp"
#include "cuda/runtime/gpu.hpp"
#include "math/matmul_problem.hpp"

namespace perseid::internal::cuda {

// Tiles of c in the whole batch.
int64_t matmul_tiles(const MatmulProblem& problem, int rows, int columns);

// Why kernels that count rows, columns, depths and tiles in 32 bits do not take the problem, as a
// sentence's end; "" where they do.
std::string refuse_large_matmul(const MatmulProblem& problem);

// Whether neighbouring elements of the operand are those of different lines, not those along k.
bool lies_across(const MatmulOperand& operand, int64_t lines);

// The operands and the result of a launch, transposed where the rows of c are not contiguous and
// its columns are; without the counts of tiles.
MatmulLaunch matmul_launch(const MatmulProblem& problem, const MatmulArguments& arguments);

// Writes 0 to amax, where there is one: kernels raise it.
Status clear_amax(const Gpu& gpu, const MatmulProblem& problem, const MatmulArguments& arguments,
                  void* stream);

// Sets the counts of tiles. Returns the number of blocks: one for each tile.
int64_t divide_into_tiles(const MatmulProblem& problem, int rows, int columns,
                          MatmulLaunch* launch);

}  // namespace perseid::internal::cuda
