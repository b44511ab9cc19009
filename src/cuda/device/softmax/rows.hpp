// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax of rows that stay in registers: each element is read once and written once.
//
// Who has what. A row is cut into vectors of 16 bytes. Its threads take them in turns:
//
//   vector   0  1  2  3 | 4  5  6  7 | 8  9 ...      four threads, three vectors held by each
//   thread   0  1  2  3 | 0  1  2  3 | 0  1 ...
//
// The threads of a row are 1 to 32 lanes of a warp, so that several rows share a warp and a thread
// has several rows; a block of up to 32 warps; or a cluster of up to 16 blocks. 16 bit types stay
// packed until they are used. All loads of a thread are under way before the first is used: that,
// and not the number of warps, keeps memory busy.
//
// Statistics meet by shuffles in a warp, then in shared memory, which the blocks of a cluster write
// for one another (reduce.hpp): one barrier for a row.
//
// In place: a thread writes what it alone has read, after it has read it.
//
// Limits: rows of up to SoftmaxConfig::capacity() vectors. Registers: four for each vector held
// (twice that in backward, which holds dy and y) and about 30 more.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/softmax/elements.hpp"

namespace perseid::cuda {

// Which rows a thread has, and its place among the threads of a row.
template <SoftmaxConfig C>
struct Place {
  int64_t row;  // the first one; the next is a block's groups further
  int thread;

  __device__ __forceinline__ Place() {
    const int own = static_cast<int>(threadIdx.x);
    const int64_t block = blockIdx.x;
    if constexpr (C.blocks > 1) {
      row = block / C.blocks;
      thread = static_cast<int>(ptx::block_of_cluster()) * C.threads() + own;
    } else if constexpr (C.groups() > 1) {
      row = block * C.rows_of_block() + own / C.lanes;
      thread = own % C.lanes;
    } else {
      row = block;
      thread = own;
    }
  }
};

// Blocks of a multiprocessor that the compiler shall make room for in its 65536 registers, where a
// thread holds so many words.
template <SoftmaxConfig C>
constexpr int blocks_at_once(int words) {
  const int registers = max(64, (words + 36 + 7) / 8 * 8);
  return max(1, 65536 / (registers * C.threads()));
}

template <SoftmaxConfig C>
__global__ void __launch_bounds__(C.threads(), blocks_at_once<C>(4 * C.held * C.rows))
    softmax_rows_forward(const __grid_constant__ SoftmaxArguments arguments) {
  using Types = TypesOf<C>;
  using Real = typename Types::Real;
  constexpr int L = Types::kVector;
  __shared__ typename RowReduction<C, Real>::Shared shared;
  RowReduction<C, Real> reduction(shared);
  const Place<C> place;
  ptx::let_next_kernel_start();
  ptx::wait_for_kernels_before();

  typename Types::In x[C.rows][C.held];
  VisibleBits<C, C.held> bits[C.rows];
  RowSet set[C.rows];
  int length[C.rows];
  const Word<C.in> padding = padding_of<C.in>(arguments.scale);
#pragma unroll
  for (int r = 0; r < C.rows; ++r) {
    const int64_t row = place.row + r * C.groups();
    // Threads without a row go along with an empty one, for the shuffles.
    length[r] = row < arguments.rows ? static_cast<int>(arguments.length) : 0;
    set[r] = find_row<C.in, C.out, C.out, false, C>(arguments, min(row, arguments.rows - 1), 0,
                                                    length[r], C.capacity());
#pragma unroll
    for (int v = 0; v < C.held; ++v) {
      const int first = (v * C.row_threads() + place.thread) * L - set[r].shift;
      x[r][v] = load<C.in, L>(set[r].first, first, length[r], padding);
      if constexpr (C.masked) bits[r].set(v, load_visible<L>(set[r].visible, first, length[r]));
    }
  }
#pragma unroll
  for (int r = 0; r < C.rows; ++r) {
    const auto own = statistics_of<C, C.held>(x[r], bits[r], static_cast<Real>(arguments.scale));
    const Statistics<Real> whole = reduction.merge(own);
    const ForwardRow<C, Real> row(arguments, whole);
    const bool present = place.row + r * C.groups() < arguments.rows;
    if (place.thread == 0 && present && arguments.lse.data != nullptr)
      static_cast<Real*>(arguments.lse.data)[set[r].lse] = row.lse(whole);
#pragma unroll
    for (int v = 0; v < C.held; ++v) {
      Real y[L];
#pragma unroll
      for (int i = 0; i < L; ++i)
        y[i] = row.result(unpack<C.in, Real, L>(x[r][v], i), bits[r].at(v, i));
      const int first = (v * C.row_threads() + place.thread) * L - set[r].shift;
      store<C.out, L>(set[r].result, first, length[r], pack<C.out>(y));
    }
  }
}

template <SoftmaxConfig C>
__global__ void __launch_bounds__(C.threads(), blocks_at_once<C>(8 * C.held * C.rows))
    softmax_rows_backward(const __grid_constant__ SoftmaxArguments arguments) {
  using Types = TypesOf<C>;
  using Real = typename Types::Real;
  constexpr int L = Types::kVector;
  __shared__ typename RowReduction<C, Real>::Shared shared;
  RowReduction<C, Real> reduction(shared);
  const Place<C> place;
  ptx::let_next_kernel_start();
  ptx::wait_for_kernels_before();

  typename Types::Out dy[C.rows][C.held], y[C.rows][C.held];
  VisibleBits<C, C.held> bits[C.rows];
  RowSet set[C.rows];
  int length[C.rows];
#pragma unroll
  for (int r = 0; r < C.rows; ++r) {
    const int64_t row = place.row + r * C.groups();
    length[r] = row < arguments.rows ? static_cast<int>(arguments.length) : 0;
    set[r] = find_row<C.out, C.out, C.in, true, C>(arguments, min(row, arguments.rows - 1), 0,
                                                   length[r], C.capacity());
#pragma unroll
    for (int v = 0; v < C.held; ++v) {
      const int first = (v * C.row_threads() + place.thread) * L - set[r].shift;
      dy[r][v] = load<C.out, L>(set[r].first, first, length[r], {});
      y[r][v] = load<C.out, L>(set[r].second, first, length[r], {});
      if constexpr (C.masked) bits[r].set(v, load_visible<L>(set[r].visible, first, length[r]));
    }
  }
  const auto scale = static_cast<Real>(arguments.scale);
#pragma unroll
  for (int r = 0; r < C.rows; ++r) {
    const Real sum = reduction.sum(gradient_sum_of<C, C.held>(dy[r], y[r], bits[r]));
#pragma unroll
    for (int v = 0; v < C.held; ++v) {
      Real dx[L];
#pragma unroll
      for (int i = 0; i < L; ++i)
        dx[i] = gradient<C>(unpack<C.out, Real, L>(dy[r][v], i), unpack<C.out, Real, L>(y[r][v], i),
                            sum, scale, bits[r].at(v, i));
      const int first = (v * C.row_threads() + place.thread) * L - set[r].shift;
      store<C.in, L>(set[r].result, first, length[r], pack<C.in>(dx));
    }
  }
}

}  // namespace perseid::cuda
