// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The chain from a product of a query and a key to its weight, and of the gradient back, shared by
// the attention kernels of GPUs, their row-by-row fixups and those of the CPU (the float64
// reference has formulas of its own):
//
//   score      s  = M(scale x) + bias,  x = q . k      -inf where the key is masked
//   weight     p  = exp(s - lse)                       0 where s <= kLeastScore in the whole row
//   value      w  = p * rescale where dropout keeps it, else 0
//   backward   dp = (dO . v) * rescale where kept, else 0
//              ds = p (dp - delta)                     the gradient of bias
//              dx = scale M'(scale x) ds
//
// Kernels keep scores in units of log2, scale_log2 = scale * log2(e), so that every exponential is
// an exp2. M is a score modifier (math/score_modifier.hpp, with the arithmetic V).
#pragma once

#include "math/constants.hpp"
#include "math/portable.hpp"
#include "math/score_modifier.hpp"

namespace perseid::internal {

// The score of a product x, in natural units.
template <class V, class M>
PERSEID_INLINE typename V::Reg score(typename V::Reg product, typename V::Reg scale,
                                     typename V::Reg bias, const M& modifier) {
  if constexpr (M::kIdentity) return V::fma(product, scale, bias);
  return V::add(modifier.template apply<V>(V::mul(product, scale)), bias);
}
// In units of log2: without a bias, or plus `addend`, the bias less lse where the caller has them.
template <class V, class M>
PERSEID_INLINE typename V::Reg score_log2(typename V::Reg product, typename V::Reg scale_log2,
                                          const M& modifier) {
  if constexpr (M::kIdentity) return V::mul(product, scale_log2);
  using Scalar = typename V::Scalar;
  const typename V::Reg scale = V::mul(scale_log2, V::set1(static_cast<Scalar>(kLn2)));
  return V::mul(modifier.template apply<V>(V::mul(product, scale)),
                V::set1(static_cast<Scalar>(kLog2E)));
}
template <class V, class M>
PERSEID_INLINE typename V::Reg score_log2(typename V::Reg product, typename V::Reg scale_log2,
                                          typename V::Reg addend, const M& modifier) {
  if constexpr (M::kIdentity) return V::fma(product, scale_log2, addend);
  return V::add(score_log2<V>(product, scale_log2, modifier), addend);
}

// ds, the gradient of a score and of its bias; `grad_weight` is dp.
template <class V>
PERSEID_INLINE typename V::Reg grad_score(typename V::Reg weight, typename V::Reg grad_weight,
                                          typename V::Reg delta) {
  return V::mul(weight, V::sub(grad_weight, delta));
}
// The gradient of the scaled product from ds; `modified_log2` is the score less its bias, in units
// of log2.
template <class V, class M>
PERSEID_INLINE typename V::Reg grad_product(typename V::Reg grad_score,
                                            typename V::Reg modified_log2, const M& modifier) {
  if constexpr (M::kIdentity) return grad_score;
  const typename V::Reg modified =
      V::mul(modified_log2, V::set1(static_cast<typename V::Scalar>(kLn2)));
  return V::mul(grad_score, modifier.template derivative<V>(modified));
}

}  // namespace perseid::internal
