// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward over chunks of keys, between ranks: keys and values arrive while the kernel
// runs, and their gradients leave.
//
// The raster order is a table that the host makes (backward_order.hpp). A block waits once, for the
// chunks of its tile; blocks run in the order of their numbers, so that by then most have arrived.
// Every warp that has stored gradients of its 16 keys counts that in the chunks which the tile has
// keys of, and the last one signals the chunk.
//
// Memory order. Lanes store, the warp synchronises, one lane adds with release and acquire order:
// the last one to add has seen the stores of all, and its release at system scope publishes them.
#pragma once

#include "cuda/device/chunk_waits.hpp"
#include "cuda/device/sm90/attention/backward_tiles.hpp"

namespace perseid::internal::cuda {

template <AttentionBackwardConfig C>
__device__ __forceinline__ ChunkRange<int32_t> chunks_of_tile(const AttentionBackwardArguments& a,
                                                              const BackwardTile& tile) {
  return a.async.arrivals[0].chunks.covering(tile.key, tile.key + C.keys());
}
// The number of the first chunk among the signals of the tile's group of heads.
__device__ __forceinline__ int32_t first_signal(const AttentionBackwardArguments& a,
                                                const BackwardTile& tile) {
  const int32_t group = (tile.batch * a.kv_heads + tile.kv_head) / a.heads_of_arrival;
  return group * a.async.arrivals[0].chunks.count;
}

// By the thread that loads keys and values, before it does. Not where no query sees the tile.
template <AttentionBackwardConfig C>
__device__ __forceinline__ void await_keys(const AttentionBackwardArguments& a,
                                           const BackwardTile& tile) {
  if (tile.first >= tile.end) return;
  ArrivalWaits<> waits(a.async, 0);
  waits.start();
  const ChunkRange<int32_t> chunks = chunks_of_tile<C>(a, tile);
  const int32_t first = first_signal(a, tile);
  for (int32_t chunk = chunks.first; chunk <= chunks.last; ++chunk)
    waits.await_chunk(first + chunk);
  ptx::fence_proxy_async_global();
}

// By a warp that has stored the gradients of its keys.
template <AttentionBackwardConfig C>
__device__ __forceinline__ void depart_keys(const AttentionBackwardArguments& a,
                                            const BackwardTile& tile) {
  constexpr int kWarps = 4 * C.kConsumers;  // that store gradients of a tile, over its cluster
  __syncwarp();
  if (threadIdx.x % 32 != 0) return;
  const DeviceDeparture& departure = a.async.departure;
  const uint64_t stamp = stamp_of(a.async);
  const ChunkRange<int32_t> chunks = chunks_of_tile<C>(a, tile);
  const int32_t first = first_signal(a, tile);
  for (int32_t chunk = chunks.first; chunk <= chunks.last; ++chunk) {
    const int32_t signal = first + chunk;
    const int32_t* const begin = a.async.arrivals[0].chunks.begin + chunk;
    const int32_t tiles = (begin[1] + C.keys() - 1) / C.keys() - begin[0] / C.keys();
    const auto parts = static_cast<uint32_t>(kWarps * tiles * a.heads_of_arrival);
    if (count_part(a.async.failed + 1 + signal, stamp) == parts &&
        ptx::load_relaxed(a.async.failed) != stamp)
      ptx::store_release_system(departure.signals + signal,
                                read_epoch(departure.epoch_ptr, departure.epoch));
  }
}

}  // namespace perseid::internal::cuda
