// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// From sums of products to c: alpha sum + bias + beta c0, rounded once. And which tile of c a block
// makes.
#pragma once

#include "cuda/device/matmul/config.hpp"
#include "cuda/device/ptx/math.hpp"

namespace perseid::internal::cuda {

// ---- Which tile ----

struct MatmulTile {
  int64_t batch, row, column;  // of its first element
};

// Blocks with neighbouring numbers run at the same time: they take tiles of a band of kBand tiles
// from the top to the bottom, column by column, so that they share rows of a and columns of b in
// the cache.
//
//    0  4  8 ..      the first band
//    1  5  9
//    2  6 10
//    3  7 11
__device__ __forceinline__ MatmulTile find_tile(const MatmulLaunch& launch, int rows, int columns) {
  constexpr int64_t kBand = 8;
  const int64_t tiles = launch.tiles_down * launch.tiles_across;
  const int64_t batch = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  const int64_t band = tile / (kBand * launch.tiles_across);
  const int64_t in_band = tile % (kBand * launch.tiles_across);
  const int64_t height = min(kBand, launch.tiles_down - band * kBand);
  return {batch, (band * kBand + in_band % height) * rows, in_band / height * columns};
}

// ---- Elements ----

template <DType D>
struct MatmulElement {
  using Bits = uint16_t;
  static __device__ __forceinline__ float read(const void* data, int64_t at) {
    const uint32_t bits = static_cast<const uint16_t*>(data)[at];
    return D == DType::kBF16 ? __uint_as_float(bits << 16) : ptx::f16_to_float(bits);
  }
  static __device__ __forceinline__ uint32_t round_pair(float low, float high) {
    return D == DType::kBF16 ? ptx::to_bf16x2(low, high) : ptx::to_f16x2(low, high);
  }
  static __device__ __forceinline__ void write(void* data, int64_t at, float value) {
    static_cast<uint16_t*>(data)[at] = static_cast<uint16_t>(round_pair(value, 0));
  }
  static __device__ __forceinline__ void write_pair(void* data, int64_t at, float a, float b) {
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(data) + at) = round_pair(a, b);
  }
};
template <>
struct MatmulElement<DType::kF32> {
  static __device__ __forceinline__ float read(const void* data, int64_t at) {
    return static_cast<const float*>(data)[at];
  }
  static __device__ __forceinline__ void write(void* data, int64_t at, float value) {
    static_cast<float*>(data)[at] = value;
  }
  static __device__ __forceinline__ void write_pair(void* data, int64_t at, float a, float b) {
    *reinterpret_cast<float2*>(static_cast<float*>(data) + at) = {a, b};
  }
};
template <>
struct MatmulElement<DType::kF64> {
  static __device__ __forceinline__ double read(const void* data, int64_t at) {
    return static_cast<const double*>(data)[at];
  }
  static __device__ __forceinline__ void write(void* data, int64_t at, double value) {
    static_cast<double*>(data)[at] = value;
  }
  static __device__ __forceinline__ void write_pair(void* data, int64_t at, double a, double b) {
    *reinterpret_cast<double2*>(static_cast<double*>(data) + at) = {a, b};
  }
};

// ---- Output ----

// c, of one batch entry. Every element is read (as c0) and written by the same thread, so that c0
// may be c.
template <DType In, DType Out, class Real>
class MatmulOutput {
 public:
  __device__ __forceinline__ MatmulOutput(const MatmulLaunch& launch, int64_t batch)
      : c_(launch.c), rows_(launch.rows), columns_(launch.columns), batch_(batch) {}

  // Two neighbours of a row; what lies outside of c is left out. `column` is even.
  __device__ __forceinline__ void write(int64_t row, int64_t column, Real first,
                                        Real second) const {
    if (row >= rows_ || column >= columns_) return;
    const bool both = column + 1 < columns_;
    const int64_t at = batch_ * c_.batch + row * c_.row + column * c_.column;
    first = finish(row, column, first);
    if (both) second = finish(row, column + 1, second);
    if (both && c_.pairs) {
      MatmulElement<Out>::write_pair(c_.data, at, first, second);
    } else {
      MatmulElement<Out>::write(c_.data, at, first);
      if (both) MatmulElement<Out>::write(c_.data, at + c_.column, second);
    }
  }

 private:
  __device__ __forceinline__ Real finish(int64_t row, int64_t column, Real sum) const {
    Real bias = 0;
    if (c_.bias != nullptr) {
      const int64_t at = row * c_.bias_row + column * c_.bias_column;
      bias = c_.bias_as_out ? MatmulElement<Out>::read(c_.bias, at)
                            : MatmulElement<In>::read(c_.bias, at);
    }
    Real value = fma(static_cast<Real>(c_.alpha), sum, bias);
    if (c_.c0 != nullptr) {
      const int64_t at = batch_ * c_.c0_batch + row * c_.c0_row + column * c_.c0_column;
      value = fma(static_cast<Real>(c_.beta), MatmulElement<Out>::read(c_.c0, at), value);
    }
    return value;
  }

  const MatmulResult& c_;
  int64_t rows_, columns_, batch_;
};

}  // namespace perseid::internal::cuda
