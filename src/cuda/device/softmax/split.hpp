// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax of rows that are too long for registers: two kernels, which read a row twice and write it
// once. A row is cut into chunks of a size that follows from its length alone. The first kernel
// leaves the statistics of each chunk in the workspace, one block for one chunk; the second merges
// those of its row, always in the same order, and makes the results of its chunk. It takes chunks
// from the end, where the first kernel left off and the cache may still have them.
//
//   blocks of the first kernel:    row 0: 0 1 2 3   row 1: 4 5 6 7
//   blocks of the second kernel:   row 0: 7 6 5 4   row 1: 3 2 1 0
//
// In a chunk the threads take vectors in turns, C.held of them at a time.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/softmax/elements.hpp"

namespace perseid::cuda {

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

// Calls body(first) for the place of every group of C.held vectors that the thread has.
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
  using Types = TypesOf<C>;
  using Real = typename Types::Real;
  constexpr int L = Types::kVector;
  __shared__ typename RowReduction<C, Real>::Shared shared;
  RowReduction<C, Real> reduction(shared);
  ptx::let_next_kernel_start();
  ptx::wait_for_kernels_before();
  const Chunk chunk(arguments, blockIdx.x);
  const RowSet set = find_row<C.in, C.out, C.out, false, C>(arguments, chunk.row, chunk.begin,
                                                            chunk.length, kAnyCapacity);
  const Word<C.in> padding = padding_of<C.in>(arguments.scale);
  auto own = Statistics<Real>::nothing();
  for_each_step<C>(set.shift, chunk.length, [&](int place) {
    typename Types::In x[C.held];
    VisibleBits<C, C.held> bits;
    load<C.in, L>(set.first, place, kBetween<C>, chunk.length, padding, x);
    if constexpr (C.masked)
      load_visible<L, C.held>(set.visible, place, kBetween<C>, chunk.length,
                              [&](int v, uint32_t own_bits) { bits.set(v, own_bits); });
    const auto next = statistics_of<C, C.held>(x, bits, static_cast<Real>(arguments.scale),
                                               [](int, int, Real) {});
    const Real maximum = maximum_of(own.maximum, next.maximum);
    own = {maximum,
           own.sum * weight(own.maximum, maximum) + next.sum * weight(next.maximum, maximum)};
  });
  own = reduction.merge(own);
  if (threadIdx.x == 0) static_cast<Statistics<Real>*>(arguments.partial)[blockIdx.x] = own;
}

template <SoftmaxConfig C>
__global__ void __launch_bounds__(C.threads(), 2)
    softmax_split_forward(const __grid_constant__ SoftmaxArguments arguments) {
  using Types = TypesOf<C>;
  using Real = typename Types::Real;
  constexpr int L = Types::kVector;
  __shared__ typename RowReduction<C, Real>::Shared shared;
  RowReduction<C, Real> reduction(shared);
  ptx::wait_for_kernels_before();
  const Chunk chunk(arguments, gridDim.x - 1 - blockIdx.x);
  const RowSet set = find_row<C.in, C.out, C.out, false, C>(arguments, chunk.row, chunk.begin,
                                                            chunk.length, kAnyCapacity);
  const auto* partial =
      static_cast<const Statistics<Real>*>(arguments.partial) + chunk.row * arguments.chunks;
  auto whole = Statistics<Real>::nothing();
  for (int64_t i = threadIdx.x; i < arguments.chunks; i += C.threads()) {
    const Statistics<Real> next = partial[i];
    const Real maximum = maximum_of(whole.maximum, next.maximum);
    whole = {maximum,
             whole.sum * weight(whole.maximum, maximum) + next.sum * weight(next.maximum, maximum)};
  }
  whole = reduction.merge(whole);
  const ForwardRow<C, Real> row(arguments, whole);
  if (threadIdx.x == 0 && chunk.index == 0 && arguments.lse.data != nullptr)
    static_cast<Real*>(arguments.lse.data)[set.lse] = row.lse(whole);
  const Word<C.in> padding = padding_of<C.in>(arguments.scale);
  for_each_step<C>(set.shift, chunk.length, [&](int place) {
    typename Types::In x[C.held];
    VisibleBits<C, C.held> bits;
    load<C.in, L>(set.first, place, kBetween<C>, chunk.length, padding, x);
    if constexpr (C.masked)
      load_visible<L, C.held>(set.visible, place, kBetween<C>, chunk.length,
                              [&](int v, uint32_t own_bits) { bits.set(v, own_bits); });
    Vector<C.out, L> results[C.held];
#pragma unroll
    for (int v = 0; v < C.held; ++v) {
      Real y[L];
#pragma unroll
      for (int i = 0; i < L; ++i)
        y[i] = bits.choose(v, i, row.result(unpack<C.in, Real, L>(x[v], i)), row.nothing);
      results[v] = pack<C.out>(y);
    }
    store<C.out, L>(set.result, place, kBetween<C>, chunk.length, results);
  });
}

