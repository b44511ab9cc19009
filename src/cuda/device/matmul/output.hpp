// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// From sums of products to c: alpha sum + bias + beta c0 and what the policy makes of it, rounded
// once. And which tile of c a block makes.
#pragma once

#include "cuda/device/element.hpp"
#include "cuda/device/matmul/config.hpp"
#include "cuda/device/matmul/policy.hpp"

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
__device__ __forceinline__ MatmulTile find_tile(const MatmulLaunch& launch, int64_t number,
                                                int rows, int columns) {
  constexpr int64_t kBand = 8;
  const int64_t tiles = launch.tiles_down * launch.tiles_across;
  const int64_t batch = number / tiles, tile = number % tiles;
  const int64_t band = tile / (kBand * launch.tiles_across);
  const int64_t in_band = tile % (kBand * launch.tiles_across);
  const int64_t height = min(kBand, launch.tiles_down - band * kBand);
  return {batch, (band * kBand + in_band % height) * rows, in_band / height * columns};
}

// ---- Elements ----

template <DType D>
struct MatmulElement {
  using Type = typename ElementOf<D>::Type;
  static __device__ __forceinline__ auto read(const void* data, int64_t at) {
    return widen(static_cast<const Type*>(data)[at]);
  }
  template <class Real>
  static __device__ __forceinline__ void write(void* data, int64_t at, Real value) {
    static_cast<Type*>(data)[at] = round_element<D>(value);
  }
  // Two neighbours in one aligned access.
  template <class Real>
  static __device__ __forceinline__ void write_pair(void* data, int64_t at, Real a, Real b) {
    Type* to = static_cast<Type*>(data) + at;
    if constexpr (D == DType::kF64)
      *reinterpret_cast<double2*>(to) = {a, b};
    else if constexpr (D == DType::kF32)
      *reinterpret_cast<float2*>(to) = {static_cast<float>(a), static_cast<float>(b)};
    else
      *reinterpret_cast<uint32_t*>(to) = round_pair<D>(a, b);
  }
};

// ---- Output ----

// c, of one batch entry. Every element is read (as c0) and written by the same thread, so that c0
// may be c: a caller that writes several loads all their c0 first.
template <DType In, DType Out, Activation kActivation, bool kAmax>
class MatmulOutput {
  using Real = decltype(widen(typename ElementOf<In>::Type{}));

 public:
  __device__ __forceinline__ MatmulOutput(const MatmulLaunch& launch, int64_t batch)
      : c_(launch.c), rows_(launch.rows), columns_(launch.columns), batch_(batch) {}

  // What c0 has at two neighbours of a row; nothing where there is no c0.
  struct Source {
    Real first, second;
  };
  __device__ __forceinline__ Source source(int64_t row, int64_t column) const {
    return {source_at(row, column), source_at(row, column + 1)};
  }
  // Two neighbours of a row; elements outside of c are skipped. `column` is even.
  __device__ __forceinline__ void write(int64_t row, int64_t column, Real first, Real second) {
    write(row, column, first, second, source(row, column));
  }
  __device__ __forceinline__ void write(int64_t row, int64_t column, Real first, Real second,
                                        const Source& c0) {
    if (row >= rows_ || column >= columns_) return;
    const bool both = column + 1 < columns_;
    const int64_t at = batch_ * c_.batch + row * c_.row + column * c_.column;
    first = finish(row, column, first, c0.first);
    if (both) second = finish(row, column + 1, second, c0.second);
    if (both && c_.pairs) {
      MatmulElement<Out>::write_pair(c_.data, at, first, second);
    } else {
      MatmulElement<Out>::write(c_.data, at, first);
      if (both) MatmulElement<Out>::write(c_.data, at + c_.column, second);
    }
  }
  __device__ __forceinline__ void write(int64_t row, int64_t column, Real sum) {
    if (row >= rows_ || column >= columns_) return;
    MatmulElement<Out>::write(c_.data, batch_ * c_.batch + row * c_.row + column * c_.column,
                              finish(row, column, sum, source_at(row, column)));
  }

  // By all lanes of a warp, after the last element.
  __device__ __forceinline__ void finish() const { policy_.finish(c_.amax); }

 private:
  __device__ __forceinline__ Real source_at(int64_t row, int64_t column) const {
    if (c_.c0 == nullptr || row >= rows_ || column >= columns_) return 0;
    return MatmulElement<Out>::read(c_.c0,
                                    batch_ * c_.c0_batch + row * c_.c0_row + column * c_.c0_column);
  }
  __device__ __forceinline__ Real finish(int64_t row, int64_t column, Real sum, Real c0) {
    Real bias = 0;
    if (c_.bias != nullptr) {
      const int64_t at = row * c_.bias_row + column * c_.bias_column;
      bias = c_.bias_as_out ? MatmulElement<Out>::read(c_.bias, at)
                            : MatmulElement<In>::read(c_.bias, at);
    }
    Real value = fma(static_cast<Real>(c_.alpha), sum, bias);
    if (c_.c0 != nullptr) value = fma(static_cast<Real>(c_.beta), c0, value);
    return policy_.apply(value);
  }

  const MatmulResult& c_;
  int64_t rows_, columns_, batch_;
  MatmulPolicy<Real, kActivation, kAmax> policy_;
};

}  // namespace perseid::internal::cuda
