// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax of rows that stay in registers: each element is read once and written once.
//
// Who has what. A row is cut into vectors of 16 bytes. Its threads take them in turns:
//
//   vector   0  1  2  3 | 4  5  6  7 | 8  9 ...      four threads, three vectors held by each
//   thread   0  1  2  3 | 0  1  2  3 | 0  1 ...
//
// The threads of a row are 1 to 32 lanes of a warp, so that several rows share a warp; a block of
// up to 32 warps; or a cluster of up to 16 blocks. 16 bit types stay packed until they are used.
// All loads of a thread are under way before the first is used: that, and not the number of warps,
// keeps memory busy.
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

// Which row a thread has part of, and its place among the threads of the row.
template <SoftmaxConfig C>
struct Place {
  int64_t row;
  int thread;

  __device__ __forceinline__ Place() {
    const int own = static_cast<int>(threadIdx.x);
    const int64_t block = blockIdx.x;
    if constexpr (C.blocks > 1) {
      row = block / C.blocks;
      thread = static_cast<int>(ptx::block_of_cluster()) * C.threads() + own;
    } else if constexpr (C.groups() > 1) {
      row = block * C.groups() + own / C.lanes;
      thread = own % C.lanes;
    } else {
      row = block;
      thread = own;
    }
  }
};

// Whether forward keeps the exponentials from the sum to the result: always where they take the
// place of elements of their size, and of packed ones where they are few.
template <SoftmaxConfig C>
constexpr bool keeps_exponentials() {
  return !C.log && (size_of(C.in) >= 4 || C.held * C.vector() <= 32);
}
template <SoftmaxConfig C>
constexpr int forward_words() {
  return C.held * (keeps_exponentials<C>() && size_of(C.in) == 2 ? C.vector() : 4);
}

template <SoftmaxConfig C>
inline constexpr int kRowStep = C.row_threads() * C.vector();  // of two vectors of a thread

// Blocks of a multiprocessor that the compiler shall make room for in its 65536 registers, where a
// thread holds so many words; `unpacks`: and computes twice with packed ones.
template <SoftmaxConfig C>
constexpr int blocks_at_once(int words, bool unpacks = false) {
  const int others = C.masked || C.doubles() || unpacks ? 56 : 48;
  const int registers = max(64, (words + others + 7) / 8 * 8);
  return max(1, 65536 / (registers * C.threads()));
}

template <SoftmaxConfig C>
__global__ void __launch_bounds__(C.threads(),
                                  blocks_at_once<C>(forward_words<C>(),
                                                    size_of(C.in) == 2 && !keeps_exponentials<C>()))
    softmax_rows_forward(const __grid_constant__ SoftmaxArguments arguments) {
  using Types = TypesOf<C>;
  using Real = typename Types::Real;
  constexpr int L = Types::kVector;
  __shared__ typename RowReduction<C, Real>::Shared shared;
  RowReduction<C, Real> reduction(shared);
  const Place<C> place;
  ptx::let_next_kernel_start();
  ptx::wait_for_kernels_before();

  typename Types::In x[C.held];
  VisibleBits<C, C.held> bits;
  // Threads without a row go along with an empty one, for the shuffles.
  const bool present = place.row < arguments.rows;
  const int length = present ? static_cast<int>(arguments.length) : 0;
  const RowSet set = find_row<C.in, C.out, C.out, false, C>(
      arguments, min(place.row, arguments.rows - 1), 0, length, C.capacity());
  const int first = place.thread * L - set.shift;
  load<C.in, L>(set.first, first, kRowStep<C>, length, padding_of<C.in>(arguments.scale), x);
  if constexpr (C.masked)
    load_visible<L, C.held>(set.visible, first, kRowStep<C>, length,
                            [&](int v, uint32_t own) { bits.set(v, own); });

  constexpr bool kKeeps = keeps_exponentials<C>();
  Real kept[kKeeps ? C.held * L : 1];
  const auto own = statistics_of<C, C.held>(x, bits, static_cast<Real>(arguments.scale),
                                            [&](int v, int i, Real e) {
                                              if constexpr (kKeeps) kept[v * L + i] = e;
                                            });
  const Statistics<Real> whole = reduction.merge(own);
  const ForwardRow<C, Real> row(arguments, whole);
  if (place.thread == 0 && present && arguments.lse.data != nullptr)
    static_cast<Real*>(arguments.lse.data)[set.lse] = row.lse(whole);
  const Real part = kKeeps ? row.part_factor(own.maximum) : Real(0);
  Vector<C.out, L> results[C.held];
#pragma unroll
  for (int v = 0; v < C.held; ++v) {
    Real y[L];
#pragma unroll
    for (int i = 0; i < L; ++i) {
      if constexpr (kKeeps) {
        y[i] = bits.choose(v, i, kept[v * L + i] * part, row.nothing);
      } else {
        y[i] = bits.choose(v, i, row.result(unpack<C.in, Real, L>(x[v], i)), row.nothing);
      }
    }
    results[v] = pack<C.out>(y);
  }
  store<C.out, L>(set.result, first, kRowStep<C>, length, results);
}

template <SoftmaxConfig C>
__global__ void __launch_bounds__(C.threads(), blocks_at_once<C>(8 * C.held))
    softmax_rows_backward(const __grid_constant__ SoftmaxArguments arguments) {
  using Types = TypesOf<C>;
  using Real = typename Types::Real;
  constexpr int L = Types::kVector;
  __shared__ typename RowReduction<C, Real>::Shared shared;
  RowReduction<C, Real> reduction(shared);
  const Place<C> place;
  ptx::let_next_kernel_start();
  ptx::wait_for_kernels_before();

  typename Types::Out dy[C.held], y[C.held];
  VisibleBits<C, C.held> bits;
  const int length = place.row < arguments.rows ? static_cast<int>(arguments.length) : 0;
  const RowSet set = find_row<C.out, C.out, C.in, true, C>(
      arguments, min(place.row, arguments.rows - 1), 0, length, C.capacity());
  const int first = place.thread * L - set.shift;
  load<C.out, L>(set.first, first, kRowStep<C>, length, {}, dy);
  load<C.out, L>(set.second, first, kRowStep<C>, length, {}, y);
  if constexpr (C.masked)
    load_visible<L, C.held>(set.visible, first, kRowStep<C>, length,
                            [&](int v, uint32_t own) { bits.set(v, own); });

  const auto scale = static_cast<Real>(arguments.scale);
  const Real sum = reduction.sum(gradient_sum_of<C, C.held>(dy, y, bits));
  Vector<C.in, L> results[C.held];
#pragma unroll
  for (int v = 0; v < C.held; ++v) {
    Real dx[L];
#pragma unroll
    for (int i = 0; i < L; ++i)
      dx[i] = bits.choose(v, i,
                          gradient<C>(unpack<C.out, Real, L>(dy[v], i),
                                      unpack<C.out, Real, L>(y[v], i), sum, scale),
                          Real(0));
    results[v] = pack<C.in>(dx);
  }
  store<C.in, L>(set.result, first, kRowStep<C>, length, results);
}

}  // namespace perseid::cuda
