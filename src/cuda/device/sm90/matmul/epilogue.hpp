// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The epilogue of matmul (matmul.hpp): c = alpha * sum + bias + beta * c0, and what the policy
// makes of it (device/matmul/policy.hpp).
//
// A consumer's 64 rows go through shared memory in chunks of 128 bytes a row, in the swizzled
// layout of TMA. Per consumer one storing thread, of a spare warp of the producer's warpgroup,
// moves them:
//
//   storing thread   [load c0 to a stage] give it | wait | TMA store, wait until it has read
//   consumer         wait | write results, proxy fence | release it
//
// A deferred epilogue runs during the next tile. After the last one the stages of a and b are free:
// the consumers write all chunks there at once and store them themselves.
#pragma once

#include "cuda/device/element.hpp"
#include "cuda/device/matmul/policy.hpp"
#include "cuda/device/ptx/ldmatrix.hpp"
#include "cuda/device/ptx/ordering.hpp"
#include "cuda/device/sm90/matmul/rank_shards.hpp"

namespace perseid::internal::cuda {

// One thread issues the TMA store of a consumer's chunk; TMA clips what is outside of c.
template <Sm90MatmulConfig C>
__device__ __forceinline__ void store_chunk(const Sm90MatmulArguments& arguments,
                                            const MatmulTilePosition& tile, int consumer, int chunk,
                                            uint32_t from) {
  ptx::tma_store(
      arguments.c, from,
      {tile.column + chunk * C.out_columns(), tile.row + 64 * consumer, tile.batch, 0, 0});
}

// After the thread has issued the stores of all chunks of a consumer's part of a tile.
template <Sm90MatmulConfig C>
__device__ __forceinline__ void depart(const Sm90MatmulArguments& arguments,
                                       const MatmulTilePosition& tile, int consumer) {
  const DepartureSignals signals(arguments.async, arguments.grid, 64, C.columns);
  const int row = tile.row + 64 * consumer;
  if (!signals.wanted(row, tile.column)) return;
  ptx::tma_store_wait();
  ptx::fence_proxy_async_global();
  signals.depart(row, tile.column);
}

// What a consumer's threads do with their accumulators (ptx/wgmma.hpp has the layout).
template <Sm90MatmulConfig C>
class MatmulEpilogue {
  using Shared = MatmulShared<C>;
  static constexpr int kSums = C.columns / 2;
  // f32: the sums before are stored at the tile's end.
  static constexpr int kFirstHeld = (C.out_chunks() - C.deferred_chunks()) * C.out_columns() / 2;

 public:
  using Sums = float[kSums];
  using Rounded = uint32_t[kSums / 2];
  // What the epilogue reads of a tile's rows and columns: factors and bias.
  struct Vectors {
    float upper, lower, bias_upper, bias_lower;                         // of the thread's two rows
    float of_columns[C.columns / 32], bias_of_columns[C.columns / 32];  // of every 32nd column
  };

  // `warp`: of the consumer.
  __device__ __forceinline__ MatmulEpilogue(const Sm90MatmulArguments& arguments,
                                            const Shared& shared, int consumer, int warp, int lane)
      : arguments_(arguments), shared_(shared), consumer_(consumer), warp_(warp), lane_(lane) {}

