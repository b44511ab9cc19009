// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The scheduler of matmul (matmul.hpp): one thread finds the tiles of its block, announces them,
// and waits for the chunks of the operands that they need. It runs some tiles ahead, so that
// neither delays the producer.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/sm90/matmul/shared.hpp"

namespace perseid::internal::cuda {

template <Sm90MatmulConfig C>
__device__ __forceinline__ TileOrder<int32_t> order_of(const Sm90MatmulArguments& arguments) {
  TileGrid<int32_t> grid = arguments.grid;
  if constexpr (!C.async) grid.rows = grid.columns = {};
  return TileOrder<int32_t>(grid);
}
template <Sm90MatmulConfig C>
__device__ __forceinline__ MatmulTilePosition position_of(const TilePosition<int32_t>& tile) {
  return {tile.row * C.rows(), tile.column * C.columns, tile.batch};
}

// The number of the first cluster tile of a block, and the block's tile of it.
template <Sm90MatmulConfig C>
__device__ __forceinline__ int first_number() {
  return static_cast<int>(blockIdx.x) / C.cluster;
}
template <Sm90MatmulConfig C>
__device__ __forceinline__ MatmulTilePosition first_tile(const Sm90MatmulArguments& arguments) {
  return position_of<C>(
      order_of<C>(arguments).tile(first_number<C>(), static_cast<int>(blockIdx.x) % C.cluster));
}

// Every `clusters`-th cluster tile of the order, from the number of the block's cluster on. One
// thread; where operands arrive in chunks, a warp, whose lanes poll signals at the same time.
// `first_position`: of the first tile, without chunks.
template <Sm90MatmulConfig C>
__device__ __forceinline__ void schedule_tiles(const Sm90MatmulArguments& arguments,
                                               const MatmulTilePosition& first_position,
                                               const MatmulTileQueue& queue) {
  const int rank = static_cast<int>(blockIdx.x) % C.cluster;
  const int clusters = static_cast<int>(gridDim.x) / C.cluster;
  const int first = first_number<C>();
  const bool writes = !C.async || threadIdx.x % 32 == 0;
  MatmulTileWriter writer(queue);
  ArrivalWaits a(arguments.async, 0), b(arguments.async, 1);
  if constexpr (!C.async) {
    writer.announce(first_position);
    writer.operands_arrived();
  }
  const TileOrder<int32_t> order = order_of<C>(arguments);
  for (int number = C.async ? first : first + clusters; number < order.clusters();
       number += clusters) {
    const TilePosition<int32_t> tile = order.tile(number, rank);
    // Announced before it waits for chunks, which may depend on results of the tile before.
    if (writes) writer.announce(position_of<C>(tile));
    if constexpr (C.async) {
      if (number == first) {  // signals and epochs may be written by the kernels before
        ptx::wait_for_prerequisites();
        a.start(), b.start();
      }
      const bool by_columns = order.by_columns();
      if (!arguments.async.arrivals[0].along_k)
        a.await(tile.rows, by_columns ? ChunkRange<int32_t>{} : tile.visits);
      if (!arguments.async.arrivals[1].along_k)
        b.await(tile.columns, by_columns ? tile.visits : ChunkRange<int32_t>{});
    }
    if (writes) writer.operands_arrived();
  }
  if (writes) {
    writer.announce(MatmulTilePosition::none());
    writer.operands_arrived();
  }
}

}  // namespace perseid::internal::cuda
