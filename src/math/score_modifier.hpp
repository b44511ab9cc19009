// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Score modifiers: M in score = M(scale q . k) + bias, such as a soft cap. A problem has a kind and
// a value; kernels are compiled for a kind. docs/howto/add_score_modifier.md adds one.
//
// A modifier is written once, over an arithmetic V: a vector of an instruction set (ScoreArithmetic
// in cpu/simd/vector_math.hpp) or a float of a GPU thread (FloatArithmetic in
// cuda/device/attention/arithmetic.hpp). V has
//
//   Scalar, Reg, Mask          the element, the register, one truth value a lane
//   set1, add, sub, mul, div
//   fma                        a b + c
//   exp2
//   less, select(m, a, b)      a where m, else b
#pragma once

#include "math/portable.hpp"

namespace perseid::internal {

enum class ScoreModifierKind : int32_t { kNone = 0 };

struct ScoreModifier {
  ScoreModifierKind kind = ScoreModifierKind::kNone;
  double value = 0;  // the parameter of the kind
};

// M of a kind, and M' as a function of the modified score, in the arithmetic V.
template <ScoreModifierKind kKind, class Scalar>
struct Modifier;

// The identity, which leaves the scale to the multiply-add of the exponential.
template <class Scalar>
struct Modifier<ScoreModifierKind::kNone, Scalar> {
  static constexpr bool kIdentity = true;
  Scalar value;

  template <class V>
  PERSEID_INLINE typename V::Reg apply(typename V::Reg scaled) const {
    return scaled;
  }
  template <class V>
  PERSEID_INLINE typename V::Reg derivative(typename V::Reg /*modified*/) const {
    return V::set1(1);
  }
};

// use(Modifier) of the problem's kind.
template <class Scalar, class Use>
PERSEID_INLINE void with_modifier(const ScoreModifier& modifier, Use&& use) {
  const auto value = static_cast<Scalar>(modifier.value);
  switch (modifier.kind) {
    case ScoreModifierKind::kNone:
      return use(Modifier<ScoreModifierKind::kNone, Scalar>{value});
  }
}

}  // namespace perseid::internal
