// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Gradients of a warp's rows from registers to memory, in attention backward on sm_80 and up.
#pragma once

#include "cuda/device/element.hpp"
#include "cuda/device/portable/attention/backward_config.hpp"
#include "cuda/device/portable/vector_tile.hpp"

namespace perseid::internal::cuda {

// kPart columns of the warp's rows, through shared memory of the warp's own, so that it stores
// whole lines; or, where they have more than 16 bits or are added to what is there, element by
// element.
template <PortableBackwardConfig C, DType kOut, int kPart>
class GradientStore {
  static constexpr int kLine = line_length(kPart), kVectors = kPart / kVector;
  using Real = typename SumOf<C.dtype>::Type;
  using Sums = Real[C.rows / 16][kPart / 2];
  using Element = typename ElementOf<kOut>::Type;

 public:
  // The warp's first row is at `to`, with the strides of rows and elements. `rows`: those that are
  // stored, as bits; `columns`: how many.
  __device__ __forceinline__ GradientStore(unsigned char* staged, Element* to, int64_t row_stride,
                                           int64_t stride, uint32_t rows, int columns, int lane)
      : staged_(staged),
        to_(to),
        row_stride_(row_stride),
        stride_(stride),
        rows_(rows),
        columns_(columns),
        lane_(lane) {}

  // The sums times factor + rest, which is 0 but for planes.
  template <bool kAdds>
  __device__ __forceinline__ void store(const Sums& sums, Real factor, Real rest,
                                        bool vectors) const {
    if constexpr (kAdds || kOut == DType::kF32 || kOut == DType::kF64) {
      store_numbers<kAdds>(sums, factor, rest);
      return;
    } else {
      store_rounded(sums, factor, vectors);
    }
  }

 private:
  __device__ __forceinline__ void store_rounded(const Sums& sums, Real factor, bool vectors) const {
    __syncwarp();  // what was staged before was read
    stage(sums, factor);
    __syncwarp();
    if (vectors)
      store_vectors();
    else
      store_elements();
  }
  __device__ __forceinline__ bool has(int row) const { return (rows_ >> row & 1) != 0; }
  // use(row, its pair of eight columns j, the two sums)
  template <class Use>
  __device__ __forceinline__ void for_each_pair(const Sums& sums, Real factor, Real rest,
                                                const Use& use) const {
    const auto times = [&](Real sum) {
      if constexpr (C.planes() == 2) return fmaf(sum, factor, sum * rest);
      return sum * factor;
    };
#pragma unroll
    for (int i = 0; i < C.rows / 16; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int j = 0; j < kPart / 8; ++j)
          use(16 * i + 8 * r + lane_ / 4, j, times(sums[i][4 * j + 2 * r]),
              times(sums[i][4 * j + 2 * r + 1]));
  }
  __device__ __forceinline__ void stage(const Sums& sums, float factor) const {
    for_each_pair(sums, factor, 0, [&](int row, int j, float x, float y) {
      *reinterpret_cast<uint32_t*>(staged_ + vector_offset<kLine>(row, j) + lane_ % 4 * 4) =
          round_pair<C.dtype>(x, y);
    });
  }
  __device__ __forceinline__ void store_vectors() const {
#pragma unroll 4
    for (int i = lane_; i < C.rows * kVectors; i += 32) {
      const int row = i / kVectors, vector = i % kVectors;
      if (has(row) && vector * kVector < columns_)
        *reinterpret_cast<uint4*>(to_ + row * row_stride_ + vector * kVector) =
            *reinterpret_cast<const uint4*>(staged_ + vector_offset<kLine>(row, vector));
    }
  }
  __device__ __forceinline__ void store_elements() const {
#pragma unroll 1
    for (int i = lane_; i < C.rows * kPart; i += 32) {
      const int row = i / kPart, column = i % kPart;
      if (has(row) && column < columns_)
        to_[row * row_stride_ + column * stride_] = *reinterpret_cast<const Element*>(
            staged_ + vector_offset<kLine>(row, column / kVector) + column % kVector * 2);
    }
  }
  template <bool kAdds>
  __device__ __forceinline__ void store_numbers(const Sums& sums, Real factor, Real rest) const {
    for_each_pair(sums, factor, rest, [&](int row, int j, Real x, Real y) {
      const Real two[2] = {x, y};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = 8 * j + lane_ % 4 * 2 + e;
        if (!has(row) || column >= columns_) continue;
        Element* const to = to_ + row * row_stride_ + column * stride_;
        *to = round_element<kOut>((kAdds ? widen(*to) : 0) + two[e]);
      }
    });
  }

  unsigned char* const staged_;
  Element* const to_;
  const int64_t row_stride_, stride_;
  const uint32_t rows_;
  const int columns_, lane_;
};

}  // namespace perseid::internal::cuda