  // The first of a thread's two rows, eight apart.
  __device__ __forceinline__ int first_row(const MatmulTilePosition& tile) const {
    return tile.row + 64 * consumer_ + 16 * warp_ + lane_ / 4;
  }
  // A lane holds every 32nd column. Loaded before the mainloop, whose time hides it, where
  // registers last until its end.
  __device__ __forceinline__ Vectors load_vectors(const MatmulTilePosition& tile) const {
    Vectors vectors = {};
    const int row = first_row(tile);
    if constexpr (C.scaled) {
      vectors.upper = row_factor(tile, row);
      vectors.lower = row_factor(tile, row + 8);
#pragma unroll
      for (int i = 0; i < C.columns / 32; ++i)
        vectors.of_columns[i] = column_factor(tile, tile.column + 32 * i + lane_);
    }
    const MatmulBias& bias = arguments_.bias;
    if (!C.has_leaf_planes() && bias.data != nullptr) {
      if (bias.column == 0) {
        vectors.bias_upper = read_bias(row, arguments_.grid.m, bias.row);
        vectors.bias_lower = read_bias(row + 8, arguments_.grid.m, bias.row);
      }
#pragma unroll
      for (int i = 0; i < C.columns / 32; ++i)
        if (bias.column != 0)
          vectors.bias_of_columns[i] =
              read_bias(tile.column + 32 * i + lane_, arguments_.grid.n, bias.column);
    }
    return vectors;
  }
  // The first or second column's value for accumulators i to i + 3, from the lane that holds it.
  static __device__ __forceinline__ float of_column(const float (&held)[C.columns / 32], int i,
                                                    int second) {
    const int quad = static_cast<int>(threadIdx.x) % 4;
    return __shfl_sync(0xffffffffu, held[i / 16], 2 * i % 32 + 2 * quad + second);
  }
  // Of a product over ranks (rank_shards.hpp).
  __device__ __forceinline__ void add_parts(const MatmulTilePosition& tile, Sums& sums) const {
    shards_of(tile).add_parts(sums);
  }
  __device__ __forceinline__ void store_partial(const MatmulTilePosition& tile, const Sums& sums) {
    acquire();
    shards_of(tile).store_partial(sums);
    release();
  }
  // sum = alpha * sum * factors + bias, four accumulators at a time: those of two columns.
  __device__ __forceinline__ void scale(const Vectors& vectors, Sums& sums) const {
    if constexpr (C.scaled) multiply_by_factors(vectors, sums);
    const float alpha = arguments_.alpha;
    const bool by_column =
        !C.has_leaf_planes() && arguments_.bias.data != nullptr && arguments_.bias.column != 0;
    float first = vectors.bias_upper, second = vectors.bias_lower;  // of the rows, or the columns
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
      if (by_column) {
        first = of_column(vectors.bias_of_columns, i, 0);
        second = of_column(vectors.bias_of_columns, i, 1);
      }
      sums[i] = fmaf(alpha, sums[i], first);
      sums[i + 1] = fmaf(alpha, sums[i + 1], by_column ? second : first);
      sums[i + 2] = fmaf(alpha, sums[i + 2], by_column ? first : second);
      sums[i + 3] = fmaf(alpha, sums[i + 3], second);
    }
  }
  // The results, rounded to packed pairs of 16 bits. By recursion as emit_all.
  template <int kChunk = 0>
  __device__ __forceinline__ void round(const MatmulTilePosition& tile, const Sums& sums,
                                        Rounded& rounded) {
    if constexpr (kChunk < C.out_chunks()) {
      const Counted counted(arguments_, first_row(tile), tile.column + 2 * (lane_ % 4));
      constexpr int kFirst = kChunk * C.out_columns() / 2;
#pragma unroll
      for (int i = kFirst; i < kFirst + C.out_columns() / 2; i += 2) {
        const int second_row = i / 2 % 2, column = i / 4 * 8;
        rounded[i / 2] =
            round_pair<C.out>(policy_.apply(sums[i], counted(second_row, column)),
                              policy_.apply(sums[i + 1], counted(second_row, column + 1)));
      }
      round<kChunk + 1>(tile, sums, rounded);
    }
  }

  // Hands a chunk of rounded results to the storing thread.
  template <int kChunk>
  __device__ __forceinline__ void emit(const Rounded& rounded) {
    acquire();
    write(rounded, kChunk, shared_.out(consumer_, state_.stage()));
    release();
  }
  // The block's last tile.
  __device__ __forceinline__ void store_last(const MatmulTilePosition& tile,
                                             const Rounded& rounded) const {
    // No consumer reads the stages of a and b any more.
    if constexpr (C.consumers > 1) ptx::named_barrier_sync(1, 128 * C.consumers);
#pragma unroll
    for (int chunk = 0; chunk < C.out_chunks(); ++chunk)
      write(rounded, chunk, shared_.last_out(consumer_, chunk));
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(2 + consumer_, 128);
    if (warp_ != 0 || lane_ != 0) return;
#pragma unroll
    for (int chunk = 0; chunk < C.out_chunks(); ++chunk)
      store_chunk<C>(arguments_, tile, consumer_, chunk, shared_.last_out(consumer_, chunk).base);
    ptx::tma_store_commit();
    if constexpr (C.async && C.parts == 0) depart<C>(arguments_, tile, consumer_);
    ptx::tma_store_wait_read();
  }

