// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// A pipeline of stages in shared memory between producers and consumers of one block.
//
// Every stage has two mbarriers, eight bytes each, the full ones of all stages first:
//
//   full[0] .. full[Stages - 1]      producers arrive, with the bytes that TMA writes;
//                                    consumers wait
//   empty[0] .. empty[Stages - 1]    consumers arrive; producers wait
//
// Iteration i uses stage i % Stages, and the phases of its barriers have parity (i / Stages) % 2.
// A producer waits for the opposite parity, that of the phase before, which a fresh barrier counts
// as complete: the first Stages iterations do not wait.
//
//   iteration           0 1 2 3 4 5 6 7 8 ...    three stages
//   stage               0 1 2 0 1 2 0 1 2
//   consumer's parity   0 0 0 1 1 1 0 0 0
//   producer's parity   1 1 1 0 0 0 1 1 1
//
// A phase completes only after its predecessor was observed: a producer fills a stage again only
// after it has seen the phase of `empty`, so that parity alone tells the phases apart.
//
// A warp or warpgroup that arrives once for many threads has them synchronize first (__syncwarp, or
// the wait of the wgmma that reads the stage).
#pragma once

#include "math/portable.hpp"
#if defined(__CUDACC_RTC__)
#include "cuda/device/ptx/cluster.hpp"
#include "cuda/device/ptx/mbarrier.hpp"
#endif

namespace perseid::internal::cuda {

// An iteration of a pipeline, by its number: any iteration can be addressed.
template <int Stages>
struct PipelineState {
  int count = 0;

  PERSEID_INLINE constexpr int stage() const { return count % Stages; }
  PERSEID_INLINE constexpr uint32_t parity() const {
    return static_cast<uint32_t>(count / Stages) & 1;
  }
  PERSEID_INLINE constexpr void advance() { ++count; }
};

// A piece of an iteration's data, which has a stage of its own in a pipeline of Stages * Pieces.
template <int Stages, int Pieces>
struct PipelinePiece {
  PipelineState<Stages> state;
  int piece;

  PERSEID_INLINE constexpr int stage() const { return state.stage() * Pieces + piece; }
  PERSEID_INLINE constexpr uint32_t parity() const { return state.parity(); }
};

// The same iterations, visited one after the other: wraps instead of dividing, and counts without
// end.
template <int Stages>
class PipelineCursor {
 public:
  PERSEID_INLINE constexpr int stage() const { return stage_; }
  PERSEID_INLINE constexpr uint32_t parity() const { return parity_; }
  PERSEID_INLINE constexpr void advance() {
    if (++stage_ == Stages) stage_ = 0, parity_ ^= 1;
  }

 private:
  int stage_ = 0;
  uint32_t parity_ = 0;
};

// A state is a PipelineState, a PipelinePiece or a PipelineCursor. Without stages there are no
// barriers.
template <int Stages>
struct Pipeline {
  uint32_t barriers;  // shared memory address of full(0), a multiple of 8

  static constexpr int kBytes = 16 * Stages;

  PERSEID_INLINE constexpr uint32_t full(int stage) const { return barriers + 8 * stage; }
  PERSEID_INLINE constexpr uint32_t empty(int stage) const {
    return barriers + 8 * (Stages + stage);
  }

#if defined(__CUDACC_RTC__)
  // By one thread, before ptx::mbarrier_init_fence() and a barrier of the block. `producers` and
  // `consumers` arrive in each phase; an arrival by expect_bytes counts as one.
  __device__ __forceinline__ void init(uint32_t producers, uint32_t consumers) const {
    for (int stage = 0; stage < Stages; ++stage) {
      ptx::mbarrier_init(full(stage), producers);
      ptx::mbarrier_init(empty(stage), consumers);
    }
  }

  // Waits until the consumers have released the stage.
  template <class State>
  __device__ __forceinline__ void producer_acquire(const State& state) const {
    ptx::mbarrier_wait(empty(state.stage()), state.parity() ^ 1);
  }
  // Arrives; the phase completes when TMA has written so many bytes.
  template <class State>
  __device__ __forceinline__ void producer_expect_bytes(const State& state, uint32_t bytes) const {
    ptx::mbarrier_arrive_expect_tx(full(state.stage()), bytes);
  }
  // Arrives, for a stage that threads have written.
  template <class State>
  __device__ __forceinline__ void producer_commit(const State& state) const {
    ptx::mbarrier_arrive(full(state.stage()));
  }

  // Waits until the stage is full.
  template <class State>
  __device__ __forceinline__ void consumer_wait(const State& state) const {
    ptx::mbarrier_wait(full(state.stage()), state.parity());
  }
  // Whether the stage is full, without waiting.
  template <class State>
  __device__ __forceinline__ bool consumer_test(const State& state) const {
    return ptx::mbarrier_test(full(state.stage()), state.parity());
  }
  // Arrives: the calling thread, and those that it stands for, no longer read the stage.
  template <class State>
  __device__ __forceinline__ void consumer_release(const State& state) const {
    ptx::mbarrier_arrive(empty(state.stage()));
  }
  // The same, of the stage in another block of the cluster, which a multicast of that block fills.
  template <class State>
  __device__ __forceinline__ void consumer_release_in_block(const State& state,
                                                            uint32_t block) const {
    ptx::mbarrier_arrive_in_block(ptx::address_in_block(empty(state.stage()), block));
  }
#endif
};

}  // namespace perseid::internal::cuda
