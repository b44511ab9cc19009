// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax of rows that stay in registers: each element is read once and written once.
//
// Layout. A row is cut into vectors of 16 bytes, dealt to its threads round robin:
//
//   vector   0  1  2  3 | 4  5  6  7 | 8  9 ...      four threads, three vectors held by each
//   thread   0  1  2  3 | 0  1  2  3 | 0  1 ...
//
// The threads of a row are 1 to 32 lanes of a warp, so that several rows share a warp; a block of
// up to 32 warps; or a cluster of up to 16 blocks. 16 bit types stay packed until they are used.
// A thread issues all loads before it uses the first: that, and not the number of warps, keeps
// memory busy.
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

namespace perseid::internal::cuda {

// The row of a thread, and its number among the threads of the row.
template <SoftmaxConfig C>
struct RowThread {
  int64_t row;
  int thread;

  __device__ __forceinline__ RowThread() {
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

template <SoftmaxConfig C>
inline constexpr int kRowStep = C.row_threads() * C.vector();  // of two vectors of a thread

// Blocks of a multiprocessor that the compiler shall make room for in its 65536 registers. Large
// clusters, which wait for each other, need one more of f32 forward than its registers would allow;
// blocks whose threads load the least must all be resident.
template <SoftmaxConfig C>
constexpr int blocks_at_once(bool backward) {
  constexpr bool kHalf = size_of(C.in) == 2;
  if (!backward && !kHalf && !C.doubles() && C.blocks >= 4 && C.held <= 7)
    return max(1, 65536 / ((C.held + 8) * 4 / 8 * 8 * C.threads()));
  if (backward && C.held == 1 && C.warps > 1 && (kHalf ? !C.masked : !C.doubles()))
    return 2048 / C.threads();
  const int words = C.held * (backward ? 8 : ForwardPart<C>::kKeeps && kHalf ? C.vector() : 4);
  const bool many = C.doubles() || (C.masked && kHalf);
  const int others = many ? (backward ? 64 : 56) : backward && !C.masked && !kHalf ? 24 : 48;
  const int registers = max(64, (words + others + 7) / 8 * 8);
  return max(1, 65536 / (registers * C.threads()));
}

template <SoftmaxConfig C>
__global__ void __launch_bounds__(C.threads(), blocks_at_once<C>(false))
    softmax_rows_forward(const __grid_constant__ SoftmaxArguments arguments) {
  using Types = TypesOf<C>;
  using Real = typename Types::Real;
  constexpr int L = Types::kVector;
  __shared__ typename RowReduction<C, Real>::Shared shared;
  RowReduction<C, Real> reduction(shared);
  const RowThread<C> own;
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();

  // Threads without a row go along with an empty one, for the shuffles.
  const bool present = own.row < arguments.rows;
  const int length = present ? static_cast<int>(arguments.length) : 0;
  const RowSet set =
      find_row<C, false>(arguments, min(own.row, arguments.rows - 1), 0, length, C.capacity());
  const int first = own.thread * L - set.shift;
  ForwardPart<C> part;
  part.x.load_from(set, first, kRowStep<C>, length, arguments.scale);
  const Statistics<Real> whole = reduction.merge(part.measure(static_cast<Real>(arguments.scale)));
  const ForwardRow<C, Real> row(arguments, whole);
  if (own.thread == 0 && present && arguments.lse.data != nullptr)
    static_cast<Real*>(arguments.lse.data)[set.lse] = row.lse(whole);
  part.store(set.result, first, kRowStep<C>, length, row);
}

template <SoftmaxConfig C>
__global__ void __launch_bounds__(C.threads(), blocks_at_once<C>(true))
    softmax_rows_backward(const __grid_constant__ SoftmaxArguments arguments) {
  using Types = TypesOf<C>;
  using Real = typename Types::Real;
  constexpr int L = Types::kVector;
  __shared__ typename RowReduction<C, Real>::Shared shared;
  RowReduction<C, Real> reduction(shared);
  const RowThread<C> own;
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();

  const int length = own.row < arguments.rows ? static_cast<int>(arguments.length) : 0;
  const RowSet set =
      find_row<C, true>(arguments, min(own.row, arguments.rows - 1), 0, length, C.capacity());
  const int first = own.thread * L - set.shift;
  Elements<C, true> elements;
  elements.load_from(set, first, kRowStep<C>, length, 0);
  const Real sum = reduction.sum(gradient_sum_of<C>(elements));
  store_backward(elements, set.result, first, kRowStep<C>, length, sum,
                 static_cast<Real>(arguments.scale));
}

}  // namespace perseid::internal::cuda
