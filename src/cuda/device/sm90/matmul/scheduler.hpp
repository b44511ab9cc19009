// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The scheduler of matmul (matmul.hpp): one thread finds the tiles of its block, announces them,
// and waits for the chunks of the operands that they need. It runs some tiles ahead, so that
// neither delays the producer.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/sm90/matmul/shared.hpp"

namespace perseid::internal::cuda {

// Every `clusters`-th cluster tile of the order, from the number of the block's cluster on.
template <Sm90MatmulConfig C>
__device__ __forceinline__ void schedule_tiles(const Sm90MatmulArguments& arguments,
                                               const MatmulTileQueue& queue) {
  TileGrid<int32_t> grid = arguments.grid;
  if constexpr (!C.async) grid.rows = grid.columns = {};
  const TileOrder<int32_t> order(grid);
  const int rank = static_cast<int>(blockIdx.x) % C.cluster;
  const int clusters = static_cast<int>(gridDim.x) / C.cluster;
  MatmulTileWriter writer(queue);
  // Signals and epochs may be written by the kernels before.
  if constexpr (C.async) ptx::wait_for_prerequisites();
  ArrivalWaits a(arguments.async, 0), b(arguments.async, 1);
  for (int number = static_cast<int>(blockIdx.x) / C.cluster; number < order.clusters();
       number += clusters) {
    const TilePosition<int32_t> tile = order.tile(number, rank);
    // Announced before it waits for chunks, which may depend on results of the tile before.
    writer.announce({tile.row * C.rows(), tile.column * C.columns, tile.batch});
    if constexpr (C.async) {
      if (!arguments.async.arrivals[0].along_k) a.await(tile.rows);
      if (!arguments.async.arrivals[1].along_k) b.await(tile.columns);
      (order.by_columns() ? b : a).await_visits(tile.visits);
    }
    writer.operands_arrived();
  }
  writer.announce(MatmulTilePosition::none());
  writer.operands_arrived();
}

}  // namespace perseid::internal::cuda
