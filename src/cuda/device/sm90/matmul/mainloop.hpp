// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The steps of a consumer of matmul (matmul.hpp) along k: products of its 64 rows, summed by the
// tensor cores.
#pragma once

#include "cuda/device/ptx/wgmma.hpp"
#include "cuda/device/sm90/matmul/shared.hpp"

namespace perseid::internal::cuda {

template <Sm90MatmulConfig C>
class MatmulMainloop {
  using Shared = MatmulShared<C>;
  using Product = ptx::Wgmma<C.columns, C.in, C.type_of_b()>;

 public:
  using Sums = float[C.columns / 2];

  __device__ __forceinline__ MatmulMainloop(const Shared& shared, int consumer, int lane)
      : shared_(shared), consumer_(consumer), lane_(lane) {}

  // Issues the products of a step, of which the first sums from zero, and waits for those of the
  // step before, whose stage is free then.
  template <bool kFirst>
  __device__ __forceinline__ void run_step(Sums& sums) {
    shared_.inputs().consumer_wait(full_);
    const int stage = full_.stage();
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < C.kProducts; ++k)
      Product::template mma_ss<C.a_m_major, C.b_n_major>(
          sums, shared_.a_operand(consumer_, stage, k), shared_.b_operand(stage, k),
          !kFirst || k > 0);
    ptx::wgmma_commit();
    if constexpr (!kFirst) {
      ptx::wgmma_wait<1>();
      release();
    }
    full_.advance();
  }
  // Waits for the last step.
  __device__ __forceinline__ void complete(Sums& sums) {
    ptx::wgmma_wait<0>();
    ptx::fence_operand(sums);
    release();
  }
  // Whether the stage of the next step has arrived.
  __device__ __forceinline__ bool next_is_here() const {
    return shared_.inputs().consumer_test(full_);
  }

 private:
  // The oldest stage in use.
  __device__ __forceinline__ void release() {
    shared_.release_inputs(empty_, lane_);
    empty_.advance();
  }

  const Shared& shared_;
  const int consumer_, lane_;
  PipelineCursor<Shared::kStages> full_, empty_;  // the stages waited for, and released
};

}  // namespace perseid::internal::cuda
