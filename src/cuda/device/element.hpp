// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Elements of tensors in kernels: their C++ types, widening to the type that kernels compute in,
// and rounding. 16-bit types are computed in float32.
#pragma once

#include "cuda/device/ptx/math.hpp"
#include "math/dtype.hpp"

namespace perseid::internal::cuda {

template <DType D>
struct ElementOf;
template <>
struct ElementOf<DType::kF64> {
  using Type = double;
};
template <>
struct ElementOf<DType::kF32> {
  using Type = float;
};
template <>
struct ElementOf<DType::kBF16> {
  using Type = bf16;
};
template <>
struct ElementOf<DType::kF16> {
  using Type = f16;
};

// What sums of elements are computed in.
template <DType D>
struct SumOf {
  using Type = float;
};
template <>
struct SumOf<DType::kF64> {
  using Type = double;
};

// ---- Widening ----

__device__ __forceinline__ double widen(double value) { return value; }
__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(bf16 value) { return to_float(value); }
__device__ __forceinline__ float widen(f16 value) { return ptx::f16_to_float(value.bits); }

// Two packed elements of 16 bits, the first in the low half.
template <DType D>
__device__ __forceinline__ float widen_low(uint32_t pair) {
  return D == DType::kBF16 ? float_from_bits(pair << 16) : ptx::f16_to_float(pair & 0xffffu);
}
template <DType D>
__device__ __forceinline__ float widen_high(uint32_t pair) {
  return D == DType::kBF16 ? float_from_bits(pair & 0xffff0000u) : ptx::f16_to_float(pair >> 16);
}
template <DType D>
__device__ __forceinline__ float2 widen_pair(uint32_t pair) {
  return {widen_low<D>(pair), widen_high<D>(pair)};
}

// ---- Rounding, to nearest even ----

template <DType D>
__device__ __forceinline__ uint32_t round_pair(float low, float high) {
  return D == DType::kBF16 ? ptx::to_bf16x2(low, high) : ptx::to_f16x2(low, high);
}
template <DType D, class Real>
__device__ __forceinline__ typename ElementOf<D>::Type round_element(Real value) {
  using Type = typename ElementOf<D>::Type;
  if constexpr (D == DType::kF64 || D == DType::kF32)
    return static_cast<Type>(value);
  else
    return {static_cast<uint16_t>(round_pair<D>(static_cast<float>(value), 0))};
}

}  // namespace perseid::internal::cuda
