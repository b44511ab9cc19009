// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax of rows that are too long for registers: two kernels, which read a row twice and write it
// once. A row is cut into chunks of a size that follows from its length alone. The first kernel
// writes the statistics of each chunk to the workspace, one block for one chunk; the second merges
// those of its row, always in the same order, and makes the results of its chunk. It takes chunks
// from the end, where the first kernel stopped and the cache may still have them.
//
//   blocks of the first kernel:    row 0: 0 1 2 3   row 1: 4 5 6 7
//   blocks of the second kernel:   row 0: 7 6 5 4   row 1: 3 2 1 0
//
// In a chunk the threads take vectors in turns, C.held of them at a time.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/softmax/elements.hpp"

namespace perseid::internal::cuda {

struct Chunk {
  int64_t row, index, begin;
  int length;

  __device__ __forceinline__ Chunk(const SoftmaxArguments& arguments, int64_t number) {
    row = number / arguments.chunks;
    index = number % arguments.chunks;
    begin = index * arguments.chunk;
    length = static_cast<int>(min(arguments.chunk, arguments.length - begin));
  }
};

inline constexpr int64_t kAnyCapacity = int64_t{1} << 40;

// Calls body(first element) for every group of C.held vectors that the thread has.
template <SoftmaxConfig C, class Body>
__device__ __forceinline__ void for_each_step(int shift, int length, const Body& body) {
  constexpr int kStep = C.threads() * C.held * C.vector();
  for (int begin = -shift; begin < length; begin += kStep)
    body(begin + static_cast<int>(threadIdx.x) * C.vector());
}

template <SoftmaxConfig C>
inline constexpr int kBetween = C.threads() * C.vector();  // of two vectors of a thread

template <SoftmaxConfig C>
__global__ void __launch_bounds__(C.threads(), 2)
    softmax_split_statistics(const __grid_constant__ SoftmaxArguments arguments) {
  using Real = typename TypesOf<C>::Real;
  __shared__ typename RowReduction<C, Real>::Shared shared;
  RowReduction<C, Real> reduction(shared);
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  const Chunk chunk(arguments, blockIdx.x);
  const RowSet set =
      find_row<C, false>(arguments, chunk.row, chunk.begin, chunk.length, kAnyCapacity);
  auto own = Statistics<Real>::nothing();
  for_each_step<C>(set.shift, chunk.length, [&](int first) {
    Elements<C, false> x;
    x.load_from(set, first, kBetween<C>, chunk.length, arguments.scale);
    const auto next =
        statistics_of<C>(x, static_cast<Real>(arguments.scale), [](int, int, Real) {});
    own = merge_two(own, next);
  });
  own = reduction.merge(own);
  if (threadIdx.x == 0) static_cast<Statistics<Real>*>(arguments.partial)[blockIdx.x] = own;
}

template <SoftmaxConfig C>
__global__ void __launch_bounds__(C.threads(), 2)
    softmax_split_forward(const __grid_constant__ SoftmaxArguments arguments) {
  using Real = typename TypesOf<C>::Real;
  __shared__ typename RowReduction<C, Real>::Shared shared;
  RowReduction<C, Real> reduction(shared);
  ptx::wait_for_prerequisites();
  const Chunk chunk(arguments, gridDim.x - 1 - blockIdx.x);
  const RowSet set =
      find_row<C, false>(arguments, chunk.row, chunk.begin, chunk.length, kAnyCapacity);
  const auto* partial =
      static_cast<const Statistics<Real>*>(arguments.partial) + chunk.row * arguments.chunks;
  auto whole = Statistics<Real>::nothing();
  for (int64_t i = threadIdx.x; i < arguments.chunks; i += C.threads())
    whole = merge_two(whole, partial[i]);
  whole = reduction.merge(whole);
  const ForwardRow<C, Real> row(arguments, whole);
  if (threadIdx.x == 0 && chunk.index == 0 && arguments.lse.data != nullptr)
    static_cast<Real*>(arguments.lse.data)[set.lse] = row.lse(whole);
  for_each_step<C>(set.shift, chunk.length, [&](int first) {
    Elements<C, false> x;
    x.load_from(set, first, kBetween<C>, chunk.length, arguments.scale);
    store_forward(x, set.result, first, kBetween<C>, chunk.length, row);
  });
}

template <SoftmaxConfig C>
__global__ void __launch_bounds__(C.threads(), 2)
    softmax_split_gradient_sums(const __grid_constant__ SoftmaxArguments arguments) {
  using Real = typename TypesOf<C>::Real;
  __shared__ typename RowReduction<C, Real>::Shared shared;
  RowReduction<C, Real> reduction(shared);
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  const Chunk chunk(arguments, blockIdx.x);
  const RowSet set =
      find_row<C, true>(arguments, chunk.row, chunk.begin, chunk.length, kAnyCapacity);
  Real own = 0;
  for_each_step<C>(set.shift, chunk.length, [&](int first) {
    Elements<C, true> elements;
    elements.load_from(set, first, kBetween<C>, chunk.length, 0);
    own += gradient_sum_of<C>(elements);
  });
  own = reduction.sum(own);
  if (threadIdx.x == 0) static_cast<Real*>(arguments.partial)[blockIdx.x] = own;
}

template <SoftmaxConfig C>
__global__ void __launch_bounds__(C.threads(), 2)
    softmax_split_backward(const __grid_constant__ SoftmaxArguments arguments) {
  using Real = typename TypesOf<C>::Real;
  __shared__ typename RowReduction<C, Real>::Shared shared;
  RowReduction<C, Real> reduction(shared);
  ptx::wait_for_prerequisites();
  const Chunk chunk(arguments, gridDim.x - 1 - blockIdx.x);
  const RowSet set =
      find_row<C, true>(arguments, chunk.row, chunk.begin, chunk.length, kAnyCapacity);
  const auto* partial = static_cast<const Real*>(arguments.partial) + chunk.row * arguments.chunks;
  Real sum = 0;
  for (int64_t i = threadIdx.x; i < arguments.chunks; i += C.threads()) sum += partial[i];
  sum = reduction.sum(sum);
  const auto scale = static_cast<Real>(arguments.scale);
  for_each_step<C>(set.shift, chunk.length, [&](int first) {
    Elements<C, true> elements;
    elements.load_from(set, first, kBetween<C>, chunk.length, 0);
    store_backward(elements, set.result, first, kBetween<C>, chunk.length, sum, scale);
  });
}

}  // namespace perseid::internal::cuda
