// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax of long rows in the shared memory of a block or a cluster: each element is read once and
// written once. sm_90 and up.
//
// A block has a chunk of a row, which TMA loads without registers. So a multiprocessor has about
// twice as many bytes in flight as its registers could hold (rows.hpp), which large clusters need,
// since their blocks wait for each other. The threads go through the chunk twice, C.held vectors at
// a time in C.stages turns: for its statistics, and for the results.
//
// In place: a thread writes what it alone has read, after it has read it.
//
// Limits: rows of up to C.stages * SoftmaxConfig::capacity() vectors; statistics are float32.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/softmax/chunk.hpp"

namespace perseid::internal::cuda {

template <SoftmaxConfig C, bool kBackward>
struct SharedRow {
  alignas(128) ChunkVectors<C, kBackward, C.stages> vectors;
  typename RowReduction<C, float>::Shared reduction;
  uint64_t full;
};

template <SoftmaxConfig C>
__device__ __forceinline__ void forward_shared(const SoftmaxArguments& arguments,
                                               const StagedChunk& chunk,
                                               const ChunkReader<C, false, C.stages>& reader,
                                               RowReduction<C, float>& reduction) {
  auto own = Statistics<float>::nothing();
#pragma unroll 1
  for (int turn = 0; turn < C.stages; ++turn) {
    Elements<C, false> held;
    reader.take(turn, held);
    own = merge_two(
        own, statistics_of<C>(held, static_cast<float>(arguments.scale), [](int, int, float) {}));
  }
  const Statistics<float> whole = reduction.merge(own);
  const ForwardRow<C, float> row(arguments, whole);
  if (threadIdx.x == 0 && chunk.begin <= 0 && arguments.lse.data != nullptr)
    static_cast<float*>(arguments.lse.data)[chunk.rows.lse] = row.lse(whole);
#pragma unroll 1
  for (int turn = 0; turn < C.stages; ++turn) {
    Elements<C, false> held;
    reader.take(turn, held);
    store_forward(held, chunk.rows.result, reader.begin_of(turn), reader.kBetween, chunk.end, row);
  }
}

template <SoftmaxConfig C>
__device__ __forceinline__ void backward_shared(const SoftmaxArguments& arguments,
                                                const StagedChunk& chunk,
                                                const ChunkReader<C, true, C.stages>& reader,
                                                RowReduction<C, float>& reduction) {
  float own = 0;
#pragma unroll 1
  for (int turn = 0; turn < C.stages; ++turn) {
    Elements<C, true> held;
    reader.take(turn, held);
    own += gradient_sum_of<C>(held);
  }
  const float sum = reduction.sum(own);
#pragma unroll 1
  for (int turn = 0; turn < C.stages; ++turn) {
    Elements<C, true> held;
    reader.take(turn, held);
    store_backward(held, chunk.rows.result, reader.begin_of(turn), reader.kBetween, chunk.end, sum,
                   static_cast<float>(arguments.scale));
  }
}

template <SoftmaxConfig C, bool kBackward>
__device__ __forceinline__ void shared_row(const SoftmaxArguments& arguments) {
  using Shared = SharedRow<C, kBackward>;
  static_assert(sizeof(Shared) <= C.shared_bytes(kBackward) && !C.doubles());
  alignas(128) extern __shared__ char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const uint32_t full = ptx::shared_address(&shared.full);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(full, 1);
    ptx::mbarrier_init_fence();
  }
  RowReduction<C, float> reduction(shared.reduction);
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  const int64_t number = C.blocks > 1 ? ptx::block_of_cluster() : 0;
  StagedChunk chunk = find_chunk<C, kBackward>(arguments, blockIdx.x / C.blocks, number);
  const ChunkCopy<C, kBackward> copy(chunk, shared.vectors);
  if (threadIdx.x == 0) copy.start(full);
  const ChunkReader<C, kBackward, C.stages> reader(chunk, shared.vectors, arguments.scale);
#pragma unroll 1
  for (int turn = 0; turn < C.stages; ++turn) reader.fix_up(turn);
  __syncthreads();
  ptx::mbarrier_wait(full, 0);
  if constexpr (kBackward) {
    backward_shared<C>(arguments, chunk, reader, reduction);
  } else {
    forward_shared<C>(arguments, chunk, reader, reduction);
  }
}

template <SoftmaxConfig C>
__global__ void __launch_bounds__(C.threads(), C.shared_resident(false))
    softmax_shared_forward(const __grid_constant__ SoftmaxArguments arguments) {
  shared_row<C, false>(arguments);
}
template <SoftmaxConfig C>
__global__ void __launch_bounds__(C.threads(), C.shared_resident(true))
    softmax_shared_backward(const __grid_constant__ SoftmaxArguments arguments) {
  shared_row<C, true>(arguments);
}

}  // namespace perseid::internal::cuda
