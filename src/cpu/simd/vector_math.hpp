// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// exp2 of a vector, and the constants of working in powers of two.
//
// x = n + r with n whole and |r| <= 1/2; 2^r by a polynomial fitted to least relative error with
// its constant term held at 1, so that exp2(0) is exactly 1; 2^n into the exponent. exp2(-inf) is 0
// and NaN stays NaN: x is first raised to a floor far below the smallest number, since inf - inf
// would be NaN.
#pragma once

#include "cpu/simd/isa.hpp"

namespace perseid::cpu::PERSEID_ISA {

inline constexpr double kLog2E = 1.4426950408889634074;
inline constexpr double kLn2 = 0.69314718055994530942;

// c0 + c1 r + ... by Horner's rule.
template <class V, int Count>
PERSEID_INLINE typename V::Reg polynomial(typename V::Reg r, const typename V::Scalar (&c)[Count]) {
  typename V::Reg sum = V::set1(c[Count - 1]);
#pragma GCC unroll 16
  for (int i = Count - 2; i >= 0; --i) sum = V::fma(sum, r, V::set1(c[i]));
  return sum;
}

template <class V, int Count>
PERSEID_INLINE typename V::Reg exp2_with(typename V::Reg x,
                                         const typename V::Scalar (&coefficients)[Count]) {
  constexpr typename V::Scalar kFloor = sizeof(typename V::Scalar) == 4 ? -200 : -1200;
  x = V::max(V::set1(kFloor), x);
  const typename V::Reg n = V::round(x);
  return V::scale_by_power(polynomial<V>(V::sub(x, n), coefficients), n);
}

// Relative error at most 2.2e-7 (float32) and 4e-16 (float64).
template <class V>
PERSEID_INLINE typename V::Reg exp2(typename V::Reg x) {
  if constexpr (sizeof(typename V::Scalar) == 4) {
    constexpr float c[] = {
        1.0f, 6.931469776e-1f, 2.402224208e-1f, 5.550733744e-2f, 9.671512688e-3f, 1.326472725e-3f};
    return exp2_with<V>(x, c);
  } else {
    // Taylor coefficients ln2^k / k!: at |r| <= 1/2 the next term is below half a unit in the last
    // place.
    constexpr double c[] = {1.0,
                            6.931471805599453094e-1,
                            2.402265069591007123e-1,
                            5.550410866482157995e-2,
                            9.618129107628477162e-3,
                            1.333355814642844343e-3,
                            1.540353039338160995e-4,
                            1.525273380405984028e-5,
                            1.321548679014430949e-6,
                            1.017808600923969973e-7,
                            7.054911620801123330e-9,
                            4.445538271870811498e-10,
                            2.567843599348820514e-11,
                            1.369148885390412888e-12};
    return exp2_with<V>(x, c);
  }
}

// Relative error at most 3e-6: for results that are rounded to bf16 anyway.
PERSEID_INLINE F32::Reg exp2_approx(F32::Reg x) {
  constexpr float c[] = {1.0f, 6.931241934e-1f, 2.402409861e-1f, 5.590642504e-2f, 9.582853169e-3f};
  return exp2_with<F32>(x, c);
}

}  // namespace perseid::cpu::PERSEID_ISA
