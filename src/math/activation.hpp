// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What a matmul applies to each element of its result. The float64 reference has formulas of its
// own.
#pragma once

#include "math/constants.hpp"
#include "math/portable.hpp"

namespace perseid::internal {

// The values are those of perseid_activation.
enum class Activation : int32_t { kNone = 0, kGeluTanh = 1, kGeluErf = 2, kSilu = 3 };
inline constexpr uint32_t kActivations = 4;

constexpr const char* name_of(Activation activation) {
  switch (activation) {
    case Activation::kGeluTanh:
      return "gelu-tanh";
    case Activation::kGeluErf:
      return "gelu-erf";
    case Activation::kSilu:
      return "silu";
    case Activation::kNone:
      break;
  }
  return "none";
}

// V: vectors or scalars as of score_chain.hpp, with exp2(x) and erf(x).
//
// tanh(u) = 2 / (1 + exp(-2 u)) - 1, so that gelu-tanh(y) = y / (1 + exp(-2 u)): silu with another
// argument of the exponential. Of y = -infinity all are NaN.
template <class V>
PERSEID_INLINE typename V::Reg activate(Activation activation, typename V::Reg y) {
  using Scalar = typename V::Scalar;
  const auto constant = [](double value) { return V::set1(static_cast<Scalar>(value)); };
  if (activation == Activation::kNone) return y;
  if (activation == Activation::kGeluErf)
    return V::mul(V::mul(y, constant(0.5)),
                  V::add(constant(1), V::erf(V::mul(y, constant(0.70710678118654752440)))));
  typename V::Reg exponent = V::mul(y, constant(-kLog2E));
  if (activation == Activation::kGeluTanh) {
    // -2 sqrt(2 / pi) (y + 0.044715 y^3), in units of log2.
    constexpr double kFactor = -2 * 0.79788456080286535588 * kLog2E;
    const typename V::Reg cubic =
        V::fma(V::mul(y, y), constant(0.044715 * kFactor), constant(kFactor));
    exponent = V::mul(y, cubic);
  }
  // 2^3000 is infinite in float64 too; exp2 takes no infinite argument.
  exponent = V::min(exponent, constant(3000));
  return V::div(y, V::add(constant(1), V::exp2(exponent)));
}

}  // namespace perseid::internal