  // All chunks of accumulators. Unrolled by recursion: they are indexed by constants, so that they
  // stay in registers.
  template <int kChunk = 0>
  __device__ __forceinline__ void emit_all(const MatmulTilePosition& tile, const Sums& sums) {
    if constexpr (kChunk < C.out_chunks()) {
      emit<kChunk>(tile, sums);
      emit_all<kChunk + 1>(tile, sums);
    }
  }
  // Says whether the chunks of a split tile are stored. They are emitted then; else passed over.
  __device__ __forceinline__ void announce(bool stores) {
    acquire();  // after it the storing thread no longer reads what the tile before has said
    if (warp_ == 0 && lane_ == 0) shared_.stores(consumer_) = stores;
  }
  __device__ __forceinline__ void pass_over() {
    for (int chunk = 0; chunk < C.out_chunks(); ++chunk) {
      acquire();
      release();
    }
  }
  // Emits the chunks of a tile that are not deferred, and holds the others.
  template <int kChunk = 0>
  __device__ __forceinline__ void hold(const MatmulTilePosition& tile, const Sums& sums,
                                       Rounded& held) {
    if constexpr (C.deferred_epilogue()) {
      round(tile, sums, held);
    } else if constexpr (kChunk < C.out_chunks() - C.deferred_chunks()) {
      emit<kChunk>(tile, sums);
      hold<kChunk + 1>(tile, sums, held);
    } else {
#pragma unroll
      for (int i = kFirstHeld; i < kSums; ++i) held[i - kFirstHeld] = __float_as_uint(sums[i]);
    }
  }
  // Deferred chunk kChunk.
  template <int kChunk>
  __device__ __forceinline__ void emit_held(const MatmulTilePosition& tile, const Rounded& held) {
    if constexpr (C.deferred_epilogue()) {
      emit<kChunk>(held);
    } else {
      emit_values<C.out_chunks() - C.deferred_chunks() + kChunk>(
          tile, [&](int at) { return __uint_as_float(held[at - kFirstHeld]); });
    }
  }
  // A chunk of accumulators, with beta * c0 added.
  template <int kChunk>
  __device__ __forceinline__ void emit(const MatmulTilePosition& tile, const Sums& sums) {
    emit_values<kChunk>(tile, [&](int at) { return sums[at]; });
  }
  template <int kChunk, class Values>
  __device__ __forceinline__ void emit_values(const MatmulTilePosition& tile,
                                              const Values& values) {
    acquire();
    const Counted counted(arguments_, first_row(tile),
                          tile.column + kChunk * C.out_columns() + 2 * (lane_ % 4));
    const auto stage = shared_.out(consumer_, state_.stage());
    constexpr int kPairs = C.out_columns() / 4;  // of a thread in the chunk, in both rows
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int row = 16 * warp_ + lane_ / 4 + i % 2 * 8, quad = lane_ % 4;
      const int at = kChunk * C.out_columns() / 2 + 2 * i;
      const float first = values(at), second = values(at + 1);
      const auto result = [&](int of_pair, float value, bool counts = true) {
        return policy_.apply(value, counts && counted(i % 2, i / 2 * 8 + of_pair));
      };
      if constexpr (size_of(C.out) == 1) {
        const float scale = arguments_.result_scale != nullptr ? *arguments_.result_scale : 1;
        *pointer<uint16_t>(stage.piece(row, i / 4) + i / 2 % 2 * 8 + 2 * quad) =
            C.out == DType::kF8E4M3
                ? ptx::to_e4m3x2(result(0, first) * scale, result(1, second) * scale)
                : ptx::to_e5m2x2(result(0, first) * scale, result(1, second) * scale);
      } else if constexpr (size_of(C.out) == 2) {
        uint32_t* const pair = pointer<uint32_t>(stage.piece(row, i / 2) + 4 * quad);
        const float2 c0 = C.source ? widen_pair<C.out>(*pair) : float2{0, 0};
        *pair = round_pair<C.out>(result(0, add_source(first, c0.x)),
                                  result(1, add_source(second, c0.y)));
      } else {
        float2* const pair = pointer<float2>(stage.piece(row, i / 2 * 2 + quad / 2) + quad % 2 * 8);
        const float2 c0 = C.source ? *pair : float2{0, 0};
        const float2 y = {add_source(first, c0.x), add_source(second, c0.y)};
        // A factor of NaN leaves the row or column to the fixup of f32.
        if constexpr (C.scaled && (C.source || C.amax) && size_of(C.in) == 2) {
          const int column = tile.column + kChunk * C.out_columns() + 8 * (i / 2) + 2 * quad;
          const float of_row = row_factor(tile, tile.row + 64 * consumer_ + row);
          const bool left = isnan(of_row * column_factor(tile, column));
          const bool right = isnan(of_row * column_factor(tile, column + 1));
          const float2 z = {result(0, y.x, !left), result(1, y.y, !right)};
          *pair = {left ? c0.x : z.x, right ? c0.y : z.y};
        } else {
          *pair = {result(0, y.x), result(1, y.y)};
        }
      }
    }
    release();
  }

  // After the last tile.
  __device__ __forceinline__ void finish() const { policy_.finish(arguments_.amax); }

 private:
  // Which elements amax counts: those inside of c, of a thread's two rows from a column on.
  class Counted {
   public:
    __device__ __forceinline__ Counted(const Sm90MatmulArguments& arguments, int row, int column)
        : upper_(row < arguments.grid.m),
          lower_(row + 8 < arguments.grid.m),
          left_(arguments.grid.n - column) {}
    __device__ __forceinline__ bool operator()(int second_row, int column) const {
      return (second_row != 0 ? lower_ : upper_) && column < left_;
    }

   private:
    bool upper_, lower_;
    int left_;
  };

  __device__ __forceinline__ MatmulRankShards<C> shards_of(const MatmulTilePosition& tile) const {
    return {arguments_, tile, first_row(tile), tile.column + 2 * (lane_ % 4)};
  }

  static __device__ __forceinline__ void multiply_by_factors(const Vectors& vectors, Sums& sums) {
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
      const float left = of_column(vectors.of_columns, i, 0);
      const float right = of_column(vectors.of_columns, i, 1);
      // In this order: the product of the factors may be out of range.
      sums[i] = sums[i] * vectors.upper * left;
      sums[i + 1] = sums[i + 1] * vectors.upper * right;
      sums[i + 2] = sums[i + 2] * vectors.lower * left;
      sums[i + 3] = sums[i + 3] * vectors.lower * right;
    }
  }
  // The warp's 16 rows of a chunk.
  __device__ __forceinline__ void write(const Rounded& rounded, int chunk,
                                        const typename Shared::Out& to) const {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int at = 16 * chunk + 2 * i;
      ptx::stmatrix_x4(to.piece(16 * warp_ + lane_ % 16, i + lane_ / 16), rounded[at],
                       rounded[at + 1], rounded[at + 2], rounded[at + 3]);
    }
  }
  template <class T>
  static __device__ __forceinline__ T* pointer(uint32_t shared) {
    return static_cast<T*>(__cvta_shared_to_generic(shared));
  }
  __device__ __forceinline__ float add_source(float value, float c0) const {
    if constexpr (C.source) return fmaf(arguments_.beta, c0, value);
    return value;
  }
  // Anything outside of c.
  __device__ __forceinline__ float row_factor(const MatmulTilePosition& tile, int row) const {
    const MatmulFactors& factors = arguments_.row_factors;
    return factors
        .data[tile.batch * factors.batch + min(row, arguments_.grid.m - 1) * factors.line];
  }
  __device__ __forceinline__ float column_factor(const MatmulTilePosition& tile, int column) const {
    const MatmulFactors& factors = arguments_.column_factors;
    return (factors.data +
            tile.batch * factors.batch)[min(column, arguments_.grid.n - 1) * factors.line];
  }
  // 0 outside of the tensor.
  __device__ __forceinline__ float read_bias(int at, int size, int64_t stride) const {
    const MatmulBias& bias = arguments_.bias;
    if (at >= size) return 0;
    return bias.as_out ? widen(static_cast<const Out*>(bias.data)[at * stride])
                       : widen(static_cast<const In*>(bias.data)[at * stride]);
  }
  __device__ __forceinline__ void acquire() { shared_.outputs(consumer_).consumer_wait(state_); }
  __device__ __forceinline__ void release() {
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane_ == 0) shared_.outputs(consumer_).consumer_release(state_);
    state_.advance();
  }

  // The types of the bias.
  using In = typename ElementOf<size_of(C.in) == 1 ? DType::kF32 : C.in>::Type;
  using Out = typename ElementOf<size_of(C.out) == 1 ? DType::kF32 : C.out>::Type;
  const Sm90MatmulArguments& arguments_;
  const Shared& shared_;
  const int consumer_, warp_, lane_;
  PipelineCursor<C.out_stages> state_;
  MatmulPolicy<float, C.activation, C.amax> policy_;
};

