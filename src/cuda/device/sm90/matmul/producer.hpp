// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The producer of matmul (matmul.hpp): one thread issues the TMA loads of a and b.
#pragma once

#include "cuda/device/sm90/matmul/split_k.hpp"

namespace perseid::internal::cuda {

template <Sm90MatmulConfig C>
class MatmulProducer {
  using Shared = MatmulShared<C>;
  // Dynamic schedule: the scheduler takes the next tile so many steps before the last load, which
  // is about 3.5 us, enough for an atomic operation and the search for the tile.
  static constexpr int kStepsAhead = 1536 / C.columns;

 public:
  __device__ __forceinline__ MatmulProducer(const Sm90MatmulArguments& arguments,
                                            const Shared& shared)
      : arguments_(arguments),
        shared_(shared),
        rank_(static_cast<int>(blockIdx.x) % C.cluster),
        queue_(shared.tiles()) {}

  __device__ __forceinline__ void run() {
    ArrivalWaits<> a(arguments_.async, 0), b(arguments_.async, 1);
    if constexpr (C.async && C.parts == 0) a.start(), b.start();
    for (;;) {
      // Signals of a product over ranks are those of parts.
      if constexpr (C.async && C.parts == 0) {
        const DeviceArrival(&arrivals)[2] = arguments_.async.arrivals;
        if ((arrivals[0].waits != nullptr || arrivals[1].waits != nullptr) &&
            !ptx::mbarrier_test(queue_.operands_arrived(), queue_.parity()))
          await_operands(arguments_, queue_.next(), queue_.operands_arrived(), queue_.parity());
      }
      const MatmulTilePosition tile = queue_.pop_with_operands();
      if (!tile.exists()) return;
      // Orders what the scheduler has acquired before the loads.
      if constexpr (C.async) ptx::fence_proxy_async_global();
      const StepRange steps = steps_of<C>(arguments_, tile);
      for (int step = steps.first; step < steps.last; ++step) {
        if constexpr (C.takes_tiles())
          if (steps.last - step == min(kStepsAhead, steps.last - steps.first))
            ptx::mbarrier_arrive(shared_.wants_tile());
        if constexpr (C.async && C.parts == 0) {
          const bool waited_a = a.await_depth((step + 1) * C.depth());
          const bool waited_b = b.await_depth((step + 1) * C.depth());
          if (waited_a || waited_b) ptx::fence_proxy_async_global();
        }
        load(tile, step);
        state_.advance();
      }
    }
  }

 private:
  // Waits for the operands of the next tile, where somebody asks for how long. The block waits
  // while this thread does: the scheduler runs ahead. It is the wait for the last chunk of the
  // tile.
  static __device__ __noinline__ void await_operands(const Sm90MatmulArguments& arguments,
                                                     const MatmulTilePosition& tile,
                                                     uint32_t arrived, uint32_t parity) {
    const uint64_t begin = ptx::nanoseconds();
    ptx::mbarrier_wait(arrived, parity);
    const bool of_rows = arguments.async.arrivals[0].waits != nullptr;
    const DeviceArrival& arrival = arguments.async.arrivals[of_rows ? 0 : 1];
    if (!tile.exists() || arrival.along_k) return;
    const int first = of_rows ? tile.row : tile.column, size = of_rows ? C.rows() : C.columns;
    const ChunkRange<int32_t> needed = arrival.chunks.covering(first, first + size);
    if (needed.empty()) return;
    const int merge = arguments.grid.merge, visit = arrival.chunks.last_visit(needed);
    const int awaited = min(arrival.chunks.count, (visit / merge + 1) * merge) - 1;
    note_wait(arrival, arrival.chunks.chunk_of_visit(awaited), begin);
  }
  // Rows, columns and depths outside of the operands are zeros; so are those beyond a leaf.
  __device__ __forceinline__ void load(const MatmulTilePosition& tile, int step) const {
    const int of_leaf = arguments_.k_steps / C.leaves, leaf = C.leaves > 1 ? step / of_leaf : 0;
    const int depth = (step - leaf * of_leaf) * C.depth();
    const int stage = state_.stage();
    const uint32_t full = shared_.inputs().full(stage);
    shared_.inputs().producer_acquire(state_);
    shared_.inputs().producer_expect_bytes(state_, C.a_bytes() + C.b_bytes());
    // The dimensions after depths and lines: [batch], or [leaf, batch], or, of planes, [leaf].
    const int entry = C.has_leaf_planes() ? leaf : tile.batch;
    const int a_batch = entry * arguments_.a_batch, b_batch = entry * arguments_.b_batch;
    constexpr bool kLeaves = C.leaves > 1 && !C.has_leaf_planes();
    const int a_third = kLeaves ? leaf : a_batch, a_fourth = kLeaves ? a_batch : 0;
    const int b_third = kLeaves ? leaf : b_batch, b_fourth = kLeaves ? b_batch : 0;
    if constexpr (C.a_m_major)
      typename Shared::AMMajor{shared_.a(stage)}.load(arguments_.a, full,
                                                      {tile.row, depth, a_third, a_fourth, 0});
    else
      typename Shared::AKMajor{shared_.a(stage)}.load(arguments_.a, full,
                                                      {depth, tile.row, a_third, a_fourth, 0});
    const int first = rank_ * C.b_part();  // of this block's part
    const int column = tile.column + first;
    if constexpr (C.b_n_major) {
      const typename Shared::BNMajor part{shared_.b(stage)};
#pragma unroll
      for (int i = 0; i < C.b_part(); i += 64)
        load_b(part.chunk((first + i) / 64), full, {column + i, depth, b_third, b_fourth, 0});
    } else {
      load_b(shared_.b(stage) + first * 128, full, {depth, column, b_third, b_fourth, 0});
    }
  }
  __device__ __forceinline__ void load_b(uint32_t to, uint32_t full, const int (&at)[5]) const {
    if constexpr (C.cluster == 1)
      ptx::tma_load(to, arguments_.b, full, at);
    else
      ptx::tma_load_multicast(to, arguments_.b, full, at, (1 << C.cluster) - 1);
  }

  const Sm90MatmulArguments& arguments_;
  const Shared& shared_;
  const int rank_;  // of the block in its cluster
  MatmulTileReader queue_;
  PipelineCursor<Shared::kStages> state_;
};

}  // namespace perseid::internal::cuda
