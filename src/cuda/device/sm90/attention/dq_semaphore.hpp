// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Synchronization between blocks of attention backward on sm_90a: the order in which key tiles add
// to dQ in deterministic mode, and the counters that say when the sums of a key head are complete.
//
// Deterministic mode. Each consumer has one semaphore in global memory for each query block: the
// number of tiles that have added to its half of the sums. A tile adds when the semaphore has
// reached its own rank, the number of tiles before it in order (dq_summands_before). The tile of
// rank 0 stores instead of adding, so nothing has to clear the sums.
//
// Three threads of the producer's warpgroup access the semaphores, so that consumers never poll
// global memory: one acquires for each consumer, one releases for both. Three mbarriers for each
// consumer, one phase a step:
//
//   dq_granted    acquire() arrives: the consumer may add
//   dq_added      the consumer's four warps arrive: they have added
//   dq_released   release() arrives: it has observed dq_added, acquire() may grant the next step
//
// A phase completes only after its predecessor was observed. Memory order: the store of release()
// has release semantics and follows the wait for dq_added, so it also orders the warps' additions;
// acquire() loads with acquire semantics before it arrives at dq_granted.
//
// Otherwise the sums get their summands in any order, and a block only counts its completed
// consumers: signal_completion() by a warp of the producer's warpgroup.
//
// No wait is unbounded: after kLongestWait a wait sets `timed_out`, which ends all others, and dQ
// of the launch is NaN.
#pragma once

#include "cuda/device/ptx/memory_order.hpp"
#include "cuda/device/sm90/attention/backward_shared.hpp"

namespace perseid::internal::cuda {

// Waits until another block has set a number in memory to `value`; false if any wait timed out.
__device__ __forceinline__ bool await_number(const uint64_t* number, uint64_t value,
                                             uint64_t* timed_out) {
  constexpr uint32_t kPolls = 1024;  // between reads of the clock
  if (ptx::load_acquire(number) == value) return true;
  const uint64_t begin = ptx::nanoseconds();
  for (uint32_t polls = 1; ptx::load_acquire(number) != value; ++polls) {
    if (polls % kPolls != 0) continue;
    if (ptx::load_relaxed(timed_out) == 0 && ptx::nanoseconds() - begin < kLongestWait) continue;
    ptx::store_relaxed(timed_out, 1);
    return false;
  }
  return true;
}

// ---- Completion ----

// Consumers of the key head that have added all of their dQ.
template <AttentionBackwardConfig C>
__device__ __forceinline__ uint64_t* complete_sums(const AttentionBackwardArguments& a,
                                                   const BackwardTile& tile) {
  return a.complete + tile.batch * a.kv_heads + tile.kv_head;
}

// Named barrier of both consumers, which arrive after their last addition, and of the warp that
// runs signal_completion().
inline constexpr int kSumsComplete = 2, kSumsCompleteThreads = 256 + 32;

template <AttentionBackwardConfig C>
__device__ __forceinline__ void signal_completion(const AttentionBackwardArguments& a,
                                                  const BackwardTile& tile) {
  ptx::named_barrier_sync(kSumsComplete, kSumsCompleteThreads);
  if (threadIdx.x % 32 == 0) ptx::add_release(complete_sums<C>(a, tile), C.kConsumers);
}

// ---- Order ----

template <AttentionBackwardConfig C>
class DqSemaphore {
 public:
  __device__ __forceinline__ DqSemaphore(const AttentionBackwardArguments& arguments,
                                         const BackwardShared<C>& shared, const BackwardTile& tile)
      : a_(arguments), shared_(shared), tile_(tile) {}

  // By one thread for each consumer. After a timeout it grants all steps at once.
  __device__ __forceinline__ void acquire(int consumer) const {
    bool in_order = true;
    for_each_step<C>(a_, tile_, [&](int number, const BackwardStep& step) {
      in_order = in_order && await_number(semaphore(step, consumer), rank(step), a_.timed_out);
      if (number > 0) ptx::mbarrier_wait(shared_.dq_released(consumer), parity(number - 1));
      ptx::mbarrier_arrive(shared_.dq_granted(consumer));
    });
  }
  // By one thread for both consumers.
  __device__ __forceinline__ void release() const {
    for_each_step<C>(a_, tile_, [&](int number, const BackwardStep& step) {
#pragma unroll
      for (int i = 0; i < C.kConsumers; ++i) {
        const int consumer = C.split_keys ? i : 1 - i;  // the first to add
        ptx::mbarrier_wait(shared_.dq_added(consumer), parity(number));
        ptx::mbarrier_arrive(shared_.dq_released(consumer));
        ptx::store_release(semaphore(step, consumer), rank(step) + 1);
      }
    });
    if constexpr (C.finishes_early()) ptx::add_release(complete_sums<C>(a_, tile_), C.kConsumers);
  }

  // The parity of a step's phase, of each of the three mbarriers.
  static __device__ __forceinline__ uint32_t parity(int number) {
    return static_cast<uint32_t>(number) & 1;
  }

 private:
  __device__ __forceinline__ uint64_t* semaphore(const BackwardStep& step, int consumer) const {
    return a_.dq_semaphore + number_of_block<C>(a_, tile_, step.head, step.block) * C.kConsumers +
           consumer;
  }
  __device__ __forceinline__ uint64_t rank(const BackwardStep& step) const {
    return static_cast<uint64_t>(dq_summands_before<C>(a_, tile_, step.block));
  }

  const AttentionBackwardArguments& a_;
  const BackwardShared<C>& shared_;
  const BackwardTile& tile_;
};

}  // namespace perseid::internal::cuda
