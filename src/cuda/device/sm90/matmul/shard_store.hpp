// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The storing thread of a consumer of matmul over ranks with a deferred epilogue
// (shard_epilogue.hpp): it gives stages to the consumer, with the parts of the other ranks in them
// where the tile is its own, and issues the TMA stores of those that the consumer releases.
#pragma once

#include "cuda/device/sm90/matmul/shard_epilogue.hpp"

namespace perseid::internal::cuda {

// The storing thread of a consumer.
template <Sm90MatmulConfig C>
class MatmulShardStore {
  using Shared = MatmulShared<C>;
  static constexpr int kStages = C.out_stages;
  static constexpr bool kOfLeaves = C.leaves == 4;  // these are put aside

  // The uses of stages by a tile of the own shard, in their order.
  struct Use {
    int chunk = 0, number = 0;  // of the uses of a chunk of sums

    static __device__ __forceinline__ bool has_aside(int chunk) { return chunk < C.aside_chunks(); }
    __device__ __forceinline__ bool exists() const { return chunk < C.sum_chunks(); }
    __device__ __forceinline__ bool is_aside() const { return number == 0 && has_aside(chunk); }
    // Of the other ranks.
    __device__ __forceinline__ int part() const { return number - has_aside(chunk); }
    // Of two chunks.
    __device__ __forceinline__ bool is_results() const { return part() == C.parts; }
    __device__ __forceinline__ void advance() {
      if (++number == C.parts + has_aside(chunk) + chunk % 2) number = 0, ++chunk;
    }
  };

 public:
  __device__ __forceinline__ MatmulShardStore(const Sm90MatmulArguments& arguments,
                                              const Shared& shared, int consumer)
      : arguments_(static_cast<const Sm90ShardArguments&>(arguments)),
        shared_(shared),
        consumer_(consumer),
        queue_(shared.tiles()),
        parts_(arguments),
        begun_(arguments.async, 1) {}

  __device__ __forceinline__ void run() {
    begun_.start();
    MatmulTilePosition tile = queue_.pop_by_thread();
    while (tile.exists()) {
      const MatmulTilePosition next =
          C.is_wide() ? queue_.pop_by_thread() : MatmulTilePosition::none();
      const bool own = is_own<C>(arguments_, tile);
      if (C.is_wide() && own && !next.exists()) return store_last(tile);
      if (kOfLeaves || (C.is_wide() && own)) store_aside();
      if (own)
        store_own(tile);
      else
        store_sums(tile);
      tile = C.is_wide() ? next : queue_.pop_by_thread();
    }
  }

 private:
  __device__ __forceinline__ int peer_of(const MatmulTilePosition& tile) const {
    const int line = arguments_.async.departure.of_columns ? tile.column : tile.row;
    int peer = 0;
#pragma unroll
    for (int i = 1; i < C.parts; ++i)
      if (arguments_.peers[i].first <= line && line < arguments_.peers[i].last) peer = i;
    return peer;
  }
  __device__ __forceinline__ void store_sums(const MatmulTilePosition& tile) {
    const int number = peer_of(tile);
    const MatmulPeer& peer = arguments_.peers[number];
    const bool stores = await_begin(number);
    const int column = tile.column - peer.origin_column;
    const int row = tile.row + 64 * consumer_ - peer.origin_row;
    const auto store = [&](int chunk, uint32_t stage) {
      if (stores)
        ptx::tma_store(arguments_.sums[number], stage,
                       {column + chunk * C.sum_columns(), row, tile.batch, 0, 0});
    };
    if constexpr (kOfLeaves)
      store_sums_of_leaves(store);
    else
      store_chunks<C.sum_chunks()>(store);
    const DepartureSignals signals(arguments_.async, arguments_.grid, 64, C.columns);
    if (!stores || !signals.wanted(row + peer.origin_row, tile.column)) {
      ptx::tma_store_wait_read();
      return;
    }
    ptx::tma_store_wait();
    ptx::fence_proxy_async_global();
    signals.depart(row + peer.origin_row, tile.column, [&](int chunk) {
      return peer.signals + (chunk - peer.first_chunk) * peer.signal_stride;
    });
  }
  // Chunks, each when the consumer has released its stage.
  template <int kChunks, class Store>
  __device__ __forceinline__ void store_chunks(const Store& store) {
    for (int i = 0; i < min(kStages, kChunks); ++i) give();
    for (int i = 0; i < kChunks; ++i) {
      store(i, await_stage());
      ptx::tma_store_commit();
      // All but the last kStages - 1 have been read.
      ptx::tma_store_wait_read<kStages - 1>();
      if (kStages <= i + 1 && i + 1 < kChunks) give();
    }
  }
  // The same, where what was put aside is added first.
  template <class Store>
  __device__ __forceinline__ void store_sums_of_leaves(const Store& store) {
    constexpr int kUses = 2 * C.sum_chunks();
    const auto give_use = [&](int use) { use % 2 == 0 ? give_aside(use / 2) : give(); };
    for (int i = 0; i < min(kStages, kUses); ++i) give_use(i);
    for (int i = 0; i < kUses; ++i) {
      const uint32_t stage = await_stage();
      if (i % 2 == 1) {
        store(i / 2, stage);
        ptx::tma_store_commit();
        ptx::tma_store_wait_read();
      }
      if (i + kStages < kUses) give_use(i + kStages);
    }
  }
  __device__ __forceinline__ void store_aside() {
    store_chunks<C.aside_chunks()>([&](int chunk, uint32_t stage) {
      ptx::bulk_store(aside(chunk), stage, C.out_stage_bytes());
    });
    ptx::tma_store_wait();
    ptx::fence_proxy_async_global();
  }
  // Whether the peer has begun: it has read the parts of the execution before.
  __device__ __forceinline__ bool await_begin(int number) {
    if (arguments_.async.arrivals[1].signals == nullptr) return true;
    if ((begun_peers_ >> number & 1) == 0) begun_.await_chunk(arguments_.peers[number].rank);
    begun_peers_ |= 1u << number;
    return !begun_.failed();
  }

