// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax of the elements that one thread has: from vectors to statistics, and from the row's
// statistics to results. With z = scale * x, m the row's maximum and s its sum of exp(z - m):
//
//   softmax = exp(z - m) / s      log-softmax = (z - m) - log(s)
//   backward: dx = scale * y * (dy - sum(y * dy)), of log-softmax scale * (dy - exp(y) * sum(dy))
//
// z - m is one fused multiply-add, exact where scale is 1; the exponential takes it as it is, so
// that rows far from 0 lose nothing.
#pragma once

#include "cuda/device/softmax/reduce.hpp"

namespace perseid::cuda {

template <SoftmaxConfig C>
struct TypesOf {
  template <bool kDoubles, class = void>
  struct Choose {
    using Real = float;
  };
  template <class Unused>
  struct Choose<true, Unused> {
    using Real = double;
  };
  using Real = typename Choose<C.doubles()>::Real;
  static constexpr int kVector = C.vector();
  using In = Vector<C.in, kVector>;
  using Out = Vector<C.out, kVector>;
};

// What stands for an element outside of a row in forward: -inf once it is scaled.
template <DType D>
__device__ __forceinline__ Word<D> padding_of(double scale) {
  const uint32_t sign = scale < 0 ? 0u : 1u;
  if constexpr (D == DType::kF64) {
    return {{0u, sign << 31 | 0x7ff00000u}};
  } else if constexpr (D == DType::kF32) {
    return {{sign << 31 | 0x7f800000u}};
  } else if constexpr (D == DType::kBF16) {
    return {{sign << 15 | 0x7f80u}};
  } else {
    return {{sign << 15 | 0x7c00u}};
  }
}

// The bits of several vectors' visible elements, a word for each vector.
template <SoftmaxConfig C, int kVectors>
struct VisibleBits {
  uint32_t word[C.masked ? kVectors : 1] = {};

  __device__ __forceinline__ void set(int vector, uint32_t bits) { word[vector] = bits; }
  // `visible` where the element is, else `other`: by the bits of the numbers, without predicates.
  template <class Real>
  __device__ __forceinline__ Real choose(int vector, int i, Real visible, Real other) const {
    if constexpr (!C.masked) return visible;
    const auto all = static_cast<uint32_t>(static_cast<int32_t>(word[vector] << (31 - i)) >> 31);
    if constexpr (sizeof(Real) == 8) {
      const auto mix = [all](int a, int b) {
        return static_cast<int>((static_cast<uint32_t>(a) & all) |
                                (static_cast<uint32_t>(b) & ~all));
      };
      return __hiloint2double(mix(__double2hiint(visible), __double2hiint(other)),
                              mix(__double2loint(visible), __double2loint(other)));
    } else {
      return __uint_as_float((__float_as_uint(visible) & all) | (__float_as_uint(other) & ~all));
    }
  }
  __device__ __forceinline__ bool any() const {
    uint32_t all = 0;
#pragma unroll
    for (uint32_t each : word) all |= each;
    return all != 0;
  }
};

// The x of the largest scale * x among a thread's visible elements of a row, times the scale.
template <SoftmaxConfig C, int kVectors, class Types = TypesOf<C>>
__device__ __forceinline__ typename Types::Real maximum_of_part(
    const typename Types::In (&x)[kVectors], const VisibleBits<C, kVectors>& bits,
    typename Types::Real scale) {
  using Real = typename Types::Real;
  const auto outer = [](Real a, Real b) {
    return C.negative ? -maximum_of(-a, -b) : maximum_of(a, b);
  };
  if constexpr (size_of(C.in) == 2 && !C.masked && !C.negative) {
    uint32_t pair = x[0].word[0];
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
#pragma unroll
      for (const uint32_t word : x[v].word)
        pair = C.in == DType::kBF16 ? ptx::max_or_nan_bf16x2(pair, word)
                                    : ptx::max_or_nan_f16x2(pair, word);
    const Vector<C.in, 2> both{{pair}};
    return maximum_of(unpack<C.in, Real, 2>(both, 0), unpack<C.in, Real, 2>(both, 1)) * scale;
  }
  Real extreme = C.negative ? -minus_infinity<Real>() : minus_infinity<Real>();
  const Real nothing = extreme;
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
#pragma unroll
    for (int i = 0; i < Types::kVector; ++i) {
      const Real each = unpack<C.in, Real, Types::kVector>(x[v], i);
      extreme = outer(extreme, bits.choose(v, i, each, nothing));
    }
  return extreme * scale;
}

// Statistics of the vectors that a thread has of a row; each(v, i, e) is called with the
// exponential of every element, relative to the maximum of the part.
template <SoftmaxConfig C, int kVectors, class Each, class Types = TypesOf<C>>
__device__ __forceinline__ Statistics<typename Types::Real> statistics_of(
    const typename Types::In (&x)[kVectors], const VisibleBits<C, kVectors>& bits,
    typename Types::Real scale, const Each& each) {
  using Real = typename Types::Real;
  auto own = Statistics<Real>::nothing();
  own.maximum = maximum_of_part<C, kVectors>(x, bits, scale);
  // Where all is -inf, 0 in its stead keeps the exponentials 0 and no NaN comes up.
  const bool nothing = own.maximum == minus_infinity<Real>();
  const Real base = nothing ? Real(0) : own.maximum;
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
#pragma unroll
    for (int i = 0; i < Types::kVector; ++i) {
      const Real z = fma(unpack<C.in, Real, Types::kVector>(x[v], i), scale, -base);
      const Real e = bits.choose(v, i, exponential(z), Real(0));
      own.sum += e;
      each(v, i, e);
    }
  if constexpr (C.masked) {
    if (nothing) own.sum = bits.any() ? Real(1) : Real(0);
  }
  return own;
}

// What the elements of a row are made with, once its statistics are known.
template <SoftmaxConfig C, class Real>
struct ForwardRow {
  Real scale, maximum, factor, nothing;  // factor: 1 / s or log(s)

