// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Order of a block's warps in steps that have no barrier of the block, on sm_80 and up.
//
// A step needs columns that all threads have copied by cp.async, and copies those of the next step
// over the ones of the step before. A barrier of the block in each step would do for both, but all
// warps would then compute the same at the same time: products, which shared memory and tensor
// cores bound, or exponentials, which leave them idle. Two mbarriers let warps drift apart:
//
//   filled   phase i: the columns of step i have arrived. All threads, by their copies.
//   ended    phase i: all warps are done with step i. All threads, at its end.
//
// In step i a warp waits for phase i of `filled` before its first product, and for phase i - 1 of
// `ended` as late as it can, before it overwrites what step i - 1 reads. No thread arrives for a
// phase before it has waited for the one before, so parities never alias. An arrival releases what
// the thread has written and read, a wait acquires it.
#pragma once

#include "cuda/device/ptx/cp_async.hpp"
#include "cuda/device/ptx/mbarrier.hpp"

namespace perseid::internal::cuda {

class StepBarriers {
 public:
  // The address of both, 16 bytes, a multiple of 8.
  __device__ __forceinline__ explicit StepBarriers(uint32_t address) : address_(address) {}

  // By one thread, before a barrier of the block.
  __device__ __forceinline__ void initialize(int threads) const {
    ptx::mbarrier_init(filled(), static_cast<uint32_t>(threads));
    ptx::mbarrier_init(ended(), static_cast<uint32_t>(threads));
  }
  // When the thread's copies have arrived, or at once: they have.
  __device__ __forceinline__ void arrive_filled_by_copies() const {
    ptx::cp_async_mbarrier_arrive(filled());
  }
  __device__ __forceinline__ void arrive_filled() const { ptx::mbarrier_arrive(filled()); }
  __device__ __forceinline__ void wait_filled(int step) const {
    ptx::mbarrier_wait(filled(), static_cast<uint32_t>(step & 1));
  }
  __device__ __forceinline__ void arrive_ended() const { ptx::mbarrier_arrive(ended()); }
  __device__ __forceinline__ void wait_ended(int step) const {
    ptx::mbarrier_wait(ended(), static_cast<uint32_t>(step & 1));
  }

 private:
  __device__ __forceinline__ uint32_t filled() const { return address_; }
  __device__ __forceinline__ uint32_t ended() const { return address_ + 8; }

  const uint32_t address_;
};

}  // namespace perseid::internal::cuda
