// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The chunks of a matmul (device/chunk_waits.hpp), the host side: their tables in memory of the
// device, and what one launch is told of their signals.
#pragma once

#include "cuda/device/chunk_waits.hpp"
#include "cuda/runtime/chunk_table.hpp"
#include "math/matmul_problem.hpp"

namespace perseid::internal::cuda {

class MatmulAsync {
 public:
  explicit MatmulAsync(const Gpu& gpu) : gpu_(gpu) {}

  // Copies the tables to the device; operands that are not read (depth 0) are not waited for.
  Status prepare(const MatmulProblem& problem);
  // In bytes: a number for failure, one for each chunk of c, and one for the dynamic tile schedule.
  size_t workspace() const;
  // `transposed`: the launch computes c^T = b^T a^T. The context must be current.
  Status fill(const MatmulArguments& arguments, bool transposed, void* workspace, void* stream,
              AsyncArguments* async) const;
  // The order of tiles that follows the chunks of such a launch.
  static void order_tiles(const AsyncArguments& async, TileGrid<int32_t>* grid);

 private:
  const Gpu& gpu_;
  bool takes_tiles_ = false;  // dynamic tile schedule: its counter has room for all tiles
  DeviceChunkTable operands_[2] = {DeviceChunkTable(gpu_), DeviceChunkTable(gpu_)};
  DeviceChunkTable output_{gpu_};
};

}  // namespace perseid::internal::cuda