  __device__ __forceinline__ ForwardRow(const SoftmaxArguments& arguments,
                                        const Statistics<Real>& whole)
      : scale(static_cast<Real>(arguments.scale)), maximum(whole.maximum) {
    factor = C.log ? log(whole.sum) : Real(1) / whole.sum;
    nothing = C.log ? minus_infinity<Real>() : Real(0);
    if constexpr (C.masked) {
      if (whole.sum == 0 && arguments.empty_rows_nan) nothing = __int_as_float(0x7fc00000);
    }
  }

  __device__ __forceinline__ Real result(Real x) const {
    const Real z = fma(x, scale, -maximum);
    return C.log ? z - factor : exponential(z) * factor;
  }

  // From the exponential relative to the maximum of a part; `part` is what part_factor gives.
  __device__ __forceinline__ Real part_factor(Real part_maximum) const {
    // Elements that are visible, and all -inf, have no softmax.
    if (maximum == minus_infinity<Real>()) return __int_as_float(0x7fc00000);
    return weight(part_maximum, maximum) * factor;
  }
  static __device__ __forceinline__ Real lse(const Statistics<Real>& whole) {
    // An infinite maximum is its own logsumexp.
    const bool infinite =
        whole.maximum == minus_infinity<Real>() || whole.maximum == -minus_infinity<Real>();
    return infinite ? whole.maximum : whole.maximum + log(whole.sum);
  }
};

// A thread's share of the sum that backward needs.
template <SoftmaxConfig C, int kVectors, class Types = TypesOf<C>>
__device__ __forceinline__ typename Types::Real gradient_sum_of(
    const typename Types::Out (&dy)[kVectors], const typename Types::Out (&y)[kVectors],
    const VisibleBits<C, kVectors>& bits) {
  using Real = typename Types::Real;
  Real sum = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
#pragma unroll
    for (int i = 0; i < Types::kVector; ++i) {
      const Real gradient = unpack<C.out, Real, Types::kVector>(dy[v], i);
      const Real part = C.log ? gradient : gradient * unpack<C.out, Real, Types::kVector>(y[v], i);
      sum += bits.choose(v, i, part, Real(0));
    }
  return sum;
}

template <SoftmaxConfig C, class Real>
__device__ __forceinline__ Real gradient(Real dy, Real y, Real sum, Real scale) {
  return (C.log ? fma(-exponential(y), sum, dy) : y * (dy - sum)) * scale;
}

}  // namespace perseid::cuda
