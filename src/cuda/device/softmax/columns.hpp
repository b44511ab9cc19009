// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax over a dimension that is not the fastest one: the rows lie beside one another, and the
// lanes of a warp take 32 of them, so that every access is of neighbouring addresses. The warps of
// the block share the length:
//
//               lane 0  lane 1  lane 2 ...
//   element 0     .       .       .         warp 0
//   element 1     .       .       .         warp 1
//   ...                                     ...
//   element W     .       .       .         warp 0 again
//
// Up to C.held elements a thread stay in registers; with C.held = 0 the elements are read twice.
// Statistics meet in shared memory, one column of it for each row, in the order of the warps.
// Any strides are right; they are fast where the innermost outer dimension has a stride of 1.
#pragma once

#include "cuda/device/ptx/dependency.hpp"
#include "cuda/device/softmax/elements.hpp"

namespace perseid::internal::cuda {

template <DType D, class Real>
__device__ __forceinline__ Real load_one(const Row& row, int64_t index) {
  const Word<D> word = load_element<D>(row.data + index * row.step * size_of(D));
  constexpr int kElements = size_of(D) == 2 ? 2 : 1;
  Vector<D, kElements> vector;
#pragma unroll
  for (int w = 0; w < static_cast<int>(sizeof(vector) / 4); ++w) vector.word[w] = word.word[w];
  return unpack<D, Real, kElements>(vector, 0);
}

template <DType D>
__device__ __forceinline__ void store_one(const Row& row, int64_t index, const Word<D>& element) {
  store_element<D>(row.data + index * row.step * size_of(D), element);
}

// A lane's row of 32, and a warp's elements of it.
template <SoftmaxConfig C, bool kBackward>
struct Column {
  RowSet set;
  int64_t begin, length;  // begin: the warp's first element; the next is C.warps further
  bool present;           // else there is no such row

  __device__ __forceinline__ explicit Column(const SoftmaxArguments& arguments) {
    const int64_t row = int64_t{blockIdx.x} * 32 + threadIdx.x % 32;
    begin = threadIdx.x / 32;
    present = row < arguments.rows;
    length = present ? arguments.length : 0;
    // No capacity: vectors have no use here.
    set = find_row<C, kBackward>(arguments, min(row, arguments.rows - 1), 0, 0, -1);
  }
  __device__ __forceinline__ bool visible(int64_t index) const {
    if constexpr (C.masked) return set.visible.data[index * set.visible.step] != 0;
    return true;
  }
  // Calls body(slot, index) for the elements; `slot` is a constant where they are held.
  template <class Body>
  __device__ __forceinline__ void for_each(const Body& body) const {
    if constexpr (C.held > 0) {
#pragma unroll
      for (int slot = 0; slot < C.held; ++slot)
        if (begin + slot * C.warps < length) body(slot, begin + slot * C.warps);
    } else {
#pragma unroll 4
      for (int64_t index = begin; index < length; index += C.warps) body(0, index);
    }
  }
};

template <SoftmaxConfig C, class Real>
struct ColumnShared {
  Real maximum[C.warps][32];
  Real sum[C.warps][32];
};

// The merge over the warps, of each lane's row.
template <SoftmaxConfig C, class Real>
__device__ __forceinline__ Statistics<Real> merge_column(ColumnShared<C, Real>& shared,
                                                         const Statistics<Real>& own) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  shared.maximum[warp][lane] = own.maximum;
  shared.sum[warp][lane] = own.sum;
  __syncthreads();
  auto whole = Statistics<Real>::nothing();
#pragma unroll
  for (int w = 0; w < C.warps; ++w)
    whole.maximum = maximum_of(whole.maximum, shared.maximum[w][lane]);
#pragma unroll
  for (int w = 0; w < C.warps; ++w)
    whole.sum += shared.sum[w][lane] * weight(shared.maximum[w][lane], whole.maximum);
  return whole;
}