  __device__ __forceinline__ void store_own(const MatmulTilePosition& tile) {
    parts_.await(tile);
    ptx::fence_proxy_async_global();
    Use given;
    for (int i = 0; i < kStages; ++i) give_own(tile, &given);
    for (Use use; use.exists(); use.advance()) {
      const uint32_t stage = await_stage();
      if (use.is_results()) {
        store_chunk<C>(arguments_, tile, consumer_, use.chunk / 2, stage);
        ptx::tma_store_commit();
        ptx::tma_store_wait_read();
      }
      give_own(tile, &given);
    }
  }
  // Gives a stage with the parts of a rank in it, or one for results, if there is another use.
  __device__ __forceinline__ void give_own(const MatmulTilePosition& tile, Use* next) {
    if (!next->exists()) return;
    const Use use = *next;
    next->advance();
    if (use.is_results()) return give();
    if (use.is_aside()) return give_aside(use.chunk);
    const int other = use.part();
    shared_.outputs(consumer_).producer_expect_bytes(given_, C.out_stage_bytes());
    ptx::tma_load(shared_.out(consumer_, given_.stage()).base, arguments_.arrived,
                  shared_.outputs(consumer_).full(given_.stage()),
                  {tile.column + use.chunk * C.sum_columns() - arguments_.arrived_column,
                   tile.row + 64 * consumer_ - arguments_.arrived_row, tile.batch,
                   other + (other >= arguments_.parts.own), 0});
    given_.advance();
  }
  // The consumer's threads load the parts themselves.
  __device__ __forceinline__ void store_last(const MatmulTilePosition& tile) {
    parts_.await(tile);
    ptx::mbarrier_arrive(shared_.parts_arrived(consumer_));
    store_chunks<C.sum_chunks() / 2>([&](int chunk, uint32_t stage) {
      store_chunk<C>(arguments_, tile, consumer_, chunk, stage);
    });
    ptx::tma_store_wait_read();
  }
  // A stage with what was put aside of a chunk in it.
  __device__ __forceinline__ void give_aside(int chunk) {
    shared_.outputs(consumer_).producer_expect_bytes(given_, C.out_stage_bytes());
    ptx::bulk_load(shared_.out(consumer_, given_.stage()).base, aside(chunk), C.out_stage_bytes(),
                   shared_.outputs(consumer_).full(given_.stage()));
    given_.advance();
  }
  __device__ __forceinline__ unsigned char* aside(int chunk) const {
    return arguments_.aside + static_cast<int64_t>(blockIdx.x) * C.aside_bytes() +
           (consumer_ * C.aside_chunks() + chunk) * C.out_stage_bytes();
  }
  __device__ __forceinline__ void give() {
    shared_.outputs(consumer_).producer_commit(given_);
    given_.advance();
  }
  // The next stage that the consumer has released.
  __device__ __forceinline__ uint32_t await_stage() {
    ptx::mbarrier_wait(shared_.outputs(consumer_).empty(released_.stage()), released_.parity());
    const uint32_t stage = shared_.out(consumer_, released_.stage()).base;
    released_.advance();
    return stage;
  }

  const Sm90ShardArguments& arguments_;
  const Shared& shared_;
  const int consumer_;
  MatmulTileReader queue_;
  MatmulPartWaits<C> parts_;
  ArrivalWaits<0> begun_;
  uint32_t begun_peers_ = 0;  // a bit for each that was waited for
  PipelineCursor<kStages> given_, released_;
};

}  // namespace perseid::internal::cuda
