// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Vectors of one lane: plain C++, for machines without any of the other instruction sets, and to
// compare the others with in tests. Also the list of what a vector type offers:
//
//   Scalar, Reg, Mask, kLanes    the element, the register, one truth value a lane
//   load, store                  kLanes neighbours, any alignment; F32 also of f16 and bf16
//   load_partial, store_partial  the first n < kLanes; the other lanes load as 0
//   stream                       a store past the caches, to an address aligned to the vector
//   fence                        (F32) puts streamed stores before whatever follows
//   fma, fms                     a b + c, a b - c, rounded once (scalar: as the compiler contracts)
//   max, min                     of a NaN and a number: the second operand, as x86 has it
//   fraction                     a - floor(a); not a number for inf, anything finite for -inf
//   scale_by_power(a, n)         a * 2^floor(n); 0 where that is far below the smallest number
//   less, is_nan, either, any    comparisons and what to make of them
//   first(n), nonzero_bytes(p)   masks from a count and from kLanes bytes
//   select(m, a, b)              a where m, else b
//   reduce_add, reduce_max       over the lanes
//   transpose                    of kLanes registers, as bits
#pragma once

#include <cmath>

#include "math/dtype.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

template <class T>
struct OneLane {
  using Scalar = T;
  using Reg = T;
  using Mask = bool;
  static constexpr int kLanes = 1;

  static PERSEID_INLINE Reg zero() { return 0; }
  static PERSEID_INLINE Reg set1(T x) { return x; }
  template <class From>
  static PERSEID_INLINE Reg load(const From* p) {
    return convert<T>(*p);
  }
  template <class From>
  static PERSEID_INLINE Reg load_partial(const From*, int) {
    return 0;
  }
  template <class To>
  static PERSEID_INLINE void store(To* p, Reg a) {
    *p = convert<To>(a);
  }
  template <class To>
  static PERSEID_INLINE void store_partial(To*, Reg, int) {}
  template <class To>
  static PERSEID_INLINE void stream(To* p, Reg a) {
    store(p, a);
  }
  static PERSEID_INLINE void fence() {}

  static PERSEID_INLINE Reg add(Reg a, Reg b) { return a + b; }
  static PERSEID_INLINE Reg sub(Reg a, Reg b) { return a - b; }
  static PERSEID_INLINE Reg mul(Reg a, Reg b) { return a * b; }
  static PERSEID_INLINE Reg div(Reg a, Reg b) { return a / b; }
  static PERSEID_INLINE Reg fma(Reg a, Reg b, Reg c) { return a * b + c; }
  static PERSEID_INLINE Reg fms(Reg a, Reg b, Reg c) { return a * b - c; }
  static PERSEID_INLINE Reg max(Reg a, Reg b) { return a > b ? a : b; }
  static PERSEID_INLINE Reg min(Reg a, Reg b) { return a < b ? a : b; }
  static PERSEID_INLINE Reg fraction(Reg a) {
    return a - a == 0 ? a - static_cast<T>(__builtin_floor(a)) : (is_nan(a) ? a : 0);
  }
  static PERSEID_INLINE Reg scale_by_power(Reg a, Reg n) {
    constexpr T kMost = sizeof(T) == 4 ? 400 : 4000;
    const int power = is_nan(n) ? 0 : static_cast<int>(__builtin_floor(min(max(n, -kMost), kMost)));
    return static_cast<T>(__builtin_ldexp(a, power));
  }
  static PERSEID_INLINE Mask less(Reg a, Reg b) { return a < b; }
  static PERSEID_INLINE Mask is_nan(Reg a) { return a != a; }
  static PERSEID_INLINE Mask either(Mask a, Mask b) { return a || b; }
  static PERSEID_INLINE bool any(Mask m) { return m; }
  static PERSEID_INLINE Mask first(int n) { return n > 0; }
  static PERSEID_INLINE Mask nonzero_bytes(const uint8_t* p) { return *p != 0; }
  static PERSEID_INLINE Reg select(Mask m, Reg a, Reg b) { return m ? a : b; }
  static PERSEID_INLINE T reduce_add(Reg a) { return a; }
  static PERSEID_INLINE T reduce_max(Reg a) { return a; }
  static PERSEID_INLINE void transpose(Reg (&)[kLanes]) {}
};

struct F32 : OneLane<float> {};
struct F64 : OneLane<double> {};

// What Philox needs: 64-bit lanes; multiply_low takes the low half of each, high moves the high
// half down.
struct U64 {
  using Reg = uint64_t;
  static constexpr int kLanes = 1;
  static PERSEID_INLINE Reg load(const uint64_t* p) { return *p; }
  static PERSEID_INLINE void store(uint64_t* p, Reg a) { *p = a; }
  static PERSEID_INLINE Reg set1(uint64_t x) { return x; }
  static PERSEID_INLINE Reg multiply_low(Reg a, Reg b) {
    return (a & 0xffffffffu) * (b & 0xffffffffu);
  }
  static PERSEID_INLINE Reg high(Reg a) { return a >> 32; }
  static PERSEID_INLINE Reg exclusive_or(Reg a, Reg b) { return a ^ b; }
};

template <class V>
struct OneLaneDot {
  using Vector = V;
  using Element = typename V::Scalar;
  static constexpr int kDepth = 1;
  static constexpr int kRows = 4;
  static constexpr int kVectors = 4;
  static PERSEID_INLINE Element broadcast(const Element* a) { return *a; }
  static PERSEID_INLINE Element load(const Element* b) { return *b; }
  static PERSEID_INLINE Element multiply_add(Element a, Element b, Element c) { return a * b + c; }
};
struct F32Dot : OneLaneDot<F32> {};
struct F64Dot : OneLaneDot<F64> {};

#if !defined(PERSEID_EMULATED_BF16_DOT)  // tests have one of plain C++: isa_emulated_bf16.hpp
inline constexpr bool kHasBf16Dot = false;
using DotOfBf16 = F32Dot;
#endif

}  // namespace perseid::internal::cpu::PERSEID_ISA