template <SoftmaxConfig C>
__global__ void __launch_bounds__(32 * C.warps, 1)
    softmax_columns_forward(const __grid_constant__ SoftmaxArguments arguments) {
  using Real = typename TypesOf<C>::Real;
  __shared__ ColumnShared<C, Real> shared;
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  const Column<C, false> column(arguments);
  const auto scale = static_cast<Real>(arguments.scale);

  Real held[max(C.held, 1)] = {};
  uint32_t bits = 0;  // of those held, which are visible
  auto own = Statistics<Real>::nothing();
  bool any = false;
  if constexpr (C.held > 0) {
    column.for_each([&](int slot, int64_t index) {
      held[slot] = load_one<C.in, Real>(column.set.first, index);
      if (column.visible(index)) bits |= 1u << slot;
    });
    column.for_each([&](int slot, int64_t) {
      if (bits >> slot & 1u) own.maximum = maximum_of(own.maximum, held[slot] * scale);
    });
    const Real base = own.maximum == minus_infinity<Real>() ? Real(0) : own.maximum;
    column.for_each([&](int slot, int64_t) {
      if (bits >> slot & 1u) own.sum += exponential(fma(held[slot], scale, -base));
    });
    any = bits != 0;
  } else {
    column.for_each([&](int, int64_t index) {
      if (!column.visible(index)) return;
      any = true;
      const Real x = load_one<C.in, Real>(column.set.first, index);
      const Real maximum = maximum_of(own.maximum, x * scale);
      if (maximum == minus_infinity<Real>()) return;
      own.sum = own.sum * weight(own.maximum, maximum) + exponential(fma(x, scale, -maximum));
      own.maximum = maximum;
    });
  }
  if (own.maximum == minus_infinity<Real>()) own.sum = any ? Real(1) : Real(0);

  const Statistics<Real> whole = merge_column<C>(shared, own);
  const ForwardRow<C, Real> row(arguments, whole);
  if (column.begin == 0 && column.present && arguments.lse.data != nullptr)
    static_cast<Real*>(arguments.lse.data)[column.set.lse] = row.lse(whole);
  column.for_each([&](int slot, int64_t index) {
    const bool visible = C.held > 0 ? (bits >> slot & 1u) != 0 : column.visible(index);
    const Real x = C.held > 0 ? held[slot] : load_one<C.in, Real>(column.set.first, index);
    store_one<C.out>(column.set.result, index,
                     visible ? to_element<C.out>(row.result(x)) : row.nothing);
  });
}

template <SoftmaxConfig C>
__global__ void __launch_bounds__(32 * C.warps, 1)
    softmax_columns_backward(const __grid_constant__ SoftmaxArguments arguments) {
  using Real = typename TypesOf<C>::Real;
  __shared__ ColumnShared<C, Real> shared;
  ptx::launch_dependents();
  ptx::wait_for_prerequisites();
  const Column<C, true> column(arguments);
  const auto scale = static_cast<Real>(arguments.scale);

  Real dy[max(C.held, 1)] = {}, y[max(C.held, 1)] = {};
  uint32_t bits = 0;
  Real own = 0;
  if constexpr (C.held > 0) {
    column.for_each([&](int slot, int64_t index) {
      dy[slot] = load_one<C.out, Real>(column.set.first, index);
      y[slot] = load_one<C.out, Real>(column.set.second, index);
      if (column.visible(index)) bits |= 1u << slot;
    });
    column.for_each([&](int slot, int64_t) {
      if (bits >> slot & 1u) own += C.log ? dy[slot] : dy[slot] * y[slot];
    });
  } else {
    column.for_each([&](int, int64_t index) {
      if (!column.visible(index)) return;
      const Real gradient = load_one<C.out, Real>(column.set.first, index);
      own += C.log ? gradient : gradient * load_one<C.out, Real>(column.set.second, index);
    });
  }
  const Real sum = merge_column<C>(shared, Statistics<Real>{Real(0), own}).sum;
  column.for_each([&](int slot, int64_t index) {
    const bool visible = C.held > 0 ? (bits >> slot & 1u) != 0 : column.visible(index);
    const Real g = C.held > 0 ? dy[slot] : load_one<C.out, Real>(column.set.first, index);
    const Real value = C.held > 0 ? y[slot] : load_one<C.out, Real>(column.set.second, index);
    store_one<C.in>(column.set.result, index,
                    to_element<C.in>(visible ? gradient<C>(g, value, sum, scale) : Real(0)));
  });
}

}  // namespace perseid::internal::cuda
