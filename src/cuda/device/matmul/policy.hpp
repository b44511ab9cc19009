// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What matmul does with y = alpha sum + bias + beta c0 before it rounds: z = activation(y), and
// amax = max |z|. A policy that a kernel is compiled for; another one has the same two functions.
#pragma once

#include "cuda/device/ptx/math.hpp"
#include "math/activation.hpp"

namespace perseid::internal::cuda {

// The arithmetic of activate().
struct ActivationFloat {
  using Scalar = float;
  using Reg = float;
  static __device__ __forceinline__ float set1(float x) { return x; }
  static __device__ __forceinline__ float add(float a, float b) { return a + b; }
  static __device__ __forceinline__ float mul(float a, float b) { return a * b; }
  static __device__ __forceinline__ float fma(float a, float b, float c) { return fmaf(a, b, c); }
  static __device__ __forceinline__ float min(float a, float b) { return fminf(a, b); }
  static __device__ __forceinline__ float div(float a, float b) {
    return a * ptx::approximate_reciprocal(b);
  }
  static __device__ __forceinline__ float exp2(float x) { return ptx::approximate_exp2(x); }
  static __device__ __forceinline__ float erf(float x) { return erff(x); }
};
struct ActivationDouble {
  using Scalar = double;
  using Reg = double;
  static __device__ __forceinline__ double set1(double x) { return x; }
  static __device__ __forceinline__ double add(double a, double b) { return a + b; }
  static __device__ __forceinline__ double mul(double a, double b) { return a * b; }
  static __device__ __forceinline__ double fma(double a, double b, double c) {
    return ::fma(a, b, c);
  }
  static __device__ __forceinline__ double min(double a, double b) { return fmin(a, b); }
  static __device__ __forceinline__ double div(double a, double b) { return a / b; }
  static __device__ __forceinline__ double exp2(double x) { return ::exp2(x); }
  static __device__ __forceinline__ double erf(double x) { return ::erf(x); }
};

template <class Real>
struct ActivationTypes {
  using Arithmetic = ActivationFloat;
  using Bits = unsigned int;
};
template <>
struct ActivationTypes<double> {
  using Arithmetic = ActivationDouble;
  using Bits = unsigned long long;
};

template <class Real, Activation kActivation, bool kAmax>
class MatmulPolicy {
  using Types = ActivationTypes<Real>;
  using Bits = typename Types::Bits;

 public:
  // z of an element. `counts`: for amax.
  __device__ __forceinline__ Real apply(Real y, bool counts = true) {
    const Real z = activate<typename Types::Arithmetic>(kActivation, y);
    if constexpr (kAmax) {
      // Magnitudes are in the order of their bits, and NaN is above all of them.
      const Bits magnitude = bits_of(z) & (~Bits{0} >> 1);
      if (counts) most_ = max(most_, magnitude);
    }
    return z;
  }
  // By all lanes of a warp, after the last element; `amax` was 0 before the launch.
  __device__ __forceinline__ void finish(void* amax) const {
    if constexpr (kAmax) {
      Bits most = most_;
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2)
        most = max(most, __shfl_xor_sync(0xffffffffu, most, lanes));
      if (threadIdx.x % 32 == 0) atomicMax(static_cast<Bits*>(amax), most);
    }
  }

 private:
  static __device__ __forceinline__ unsigned int bits_of(float x) { return __float_as_uint(x); }
  static __device__ __forceinline__ unsigned long long bits_of(double x) {
    return static_cast<unsigned long long>(__double_as_longlong(x));
  }

  Bits most_ = 0;
};

}  // namespace perseid::internal::cuda
