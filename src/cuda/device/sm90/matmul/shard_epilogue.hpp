// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The deferred epilogue of matmul over ranks (matmul.hpp, rank_shards.hpp): the sums of a tile stay
// in registers in float32, and leave chunk by chunk under the next tile's mainloop.
//
//   mainloop         | steps of tile 1 ...                                             |
//   consumer         | chunk 0 of tile 0 |       chunk 1 |       chunk 2 | ...
//   tile of a peer     sums to a stage   | TMA store to the peer's inbox, or to `partial`
//   tile of its own    parts by TMA | add | ... every second chunk: results to a stage | TMA store
//
// A chunk is 64 rows of 32 sums, a stage of results (epilogue.hpp). The stores of a wave of tiles
// take as long as most of a mainloop where they go to a peer, and so do the loads of parts: spread
// over it neither keeps the tensor cores waiting. 192 columns of two tiles fit in registers. Of 256
// columns the first half leaves at the tile's end, through as many stages as it has chunks.
//
// Stages of a tile, in their order. A peer's: one for each chunk. The own one's: for every two
// chunks, the parts of each other rank for the first, those for the second, and the results. Of
// four leaves (deferred_leaf_consumer.hpp) one more for each chunk comes before all others, through
// which the sums of two leaves are put aside; and one before the others of a chunk, with these sums
// in it.
//
// Memory order. A storing thread waits until its TMA stores have written, also into the memory of a
// peer, and executes a proxy fence before it counts the part with release order. The thread that
// completes a chunk has acquired what all have counted; its store of the signal has release order
// at system scope, and causality order is transitive: whoever acquires the signal at system scope
// sees the stores of all. A proxy fence orders what a storing thread has acquired before its TMA
// loads of parts. What is put aside the same thread stores and loads, when the stores have written.
#pragma once

#include "cuda/device/sm90/matmul/epilogue.hpp"

namespace perseid::internal::cuda {

// What a consumer's threads do.
template <Sm90MatmulConfig C>
class MatmulShardEpilogue {
  using Shared = MatmulShared<C>;
  static constexpr int kSums = C.columns / 2, kOfChunk = C.kSumColumns / 2;
  static constexpr int kHeld = C.deferred_chunks(), kAtOnce = C.sum_chunks() - kHeld;
  static_assert(kAtOnce % 2 == 0 && kHeld % 2 == 0, "chunks of results are two of sums");

 public:
  using Sums = float[kSums];
  using Rounded = Sums;  // what is held
  struct Vectors {};

  // `warp`: of the consumer.
  __device__ __forceinline__ MatmulShardEpilogue(const Sm90MatmulArguments& arguments,
                                                 const Shared& shared, int consumer, int warp,
                                                 int lane)
      : arguments_(arguments), shared_(shared), consumer_(consumer), warp_(warp), lane_(lane) {}

  __device__ __forceinline__ Vectors load_vectors(const MatmulTilePosition&) const { return {}; }
  __device__ __forceinline__ void scale(const Vectors&, Sums&) const {}
  __device__ __forceinline__ void finish() const {}

  // By recursion, so that sums are indexed by constants.
  template <int kChunk = 0>
  __device__ __forceinline__ void hold(const MatmulTilePosition& tile, Sums& sums, Sums& held) {
    if constexpr (kChunk < kAtOnce) {
      emit<kChunk>(tile, sums);
      hold<kChunk + 1>(tile, sums, held);
    } else {
#pragma unroll
      for (int i = kAtOnce * kOfChunk; i < kSums; ++i) held[i] = sums[i];
    }
  }
  template <int kChunk>
  __device__ __forceinline__ void emit_held(const MatmulTilePosition& tile, Sums& held) {
    if constexpr (C.leaf_sum_bytes() > 0) add_aside<kChunk>(held);
    emit<kAtOnce + kChunk>(tile, held);
  }
  // A chunk of the sums of two of four leaves.
  template <int kChunk>
  __device__ __forceinline__ void put_aside(const Sums& held) {
    give<kChunk>(held);
  }

 private:
  template <int kChunk>
  __device__ __forceinline__ void emit(const MatmulTilePosition& tile, Sums& sums) {
    if (!is_own<C>(arguments_, tile)) {
      give<kChunk>(sums);
    } else {
      add_parts<kChunk>(sums);
      if constexpr (kChunk % 2 == 1) give_results<kChunk / 2>(tile, sums);
    }
  }
  // The thread's first pair of sums in a stage.
  static __device__ __forceinline__ uint32_t first_pair(const typename Shared::Out& stage) {
    const int thread = ptx::thread_number(), row = thread / 32 % 4 * 16 + thread % 32 / 4;
    return stage.piece(row, thread % 4 / 2) + thread % 2 * 8;
  }
  // Pair i: in the thread's upper and lower row in turn.
  static __device__ __forceinline__ float2& pair(uint32_t first, int i) {
    return *static_cast<float2*>(
        __cvta_shared_to_generic(Shared::Out::advance_piece(first, i / 2 * 2) + i % 2 * 8 * 128));
  }