// The storing thread of a consumer.
template <Sm90MatmulConfig C>
class MatmulStore {
  using Shared = MatmulShared<C>;
  static constexpr int kStages = C.out_stages;

 public:
  __device__ __forceinline__ MatmulStore(const Sm90MatmulArguments& arguments, const Shared& shared,
                                         int consumer)
      : arguments_(arguments), shared_(shared), consumer_(consumer), queue_(shared.tiles()) {}

  // All of a tile is stored before the thread waits for another tile.
  __device__ __forceinline__ void run() {
    if constexpr (C.deferred_epilogue()) ahead_ = queue_.pop_by_thread();
    if constexpr (C.parts > 0)
      run_shards();
    else
      run_whole();
  }

 private:
  __device__ __forceinline__ void run_whole() {
    for (;;) {
      const MatmulTilePosition tile = next_tile();
      if (!tile.exists()) return;
      store_tile(tile);
      if constexpr (C.async)
        if (stores(tile)) depart<C>(arguments_, tile, consumer_);
    }
  }
  // Of a product over ranks: tiles of the others, then those of the own shard.
  __device__ __forceinline__ void run_shards() {
    MatmulPartWaits<C> parts(arguments_);
    const auto await_parts = [&](const MatmulTilePosition& tile) {
      if (!tile.exists() || !is_own<C>(arguments_, tile)) return;
      parts.await(tile);
      ptx::mbarrier_arrive(shared_.parts_arrived(consumer_));
    };
    if constexpr (C.deferred_epilogue()) await_parts(ahead_);
    for (;;) {
      const MatmulTilePosition tile = next_tile();
      if (!tile.exists()) return;
      if constexpr (!C.deferred_epilogue()) await_parts(tile);
      if (is_own<C>(arguments_, tile)) {
        store_tile(tile);
      } else {
        give(tile, 0);
        ptx::mbarrier_wait(shared_.outputs(consumer_).empty(stored_.stage()), stored_.parity());
        stored_.advance();
        depart<C>(arguments_, tile, consumer_);
      }
      if constexpr (C.deferred_epilogue()) await_parts(ahead_);
    }
  }
  __device__ __forceinline__ void store_tile(const MatmulTilePosition& tile) {
#pragma unroll
    for (int chunk = 0; chunk < min(kStages, C.out_chunks()); ++chunk) give(tile, chunk);
#pragma unroll
    for (int chunk = 0; chunk < C.out_chunks(); ++chunk) {
      store(tile, chunk);
      // All but the last kStages - 1 have been read.
      ptx::tma_store_wait_read<kStages - 1>();
      const int next = chunk + 1;
      if (next >= kStages && next < C.out_chunks()) give(tile, next);
    }
    ptx::tma_store_wait_read();
  }
  // Without the last one where the epilogue is deferred, which it is not of split tiles nor of
  // those of other ranks.
  __device__ __forceinline__ MatmulTilePosition next_tile() {
    if constexpr (!C.deferred_epilogue()) return queue_.pop_by_thread();
    const MatmulTilePosition tile = ahead_;
    if (tile.exists()) ahead_ = queue_.pop_by_thread();
    const bool stored = (C.split_k && tile.unit != 0) || !is_own<C>(arguments_, tile);
    return ahead_.exists() || (tile.exists() && stored) ? tile : ahead_;
  }
  // Gives a stage to the consumer for a chunk of results, with their c0 in it.
  __device__ __forceinline__ void give(const MatmulTilePosition& tile, int chunk) {
    if constexpr (C.source) {
      shared_.outputs(consumer_).producer_expect_bytes(given_, C.out_stage_bytes());
      ptx::tma_load(shared_.out(consumer_, given_.stage()).base, arguments_.c0,
                    shared_.outputs(consumer_).full(given_.stage()),
                    {tile.column + chunk * C.out_columns(), tile.row + 64 * consumer_,
                     tile.batch * arguments_.c0_batch, 0, 0});
    } else {
      shared_.outputs(consumer_).producer_commit(given_);
    }
    given_.advance();
  }
  // Waits for the consumer, and issues the store of its stage.
  __device__ __forceinline__ void store(const MatmulTilePosition& tile, int chunk) {
    ptx::mbarrier_wait(shared_.outputs(consumer_).empty(stored_.stage()), stored_.parity());
    if (stores(tile))
      store_chunk<C>(arguments_, tile, consumer_, chunk,
                     shared_.out(consumer_, stored_.stage()).base);
    ptx::tma_store_commit();
    stored_.advance();
  }
  // After the consumer has released a stage of the tile.
  __device__ __forceinline__ bool stores(const MatmulTilePosition& tile) const {
    return !C.split_k || tile.unit == 0 || shared_.stores(consumer_) != 0;
  }

  const Sm90MatmulArguments& arguments_;
  const Shared& shared_;
  const int consumer_;
  MatmulTilePosition ahead_ = MatmulTilePosition::none();  // after next_tile()
  MatmulTileReader queue_;
  PipelineCursor<kStages> given_, stored_;
};

}  // namespace perseid::internal::cuda
