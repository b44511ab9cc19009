// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The scheduler of matmul (matmul.hpp): one thread finds the tiles of its block, announces them,
// and waits for the chunks of the operands that they need.
//
// The schedule is static where all operands are present: a cluster computes every `clusters`-th
// tile, and the scheduler runs some tiles ahead, so that it never delays the producer. Where
// operands arrive in chunks, a block that waits for its first tile would end late under a static
// schedule. There blocks without a cluster use a dynamic one: a block takes the next tile from a
// counter in the workspace shortly before its producer issues the last loads of the current tile.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/sm90/matmul/split_k.hpp"

namespace perseid::internal::cuda {

template <bool kSplit>
struct MatmulOrder {
  using Type = TileOrder<int32_t>;
};
template <>
struct MatmulOrder<true> {
  using Type = SplitTileOrder;
};

// The units of work of a launch: cluster tiles, and splits of tiles.
template <Sm90MatmulConfig C>
class MatmulWork {
 public:
  __device__ __forceinline__ explicit MatmulWork(const Sm90MatmulArguments& arguments) {
    TileGrid<int32_t> grid = arguments.grid;
    if constexpr (!C.async) grid.rows = grid.columns = {};
    if constexpr (C.split_k)
      order_ = SplitTileOrder(grid, arguments.splits.split);
    else
      order_ = TileOrder<int32_t>(grid);
  }
  __device__ __forceinline__ int count() const {
    if constexpr (C.split_k)
      return order_.count();
    else
      return order_.clusters();
  }
  __device__ __forceinline__ bool by_columns() const { return order_.by_columns(); }
  __device__ __forceinline__ TilePosition<int32_t> tile(int number, int rank, int* unit) const {
    *unit = 0;
    if constexpr (C.split_k)
      return order_.tile(number, unit);
    else
      return order_.tile(number, rank);
  }
  // Prepares the counters of a unit, if it is a split.
  __device__ __forceinline__ void prepare_counters(const MatmulSplits& splits, int number) const {
    if constexpr (C.split_k) {
      const int begin = order_.split_begin(), end = begin + order_.units();
      for (int consumer = 0; begin <= number && number < end && consumer < C.consumers; ++consumer)
        MatmulSplitCounter::of<C>(splits, number - begin + 1, consumer).prepare(splits.launch);
    }
  }

 private:
  typename MatmulOrder<C.split_k>::Type order_;
};
template <Sm90MatmulConfig C>
__device__ __forceinline__ MatmulTilePosition position_of(const TilePosition<int32_t>& tile,
                                                          int unit) {
  return {tile.row * C.rows(), tile.column * C.columns, tile.batch, unit};
}

// The number of the first unit of a block, and the block's tile of it.
template <Sm90MatmulConfig C>
__device__ __forceinline__ int first_number() {
  return static_cast<int>(blockIdx.x) / C.cluster;
}
template <Sm90MatmulConfig C>
__device__ __forceinline__ MatmulTilePosition first_tile(const Sm90MatmulArguments& arguments) {
  int unit = 0;
  const auto tile = MatmulWork<C>(arguments).tile(first_number<C>(),
                                                  static_cast<int>(blockIdx.x) % C.cluster, &unit);
  return position_of<C>(tile, unit);
}

// The dynamic schedule, as the scheduler's warp sees it.
template <Sm90MatmulConfig C>
class MatmulTakenTiles {
 public:
  __device__ __forceinline__ MatmulTakenTiles(const Sm90MatmulArguments& arguments,
                                              const MatmulShared<C>& shared)
      : arguments_(arguments), wants_tile_(shared.wants_tile()) {}
  // Waits until the producer wants a tile, then takes the next one. Tile i is the first of block i.
  __device__ __forceinline__ int take() {
    int number = 0;
    if (threadIdx.x % 32 == 0) {
      ptx::mbarrier_wait(wants_tile_, parity_);
      number = static_cast<int>(gridDim.x) - 1 +
               static_cast<int>(count_part(arguments_.async.taken, stamp_of(arguments_.async)));
    }
    parity_ ^= 1;
    return __shfl_sync(0xffffffffu, number, 0);
  }

 private:
  const Sm90MatmulArguments& arguments_;
  const uint32_t wants_tile_;
  uint32_t parity_ = 0;
};

// Static: every `clusters`-th unit of the order, from the number of the block's cluster on.
// Dynamic: those that the block takes. One thread; where operands arrive in chunks, a warp, whose
// lanes poll signals at the same time. `first_position`: of the first tile, without chunks.
template <Sm90MatmulConfig C>
__device__ __forceinline__ void schedule_tiles(const Sm90MatmulArguments& arguments,
                                               const MatmulTilePosition& first_position,
                                               const MatmulShared<C>& shared) {
  const int rank = static_cast<int>(blockIdx.x) % C.cluster;
  const int clusters = static_cast<int>(gridDim.x) / C.cluster;
  const int first = first_number<C>();
  const bool writes = !C.async || threadIdx.x % 32 == 0;
  MatmulTileWriter writer(shared.tiles());
  ArrivalWaits<0> a(arguments.async, 0), b(arguments.async, 1);
  if constexpr (!C.async) {
    writer.announce(first_position);
    writer.operands_arrived();
  }
  const MatmulWork<C> work(arguments);
  MatmulTakenTiles<C> taken(arguments, shared);
  const bool takes = C.takes_tiles() && arguments.async.taken != nullptr;
  if constexpr (C.split_k) {
    if (writes) {
      ptx::wait_for_prerequisites();
      for (int number = first; number < work.count(); number += takes ? work.count() : clusters)
        work.prepare_counters(arguments.splits, number);
      ptx::mbarrier_arrive(shared.counters_ready());
    }
  }
  for (int number = C.async ? first : first + clusters; number < work.count();
       number = takes ? taken.take() : number + clusters) {
    int unit = 0;
    const TilePosition<int32_t> tile = work.tile(number, rank, &unit);
    if (takes && writes && number != first) work.prepare_counters(arguments.splits, number);
    // Announced before it waits for chunks, which may depend on results of the tile before.
    if (writes) writer.announce(position_of<C>(tile, unit));
    if constexpr (C.async) {
      if (number == first) {  // signals and epochs may be written by the kernels before
        ptx::wait_for_prerequisites();
        a.start(), b.start();
      }
      const bool by_columns = work.by_columns();
      // Signals of a product over ranks are those of parts, for which storing threads wait.
      if (C.parts == 0 && !arguments.async.arrivals[0].along_k)
        a.await(tile.rows, by_columns ? ChunkRange<int32_t>{} : tile.visits);
      if (C.parts == 0 && !arguments.async.arrivals[1].along_k)
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