  template <int kChunk>
  __device__ __forceinline__ void give(const Sums& sums) {
    shared_.outputs(consumer_).consumer_wait(state_);
    const uint32_t first = first_pair(shared_.out(consumer_, state_.stage()));
#pragma unroll
    for (int i = 0; i < kOfChunk / 2; ++i)
      pair(first, i) = {sums[kChunk * kOfChunk + 2 * i], sums[kChunk * kOfChunk + 2 * i + 1]};
    release();
  }

  template <int kChunk>
  __device__ __forceinline__ void add_aside(Sums& sums) {
    shared_.outputs(consumer_).consumer_wait(state_);
    const uint32_t first = first_pair(shared_.out(consumer_, state_.stage()));
#pragma unroll
    for (int i = 0; i < kOfChunk / 2; ++i) {
      const float2 other = pair(first, i);
      sums[kChunk * kOfChunk + 2 * i] += other.x;
      sums[kChunk * kOfChunk + 2 * i + 1] += other.y;
    }
    __syncwarp();
    if (lane_ == 0) shared_.outputs(consumer_).consumer_release(state_);
    state_.advance();
  }

  // The sum over ranks, in their order, or in canonical order in pairs of neighbours.
  template <int kChunk>
  __device__ __forceinline__ void add_parts(Sums& sums) {
    uint32_t from[C.parts];
    PipelineCursor<C.out_stages> end = state_;
#pragma unroll
    for (int j = 0; j < C.parts; ++j) {
      shared_.outputs(consumer_).consumer_wait(end);
      from[j] = first_pair(shared_.out(consumer_, end.stage()));
      end.advance();
    }
    // How many parts come before the own one. Sums of two are the same in either order.
    const int before = max(arguments_.parts.own, 1);
#pragma unroll
    for (int i = 0; i < kOfChunk / 2; ++i) {
      float2 parts[C.parts];
#pragma unroll
      for (int j = 0; j < C.parts; ++j) parts[j] = pair(from[j], i);
      float &first = sums[kChunk * kOfChunk + 2 * i], &second = sums[kChunk * kOfChunk + 2 * i + 1];
      if constexpr (C.adds_parts_in_pairs() && C.parts == 3) {
        const float2 lower = parts[0], upper = parts[C.parts - 1];
        const bool below = before < 2;
        first = (first + (below ? lower.x : upper.x)) + (parts[1].x + (below ? upper.x : lower.x));
        second =
            (second + (below ? lower.y : upper.y)) + (parts[1].y + (below ? upper.y : lower.y));
        continue;
      }
      float2 sum = parts[0];
#pragma unroll
      for (int j = 1; j <= C.parts; ++j) {
        const float2 other = j < before ? parts[min(j, C.parts - 1)] : parts[j - 1];
        sum.x += j == before ? first : other.x;
        sum.y += j == before ? second : other.y;
      }
      first = sum.x;
      second = sum.y;
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < C.parts; ++j) {
      if (lane_ == 0) shared_.outputs(consumer_).consumer_release(state_);
      state_.advance();
    }
  }

  // alpha * sum + bias, rounded: 64 columns.
  template <int kChunk>
  __device__ __forceinline__ void give_results(const MatmulTilePosition& tile, const Sums& sums) {
    constexpr int kFirst = kChunk * 2 * kOfChunk;
    const float alpha = arguments_.alpha;
    const MatmulBias& bias = arguments_.bias;
    const bool by_column = bias.data != nullptr && bias.column != 0;
    float upper = 0, lower = 0, of_columns[2] = {};  // of every 32nd column
    if (by_column) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        of_columns[i] =
            read_bias(tile.column + 64 * kChunk + 32 * i + lane_, arguments_.grid.n, bias.column);
    } else if (bias.data != nullptr) {
      const int row = tile.row + 64 * consumer_ + 16 * warp_ + lane_ / 4;
      upper = read_bias(row, arguments_.grid.m, bias.row);
      lower = read_bias(row + 8, arguments_.grid.m, bias.row);
    }
    uint32_t rounded[kOfChunk];
#pragma unroll
    for (int i = 0; i < 2 * kOfChunk; i += 4) {
      float left = 0, right = 0;
      if (by_column) {
        left = of_column(of_columns, i, 0);
        right = of_column(of_columns, i, 1);
      }
      const auto result = [&](int j, float of_row, float of_column) {
        return policy_.apply(fmaf(alpha, sums[kFirst + i + j], by_column ? of_column : of_row));
      };
      rounded[i / 2] = round_pair<C.out>(result(0, upper, left), result(1, upper, right));
      rounded[i / 2 + 1] = round_pair<C.out>(result(2, lower, left), result(3, lower, right));
    }
    shared_.outputs(consumer_).consumer_wait(state_);
    const auto stage = shared_.out(consumer_, state_.stage());
#pragma unroll
    for (int i = 0; i < 8; i += 2)
      ptx::stmatrix_x4(stage.piece(16 * warp_ + lane_ % 16, i + lane_ / 16), rounded[2 * i],
                       rounded[2 * i + 1], rounded[2 * i + 2], rounded[2 * i + 3]);
    release();
  }
  // The first or second column's value for sums i to i + 3, from the lane that holds it.
  __device__ __forceinline__ float of_column(const float (&held)[2], int i, int second) const {
    return __shfl_sync(0xffffffffu, held[i / 16], 2 * i % 32 + 2 * (lane_ % 4) + second);
  }
  // 0 outside of the tensor.
  __device__ __forceinline__ float read_bias(int at, int size, int64_t stride) const {
    const MatmulBias& bias = arguments_.bias;
    if (at >= size) return 0;
    return bias.as_out
               ? widen(static_cast<const typename ElementOf<C.out>::Type*>(bias.data)[at * stride])
               : widen(static_cast<const typename ElementOf<C.in>::Type*>(bias.data)[at * stride]);
  }
  __device__ __forceinline__ void release() {
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane_ == 0) shared_.outputs(consumer_).consumer_release(state_);
    state_.advance();
  }

  const Sm90MatmulArguments& arguments_;
  const Shared& shared_;
  const int consumer_, warp_, lane_;
  PipelineCursor<C.out_stages> state_;
  MatmulPolicy<float, C.activation, false> policy_;
};

