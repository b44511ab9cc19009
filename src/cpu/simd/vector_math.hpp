// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// exp2 of a vector, and the arithmetic of score modifiers.
//
// x = n + r with n = floor(x); 2^r by a polynomial on [0, 1) fitted to least relative error with
// its constant term held at 1, so that exp2 of a whole number is exact; 2^n into the exponent.
// exp2(-inf) is 0 and NaN stays NaN.
#pragma once

#include "cpu/simd/isa.hpp"
#include "math/constants.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

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
  return V::scale_by_power(polynomial<V>(V::fraction(x), coefficients), x);
}

// Relative error at most 2.2e-7 (float32) and 4e-16 (float64).
template <class V>
PERSEID_INLINE typename V::Reg exp2(typename V::Reg x) {
  if constexpr (sizeof(typename V::Scalar) == 4) {
    constexpr float c[] = {
        1.0f, 6.931513118e-1f, 2.401644501e-1f, 5.579991325e-2f, 9.017030116e-3f, 1.867130168e-3f};
    return exp2_with<V>(x, c);
  } else {
    constexpr double c[] = {1.0,
                            6.931471805599453259e-1,
                            2.402265069590967308e-1,
                            5.550410866498066869e-2,
                            9.618129105151756473e-3,
                            1.333355834393727875e-3,
                            1.540352121910773309e-4,
                            1.525299889972841847e-5,
                            1.32105834777651881e-6,
                            1.02360238032751793e-7,
                            6.634445866251414018e-9,
                            6.12309291682638714e-10};
    return exp2_with<V>(x, c);
  }
}

// Relative error at most 3e-6: for results that are rounded to bf16 anyway.
PERSEID_INLINE F32::Reg exp2_approx(F32::Reg x) {
  constexpr float c[] = {1.0f, 6.930448448e-1f, 2.412802054e-1f, 5.224247284e-2f, 1.342668513e-2f};
  return exp2_with<F32>(x, c);
}

// The arithmetic of the score chain and its modifiers (math/score_modifier.hpp).
template <class V>
struct ScoreArithmetic : V {
  static PERSEID_INLINE typename V::Reg exp2(typename V::Reg x) { return PERSEID_ISA::exp2<V>(x); }
};

}  // namespace perseid::internal::cpu::PERSEID_ISA
