// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Which tile a block of a persistent kernel computes next: a dynamic scheduler whose blocks draw
// tile numbers from one counter. The raster order of tiles is in raster_order.hpp.
//
// The counter. Its memory may hold anything when the kernel begins, and several launches may run at
// once, each with memory of its own. A launch has a number of 64 random bits, which is even. A
// block that finds another number in `ready` writes launch + 1 there by compare-and-swap, so that
// one block alone prepares the counter; it then writes the launch's number (release), which the
// other blocks acquire. A block waits only for a block that already runs. The last block to finish
// clears `ready`: a captured launch has the same number in each replay and finds its counter
// unprepared again.
#pragma once

#include "cuda/device/raster_order.hpp"
#include "math/portable.hpp"
#if defined(__CUDACC_RTC__)
#include "cuda/device/ptx/memory_order.hpp"
#endif

namespace perseid::internal::cuda {

// In the workspace, with 8-byte alignment. A kernel that keeps more for a launch derives from it
// and extends reset().
struct TileCounter {
  uint64_t ready;  // the launch that it is prepared for
  uint32_t next;
  uint32_t finished;  // blocks

  PERSEID_INLINE constexpr void reset() {
    next = 0;
    finished = 0;
  }
};

// Ticket t, the t-th draw of a launch, stands for tile gridDim.x + t: a block begins with the tile
// of its own number and draws only the others.
PERSEID_INLINE constexpr int32_t tile_of_ticket(uint32_t ticket, uint32_t blocks) {
  return static_cast<int32_t>(ticket + blocks);
}

#if defined(__CUDACC_RTC__)
// One thread of a block, or of a cluster of kCluster blocks, calls it. It calls first(), then
// draw() until number_of(ticket) is the number of all tiles (of clusters) or more, then close(). Of
// the kernel's arguments it takes
//   counter    a TileCounter, or what derives from it; may be null where each block has one tile
//   launch     the launch's number
//   tiles      of the whole launch, those of blocks
// and refers to them, so that they stay in constant memory and need no registers.
template <class Arguments, int kCluster = 1>
class DynamicTileScheduler {
 public:
  __device__ __forceinline__ explicit DynamicTileScheduler(const Arguments& arguments)
      : arguments_(arguments), draws_(arguments.tiles > static_cast<int32_t>(gridDim.x)) {}

  __device__ __forceinline__ int32_t first() const {
    return static_cast<int32_t>(blockIdx.x) / kCluster;
  }

  // Prepares the counter, or waits until another block has. To be called early, after the first
  // loads were issued; draw() and close() call it, too.
  __device__ __forceinline__ void open() {
    if (!draws_ || open_) return;
    auto& counter = *arguments_.counter;
    const uint64_t launch = arguments_.launch;
    uint64_t seen = ptx::load_acquire(&counter.ready);
    while (seen != launch) {
      if (seen != launch + 1 && atomicCAS(&counter.ready, seen, launch + 1) == seen) {
        counter.reset();
        ptx::store_release(&counter.ready, launch);
        break;
      }
      seen = ptx::load_acquire(&counter.ready);
    }
    open_ = true;
  }
  // Computes nothing from the ticket, so that the caller can issue loads before it waits for it.
  __device__ __forceinline__ uint32_t draw() {
    if (!draws_) return static_cast<uint32_t>(arguments_.tiles);
    open();
    return atomicAdd(&arguments_.counter->next, 1u);
  }
  __device__ __forceinline__ int32_t number_of(uint32_t ticket) const {
    return tile_of_ticket(ticket, gridDim.x / kCluster);
  }
  // After the last draw, by every block, also one that has drawn nothing.
  __device__ __forceinline__ void close() {
    if (!draws_) return;
    open();
    auto& counter = *arguments_.counter;
    if (atomicAdd(&counter.finished, 1u) == gridDim.x / kCluster - 1)
      ptx::store_release(&counter.ready, 0);
  }

 private:
  const Arguments& arguments_;
  bool draws_;
  bool open_ = false;
};
#endif

}  // namespace perseid::internal::cuda
