// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A consumer of matmul (matmul.hpp): a warpgroup that computes 64 rows of each tile.
#pragma once

#include "cuda/device/sm90/matmul/mainloop.hpp"
#include "cuda/device/sm90/matmul/shard_epilogue.hpp"
#include "cuda/device/sm90/matmul/split_k.hpp"

namespace perseid::internal::cuda {

template <Sm90MatmulConfig C, bool kOfShards = C.deferred_parts>
struct MatmulEpilogueOf {
  using Type = MatmulEpilogue<C>;
};
template <Sm90MatmulConfig C>
struct MatmulEpilogueOf<C, true> {
  using Type = MatmulShardEpilogue<C>;
};

template <Sm90MatmulConfig C>
class MatmulConsumer {
  using Shared = MatmulShared<C>;
  using Epilogue = typename MatmulEpilogueOf<C>::Type;
  using Sums = typename Epilogue::Sums;
  using Rounded = typename Epilogue::Rounded;

 public:
  __device__ __forceinline__ MatmulConsumer(const Sm90MatmulArguments& arguments,
                                            const Shared& shared, int consumer)
      : arguments_(arguments),
        shared_(shared),
        consumer_(consumer),
        lane_(static_cast<int>(threadIdx.x) % 32),
        queue_(shared.tiles()),
        mainloop_(shared, consumer, lane_),
        splits_(arguments, shared, consumer),
        epilogue_(arguments, shared, consumer, static_cast<int>(threadIdx.x) / 32 % 4, lane_) {}

  __device__ __forceinline__ void run() {
    Sums sums;
    Rounded held;
    MatmulTilePosition before = MatmulTilePosition::none();  // of what is held
    for (;;) {
      const MatmulTilePosition tile = queue_.pop_by_warp(lane_);
      if (!tile.exists()) break;
      const typename Epilogue::Vectors vectors = epilogue_.load_vectors(tile);
      const int steps = steps_of<C>(arguments_, tile).count();
      int step = 1;
      if constexpr (C.deferred_chunks() > 0) {
        // The tile before, a chunk after each of the first steps; at once where those are too few,
        // or have to wait for an operand: others may wait for these results.
        const bool overlaps =
            before.exists() && steps > C.deferred_chunks() && first_step_is_here();
        if (before.exists() && !overlaps) emit_all(before, held);
        mainloop_.template run_step<true>(sums);
        if (overlaps) {
          const int each = C.deferred_parts ? (steps - 1) / C.deferred_chunks() : 1;
          emit_during_steps(before, held, sums, each);
          step += C.deferred_chunks() * each;
        }
      } else {
        mainloop_.template run_step<true>(sums);
      }
      for (; step < steps; ++step) mainloop_.template run_step<false>(sums);
      mainloop_.complete(sums);

      if constexpr (C.split_k) {
        if (tile.unit != 0) {
          before = MatmulTilePosition::none();
          for (uint32_t& pair : held) pair = 0;  // needs no registers during the fixup
          const bool complete = splits_.complete(tile, sums);
          epilogue_.announce(complete);
          if (!complete) {
            epilogue_.pass_over();
            continue;
          }
          epilogue_.scale(epilogue_.load_vectors(tile), sums);
          if constexpr (C.deferred_epilogue()) {
            epilogue_.round(tile, sums, held);
            emit_all(tile, held);
          } else {
            epilogue_.emit_all(tile, sums);
          }
          continue;
        }
      }
      if constexpr (C.parts > 0 && !C.deferred_parts) {
        if (!is_own<C>(arguments_, tile)) {
          before = MatmulTilePosition::none();
          for (uint32_t& pair : held) pair = 0;
          epilogue_.store_partial(tile, sums);
          continue;
        }
        ptx::mbarrier_wait(shared_.parts_arrived(consumer_), parts_parity_);
        parts_parity_ ^= 1;
        epilogue_.add_parts(tile, sums);
      }
      epilogue_.scale(vectors, sums);
      if constexpr (C.deferred_chunks() > 0) {
        epilogue_.hold(tile, sums, held);
        before = tile;
      } else {
        epilogue_.emit_all(tile, sums);
      }
    }
    if constexpr (C.deferred_epilogue()) {
      if (before.exists()) epilogue_.store_last(before, held);
    } else if constexpr (C.deferred_chunks() > 0) {
      if (before.exists()) emit_all(before, held);
    }
    epilogue_.finish();
  }

 private:
  // Unrolled by recursion: results are indexed by constants, so that they stay in registers.
  template <int kChunk = 0>
  __device__ __forceinline__ void emit_all(const MatmulTilePosition& tile, Rounded& held) {
    if constexpr (kChunk < C.deferred_chunks()) {
      epilogue_.template emit_held<kChunk>(tile, held);
      emit_all<kChunk + 1>(tile, held);
    }
  }
  // A chunk, and so many steps after each.
  template <int kChunk = 0>
  __device__ __forceinline__ void emit_during_steps(const MatmulTilePosition& tile, Rounded& held,
                                                    Sums& sums, int each) {
    if constexpr (kChunk < C.deferred_chunks()) {
      epilogue_.template emit_held<kChunk>(tile, held);
      mainloop_.template run_step<false>(sums);
      if constexpr (C.deferred_parts)
        for (int i = 1; i < each; ++i) mainloop_.template run_step<false>(sums);
      emit_during_steps<kChunk + 1>(tile, held, sums, each);
    }
  }

  // The same answer in all threads of the consumer.
  __device__ __forceinline__ bool first_step_is_here() const {
    if constexpr (!C.async || C.parts > 0) return true;
    return !ptx::named_barrier_any(2 + consumer_, 128, !mainloop_.next_is_here());
  }

  const Sm90MatmulArguments& arguments_;
  const Shared& shared_;
  const int consumer_, lane_;
  MatmulTileReader queue_;
  MatmulMainloop<C> mainloop_;
  MatmulConsumerSplits<C> splits_;
  Epilogue epilogue_;
  uint32_t parts_parity_ = 0;  // of the barrier parts_arrived
};

}  // namespace perseid::internal::cuda
