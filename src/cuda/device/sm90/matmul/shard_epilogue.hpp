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
// over it neither keeps the tensor cores waiting. 192 columns of two tiles fit in registers.
// Wide tiles, of 256 columns, are in wide_shard_consumer.hpp; their chunks have 16 columns.
//
// Stages of a tile, in their order. A peer's: one for each chunk. The own one's: for every two
// chunks, the parts of each other rank for the first, those for the second, and the results. Where
// sums are put aside, of four leaves (deferred_leaf_consumer.hpp) or of half of a wide tile, one
// more for each chunk of them comes before all others, through which they leave; and one before the
// others of a chunk, with these sums in it.
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
  static constexpr int kSums = C.columns / 2, kOfChunk = C.sum_columns() / 2;
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
      give<kChunk>(sums);
      hold<kChunk + 1>(tile, sums, held);
    } else {
#pragma unroll
      for (int i = kAtOnce * kOfChunk; i < kSums; ++i) held[i] = sums[i];
    }
  }
  template <int kChunk>
  __device__ __forceinline__ void emit_held(const MatmulTilePosition& tile, Sums& held) {
    if constexpr (C.leaves == 4) add_aside<kChunk>(held);
    emit<kAtOnce + kChunk>(tile, held);
  }
  // A chunk of the sums of two of four leaves.
  template <int kChunk>
  __device__ __forceinline__ void put_aside(const Sums& held) {
    give<kChunk>(held);
  }

  // Of an own tile, chunks that were put aside: two neighbours are `pair`, and give results.
  static constexpr int kPairs = C.is_wide() ? kAtOnce / 2 : 0;
  using Pair = float[2 * kOfChunk];
  template <int kOfPair>
  __device__ __forceinline__ void sum_aside(const MatmulTilePosition& tile, int number,
                                            Pair& pair) {
    add_parts<kOfPair, true>(pair);
    if constexpr (kOfPair == 1) give_results<0>(tile, number, pair);
  }
  // A block's last tile, if it is its own: no mainloop hides anything.
  __device__ __forceinline__ void finish_own(const MatmulTilePosition& tile, Sums& sums) {
    ptx::mbarrier_wait(shared_.parts_arrived(consumer_), 0);
    const int row = tile.row + 64 * consumer_ + 16 * warp_ + lane_ / 4;
    MatmulRankShards<C>(arguments_, tile, row, tile.column + 2 * (lane_ % 4)).add_parts(sums);
    give_all_results(tile, sums);
  }

 private:
  template <int kPair = 0>
  __device__ __forceinline__ void give_all_results(const MatmulTilePosition& tile,
                                                   const Sums& sums) {
    if constexpr (kPair < C.sum_chunks() / 2) {
      give_results<2 * kPair * kOfChunk>(tile, kPair, sums);
      give_all_results<kPair + 1>(tile, sums);
    }
  }
  template <int kChunk>
  __device__ __forceinline__ void emit(const MatmulTilePosition& tile, Sums& sums) {
    if (!is_own<C>(arguments_, tile)) {
      give<kChunk>(sums);
    } else {
      add_parts<kChunk>(sums);
      if constexpr (kChunk % 2 == 1) give_results<(kChunk - 1) * kOfChunk>(tile, kChunk / 2, sums);
    }
  }
  // The thread's first pair of sums in a stage.
  static __device__ __forceinline__ uint32_t first_pair(const typename Shared::Out& stage) {
    const int thread = ptx::thread_number(), row = thread / 32 % 4 * 16 + thread % 32 / 4;
    return stage.piece(row, thread % 4 / 2) + thread % 2 * 8;
  }
  // Pair i: in the thread's upper and lower row in turn.
  static __device__ __forceinline__ float2& pair(uint32_t first, int i) {
    return *static_cast<float2*>(__cvta_shared_to_generic(
        Shared::Out::advance_piece(first, i / 2 * 2) + i % 2 * 8 * C.out_row_bytes()));
  }
  // Rows of 64 bytes: of a thread's two times eight columns, those of two rows lie in the same
  // banks as those of the two rows after them. Every other two rows access them in the other order.
  __device__ __forceinline__ bool exchanges() const {
    return C.out_row_bytes() == 64 && lane_ / 8 % 2 != 0;
  }
  __device__ __forceinline__ uint32_t first_access(uint32_t first) const {
    return exchanges() ? Shared::Out::advance_piece(first, 2) : first;
  }
  // Values of a chunk to the order of accesses and back.
  template <int kFirst, int kCount>
  __device__ __forceinline__ void exchange(float (&values)[kCount]) const {
    if constexpr (C.out_row_bytes() == 64)
#pragma unroll
      for (int i = kFirst; i < kFirst + 4; ++i) {
        const float left = values[i], right = values[i + 4];
        values[i] = exchanges() ? right : left;
        values[i + 4] = exchanges() ? left : right;
      }
  }

  template <int kChunk>
  __device__ __forceinline__ void give(const Sums& sums) {
    shared_.outputs(consumer_).consumer_wait(state_);
    const uint32_t first = first_access(first_pair(shared_.out(consumer_, state_.stage())));
    float values[kOfChunk];
#pragma unroll
    for (int i = 0; i < kOfChunk; ++i) values[i] = sums[kChunk * kOfChunk + i];
    exchange<0>(values);
#pragma unroll
    for (int i = 0; i < kOfChunk / 2; ++i) pair(first, i) = {values[2 * i], values[2 * i + 1]};
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
  // kAside: the own part is in a stage before the others.
  template <int kChunk, bool kAside = false, int kCount>
  __device__ __forceinline__ void add_parts(float (&sums)[kCount]) {
    uint32_t from[C.parts];
    PipelineCursor<C.out_stages> end = state_;
    if constexpr (kAside) {
      shared_.outputs(consumer_).consumer_wait(end);
      const uint32_t own = first_access(first_pair(shared_.out(consumer_, end.stage())));
      end.advance();
#pragma unroll
      for (int i = 0; i < kOfChunk / 2; ++i) {
        const float2 values = pair(own, i);
        sums[kChunk * kOfChunk + 2 * i] = values.x;
        sums[kChunk * kOfChunk + 2 * i + 1] = values.y;
      }
    } else {
      exchange<kChunk * kOfChunk>(sums);
    }
#pragma unroll
    for (int j = 0; j < C.parts; ++j) {
      shared_.outputs(consumer_).consumer_wait(end);
      from[j] = first_access(first_pair(shared_.out(consumer_, end.stage())));
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
    exchange<kChunk * kOfChunk>(sums);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < C.parts + kAside; ++j) {
      if (lane_ == 0) shared_.outputs(consumer_).consumer_release(state_);
      state_.advance();
    }
  }

  // alpha * sum + bias, rounded: chunk `number` of results, two of sums from kFirst on.
  template <int kFirst, int kCount>
  __device__ __forceinline__ void give_results(const MatmulTilePosition& tile, int number,
                                               const float (&sums)[kCount]) {
    constexpr int kColumns = 2 * C.sum_columns();
    const float alpha = arguments_.alpha;
    const MatmulBias& bias = arguments_.bias;
    const bool by_column = bias.data != nullptr && bias.column != 0;
    float upper = 0, lower = 0, of_columns[kColumns / 32] = {};  // of every 32nd column
    if (by_column) {
#pragma unroll
      for (int i = 0; i < kColumns / 32; ++i)
        of_columns[i] = read_bias(tile.column + kColumns * number + 32 * i + lane_,
                                  arguments_.grid.n, bias.column);
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
    for (int i = 0; i < kOfChunk / 2; i += 2)
      ptx::stmatrix_x4(stage.piece(16 * warp_ + lane_ % 16, i + lane_ / 16), rounded[2 * i],
                       rounded[2 * i + 1], rounded[2 * i + 2], rounded[2 * i + 3]);
    release();
  }
  // The first or second column's value for sums i to i + 3, from the lane that holds it.
  template <int kCount>
  __device__ __forceinline__ float of_column(const float (&held)[kCount], int i, int second) const {
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

}  // namespace perseid::internal::cuda