// What both kernels of backward read at a step.
template <SoftmaxConfig C, class Types = TypesOf<C>>
struct GradientStep {
  typename Types::Out dy[C.held], y[C.held];
  VisibleBits<C, C.held> bits;

  __device__ __forceinline__ GradientStep(const RowSet& set, int place, int length) {
    constexpr int L = C.vector();
    load<C.out, L>(set.first, place, kBetween<C>, length, {}, dy);
    load<C.out, L>(set.second, place, kBetween<C>, length, {}, y);
    if constexpr (C.masked)
      load_visible<L, C.held>(set.visible, place, kBetween<C>, length,
                              [&](int v, uint32_t own) { bits.set(v, own); });
  }
};

template <SoftmaxConfig C>
__global__ void __launch_bounds__(C.threads(), 2)
    softmax_split_gradient_sums(const __grid_constant__ SoftmaxArguments arguments) {
  using Real = typename TypesOf<C>::Real;
  __shared__ typename RowReduction<C, Real>::Shared shared;
  RowReduction<C, Real> reduction(shared);
  ptx::let_next_kernel_start();
  ptx::wait_for_kernels_before();
  const Chunk chunk(arguments, blockIdx.x);
  const RowSet set = find_row<C.out, C.out, C.in, true, C>(arguments, chunk.row, chunk.begin,
                                                           chunk.length, kAnyCapacity);
  Real own = 0;
  for_each_step<C>(set.shift, chunk.length, [&](int place) {
    const GradientStep<C> step(set, place, chunk.length);
    own += gradient_sum_of<C, C.held>(step.dy, step.y, step.bits);
  });
  own = reduction.sum(own);
  if (threadIdx.x == 0) static_cast<Real*>(arguments.partial)[blockIdx.x] = own;
}

template <SoftmaxConfig C>
__global__ void __launch_bounds__(C.threads(), 2)
    softmax_split_backward(const __grid_constant__ SoftmaxArguments arguments) {
  using Real = typename TypesOf<C>::Real;
  constexpr int L = C.vector();
  __shared__ typename RowReduction<C, Real>::Shared shared;
  RowReduction<C, Real> reduction(shared);
  ptx::wait_for_kernels_before();
  const Chunk chunk(arguments, gridDim.x - 1 - blockIdx.x);
  const RowSet set = find_row<C.out, C.out, C.in, true, C>(arguments, chunk.row, chunk.begin,
                                                           chunk.length, kAnyCapacity);
  const auto* partial = static_cast<const Real*>(arguments.partial) + chunk.row * arguments.chunks;
  Real sum = 0;
  for (int64_t i = threadIdx.x; i < arguments.chunks; i += C.threads()) sum += partial[i];
  sum = reduction.sum(sum);
  const auto scale = static_cast<Real>(arguments.scale);
  for_each_step<C>(set.shift, chunk.length, [&](int place) {
    const GradientStep<C> step(set, place, chunk.length);
    Vector<C.in, L> results[C.held];
#pragma unroll
    for (int v = 0; v < C.held; ++v) {
      Real dx[L];
#pragma unroll
      for (int i = 0; i < L; ++i)
        dx[i] = step.bits.choose(v, i,
                                 gradient<C>(unpack<C.out, Real, L>(step.dy[v], i),
                                             unpack<C.out, Real, L>(step.y[v], i), sum, scale),
                                 Real(0));
      results[v] = pack<C.in>(dx);
    }
    store<C.in, L>(set.result, place, kBetween<C>, chunk.length, results);
  });
}

}  // namespace perseid::cuda
