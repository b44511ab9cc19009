// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Shared memory of attention forward: Q, K, V, bias and staged results, the barriers of their
// pipelines, and descriptions of the Q tiles in flight.
#pragma once

#include "cuda/device/ptx/mbarrier.hpp"
#include "cuda/device/sm90/attention/forward_scheduler.hpp"
#include "cuda/device/sm90/pipeline.hpp"
#include "cuda/device/sm90/shared_tile.hpp"

namespace perseid::internal::cuda {

// Barriers of the pipelines: one arrival fills a stage, each consumer warp releases it. Stages of K
// and V are filled by all blocks of a cluster: the consumers of all release them.
template <AttentionForwardConfig C>
struct ForwardShared {
  unsigned char* memory;
  uint32_t base;

  using Query = SharedTile<64, C.key_columns()>;  // of a consumer
  // As TMA loads it: rows of float32 have as many bytes as their planes.
  static constexpr int kWider = C.splits_queries ? 2 : 1;
  using LoadedQuery = SharedTile<64, C.key_columns() / kWider, 2 * kWider>;
  // A piece's tile, where KV tiles arrive in pieces.
  using Key = SharedTile<C.keys, C.in_pieces() ? kChunk : C.key_columns()>;
  using Value = SharedTile<C.keys / C.value_pieces(), C.value_columns()>;
  // A consumer's tile, in elements of 16 bits like its tensor map.
  using Bias = SharedTile<64, C.keys * C.bias_size() / 2>;
  using Out = SharedTile<16, C.out_chunks() * kChunk>;  // of a warp
  static_assert(Query::kBytes == C.query_bytes() && LoadedQuery::kBytes == Query::kBytes &&
                Key::kBytes * C.key_pieces() == C.key_bytes() &&
                Value::kBytes * C.value_pieces() == C.value_bytes() &&
                Bias::kBytes == C.bias_bytes() && 4 * Out::kBytes == C.out_bytes());

  static constexpr int kKeys = C.q_stages * C.consumers * Query::kBytes;
  static constexpr int kValues = kKeys + C.key_stages() * Key::kBytes;
  static constexpr int kBias = kValues + C.value_stages() * Value::kBytes;
  static constexpr int kNumbers = kBias + C.bias_stages * C.consumers * Bias::kBytes;
  static constexpr int kOut = kNumbers + C.number_slots() * C.slot_bytes();
  static constexpr int kQueryBarriers = kOut + C.consumers * 4 * Out::kBytes;
  static constexpr int kKeyBarriers = kQueryBarriers + Pipeline<C.q_stages>::kBytes;
  static constexpr int kValueBarriers = kKeyBarriers + Pipeline<C.key_stages()>::kBytes;
  static constexpr int kBiasBarriers = kValueBarriers + Pipeline<C.value_stages()>::kBytes;
  static constexpr int kValueLoaded = kBiasBarriers + Pipeline<C.bias_stages>::kBytes;
  static constexpr int kTiles = kValueLoaded + 8;
  static constexpr int kNonfinite = kTiles + C.kTilesInFlight * C.kTileBytes;
  static_assert(sizeof(AnnouncedTile) == C.kTileBytes);
  // Two tickets of the cluster's tile scheduler, then a barrier for each.
  static constexpr int kTickets = (kNonfinite + 4 + 7) / 8 * 8;
  static constexpr int kEnd = C.cluster > 1 ? kTickets + 32 : kNonfinite + 4;
  static_assert(C.fits() && kEnd <= C.shared_bytes());

  // Named barriers; the first and the last for each consumer.
  static constexpr int kPingPong = 1, kPassEnds = 4, kConsumerWarps = 5;

  __device__ __forceinline__ Query query(int stage, int consumer) const {
    return {base + (stage * C.consumers + consumer) * Query::kBytes};
  }
  __device__ __forceinline__ Key key(int stage) const {
    return {base + kKeys + stage * Key::kBytes};
  }
  __device__ __forceinline__ Value value(int stage) const {
    return {base + kValues + stage * Value::kBytes};
  }
  __device__ __forceinline__ Bias bias(int stage, int consumer) const {
    return {base + kBias + (stage * C.consumers + consumer) * Bias::kBytes};
  }
  // Where TMA writes the numbers of K tile `count` of the block, which arrive with its planes. The
  // slot is filled again when the tile after the next is released: all threads have read it by
  // then.
  __device__ __forceinline__ uint32_t numbers(int count) const {
    return base +
           static_cast<uint32_t>(kNumbers + count % max(C.number_slots(), 1) * C.slot_bytes());
  }
  // Where a warp stages its 16 rows of results for the TMA store.
  __device__ __forceinline__ Out out(int consumer, int warp) const {
    return {base + kOut + consumer * 4 * Out::kBytes + warp * Out::kBytes};
  }
  // The bytes of a tile, for threads.
  __device__ __forceinline__ unsigned char* pointer(uint32_t address) const {
    return memory + (address - base);
  }

  __device__ __forceinline__ Pipeline<C.q_stages> queries() const {
    return {base + kQueryBarriers};
  }
  __device__ __forceinline__ Pipeline<C.key_stages()> keys() const { return {base + kKeyBarriers}; }
  __device__ __forceinline__ Pipeline<C.value_stages()> values() const {
    return {base + kValueBarriers};
  }
  __device__ __forceinline__ Pipeline<C.bias_stages> biases() const {
    return {base + kBiasBarriers};
  }
  // In a second pass: TMA has loaded V, which the producer clears next.
  __device__ __forceinline__ uint32_t value_loaded() const { return base + kValueLoaded; }

  // The ticket that the first block of a cluster sends to this one when it has issued the loads of
  // tile `count`, and its barrier.
  __device__ __forceinline__ uint32_t ticket(int count) const {
    return base + kTickets + count % 2 * 8;
  }
  __device__ __forceinline__ uint32_t ticket_barrier(int count) const {
    return base + kTickets + 16 + count % 2 * 8;
  }

  // Tile number `count` of the block.
  __device__ __forceinline__ AnnouncedTile& tile(int count) const {
    return reinterpret_cast<AnnouncedTile*>(memory + kTiles)[count % C.kTilesInFlight];
  }

  // First tile of the block's list of tiles with non-finite results; the number of all tiles ends
  // the list.
  __device__ __forceinline__ int32_t& nonfinite_list() const {
    return *reinterpret_cast<int32_t*>(memory + kNonfinite);
  }

  __device__ __forceinline__ void prepare(int32_t tiles) const {
    nonfinite_list() = tiles;
    queries().init(1, 4 * C.consumers);
    keys().init(1, 4 * C.consumers * C.cluster);
    values().init(1, 4 * C.consumers * C.cluster);
    biases().init(1, 4 * C.consumers);
    ptx::mbarrier_init(value_loaded(), 1);
    if constexpr (C.cluster > 1)
      for (int i = 0; i < 2; ++i) ptx::mbarrier_init(ticket_barrier(i), 1);
    ptx::mbarrier_init_fence();
  }
};

}  // namespace perseid::internal::cuda