// The storing thread of a consumer.
template <Sm90MatmulConfig C>
class MatmulShardStore {
  using Shared = MatmulShared<C>;
  static constexpr int kStages = C.out_stages;
  static constexpr bool kAside = C.leaf_sum_bytes() > 0;
  // Stages of the own shard for a chunk of sums, and for two of them and the results.
  static constexpr int kOfParts = C.parts + kAside, kOfResults = 2 * kOfParts + 1;

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
    for (;;) {
      const MatmulTilePosition tile = queue_.pop_by_thread();
      if (!tile.exists()) return;
      if constexpr (kAside) store_aside();
      if (is_own<C>(arguments_, tile))
        store_own(tile);
      else
        store_sums(tile);
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
                       {column + chunk * C.kSumColumns, row, tile.batch, 0, 0});
    };
    if constexpr (kAside)
      store_sums_of_leaves(store);
    else
      store_chunks(store);
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
  // All chunks of sums, each when the consumer has released its stage.
  template <class Store>
  __device__ __forceinline__ void store_chunks(const Store& store) {
    for (int i = 0; i < min(kStages, C.sum_chunks()); ++i) give();
    for (int i = 0; i < C.sum_chunks(); ++i) {
      store(i, await_stage());
      ptx::tma_store_commit();
      // All but the last kStages - 1 have been read.
      ptx::tma_store_wait_read<kStages - 1>();
      if (kStages <= i + 1 && i + 1 < C.sum_chunks()) give();
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
    store_chunks(
        [&](int chunk, uint32_t stage) { ptx::bulk_store(aside(chunk), stage, C.kOutStageBytes); });
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
    constexpr int kUses = C.sum_chunks() / 2 * kOfResults;
    parts_.await(tile);
    ptx::fence_proxy_async_global();
    for (int i = 0; i < min(kStages, kUses); ++i) give_own(tile, i);
    for (int i = 0; i < kUses; ++i) {
      const uint32_t stage = await_stage();
      if (i % kOfResults == kOfResults - 1) {
        store_chunk<C>(arguments_, tile, consumer_, i / kOfResults, stage);
        ptx::tma_store_commit();
        ptx::tma_store_wait_read();
      }
      if (i + kStages < kUses) give_own(tile, i + kStages);
    }
  }
  // Gives a stage with the parts of a rank in it, or one for results.
  __device__ __forceinline__ void give_own(const MatmulTilePosition& tile, int use) {
    const int of_two = use / kOfResults, i = use % kOfResults;
    if (i == kOfResults - 1) return give();
    const int chunk = 2 * of_two + i / kOfParts, other = i % kOfParts - kAside;
    if (kAside && other < 0) return give_aside(chunk);
    shared_.outputs(consumer_).producer_expect_bytes(given_, C.kOutStageBytes);
    ptx::tma_load(shared_.out(consumer_, given_.stage()).base, arguments_.arrived,
                  shared_.outputs(consumer_).full(given_.stage()),
                  {tile.column + chunk * C.kSumColumns - arguments_.arrived_column,
                   tile.row + 64 * consumer_ - arguments_.arrived_row, tile.batch,
                   other + (other >= arguments_.parts.own), 0});
    given_.advance();
  }
  // A stage with what was put aside of a chunk in it.
  __device__ __forceinline__ void give_aside(int chunk) {
    shared_.outputs(consumer_).producer_expect_bytes(given_, C.kOutStageBytes);
    ptx::bulk_load(shared_.out(consumer_, given_.stage()).base, aside(chunk), C.kOutStageBytes,
                   shared_.outputs(consumer_).full(given_.stage()));
    given_.advance();
  }
  __device__ __forceinline__ unsigned char* aside(int chunk) const {
    return arguments_.leaf_sums + static_cast<int64_t>(blockIdx.x) * C.leaf_sum_bytes() +
           (consumer_ * C.sum_chunks() + chunk) * C.kOutStageBytes;
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
