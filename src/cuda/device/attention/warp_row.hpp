// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Rows of tensors in a warp, for fixups, which recompute them one at a time.
#pragma once

#include "cuda/device/attention/arithmetic.hpp"
#include "cuda/device/element.hpp"
#include "cuda/device/ptx/memory_order.hpp"

namespace perseid::internal::cuda {

// A row of a tensor in a warp: each lane has every 32nd element. `stride`: between elements.
template <DType D, int kDim>
struct WarpRow {
  using Element = typename ElementOf<D>::Type;
  using Real = typename SumOf<D>::Type;
  static constexpr int kParts = (kDim + 31) / 32;
  Real part[kParts];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (Real& each : part) each = 0;
  }
  __device__ __forceinline__ void load(const Element* row, int32_t dim, int64_t stride = 1) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      part[i] = lane + 32 * i < dim ? widen(row[(lane + 32 * i) * stride]) : 0;
  }
  // Columns [first, dim), rounded to another type.
  template <DType R = D>
  __device__ __forceinline__ void store(typename ElementOf<R>::Type* row, int32_t dim, Real factor,
                                        int64_t stride = 1, int32_t first = 0) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      if (lane + 32 * i < dim && lane + 32 * i >= first)
        row[(lane + 32 * i) * stride] = round_element<R>(part[i] * factor);
  }
  // Elements that are finite stay as they are in memory.
  __device__ __forceinline__ void store_nonfinite(Element* row, int32_t dim, Real factor,
                                                  int64_t stride = 1) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const Real element = part[i] * factor;
      if (lane + 32 * i < dim && element - element != 0)
        row[(lane + 32 * i) * stride] = round_element<D>(element);
    }
  }
  // Added to what is there.
  template <DType R = D>
  __device__ __forceinline__ void add_to(typename ElementOf<R>::Type* row, int32_t dim, Real factor,
                                         int64_t stride = 1, int32_t first = 0) const {
    WarpRow sum;
    sum.template load_stored<R>(row, dim, stride);
    sum.add(factor, *this);
    sum.template store<R>(row, dim, 1, stride, first);
  }
  template <bool kAdds, DType R = D>
  __device__ __forceinline__ void store_or_add(typename ElementOf<R>::Type* row, int32_t dim,
                                               Real factor, int64_t stride = 1,
                                               int32_t first = 0) const {
    if constexpr (kAdds)
      add_to<R>(row, dim, factor, stride, first);
    else
      store<R>(row, dim, factor, stride, first);
  }
  __device__ __forceinline__ void multiply(Real factor) {
#pragma unroll
    for (Real& each : part) each *= factor;
  }
  __device__ __forceinline__ void add(Real factor, const WarpRow& other) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) part[i] = V::fma(factor, other.part[i], part[i]);
  }
  // What the kernel itself has stored: an L1 cache may hold what was there before, if another warp
  // has read the row that ends, or begins, within the same 32 bytes.
  template <DType R = D>
  __device__ __forceinline__ void load_stored(const typename ElementOf<R>::Type* row, int32_t dim,
                                              int64_t stride = 1) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      part[i] = lane + 32 * i < dim ? load_relaxed<R>(&row[(lane + 32 * i) * stride]) : 0;
  }
  __device__ __forceinline__ Real product(const WarpRow& other) const {
    Real sum = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) sum = V::fma(part[i], other.part[i], sum);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
  }
  __device__ __forceinline__ bool is_finite() const {
    Real nonfinite = 0;
#pragma unroll
    for (const Real each : part) nonfinite = V::fma(each, 0, nonfinite);
    return __all_sync(0xffffffffu, nonfinite == 0);
  }
  // All elements are NaN: nothing that is added can change that.
  __device__ __forceinline__ bool is_lost(int32_t dim) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    bool lost = true;
#pragma unroll
    for (int i = 0; i < kParts; ++i) lost = lost && (lane + 32 * i >= dim || part[i] != part[i]);
    return __all_sync(0xffffffffu, lost);
  }

 private:
  using V = typename ArithmeticOf<Real>::Type;
  template <DType R>
  static __device__ __forceinline__ Real load_relaxed(const typename ElementOf<R>::Type* from) {
    if constexpr (R == DType::kF64)
      return __builtin_bit_cast(double, ptx::load_relaxed(reinterpret_cast<const uint64_t*>(from)));
    else if constexpr (R == DType::kF32)
      return float_from_bits(ptx::load_relaxed(reinterpret_cast<const uint32_t*>(from)));
    else
      return widen(typename ElementOf<R>::Type{ptx::load_relaxed(&from->bits)});
  }
};

}  // namespace perseid::internal::cuda
