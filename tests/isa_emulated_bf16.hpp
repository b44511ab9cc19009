// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Vectors of one lane with a bf16 dot product made of plain C++, so that every machine can test the
// kernels that round weights and dS to bf16 and keep operands in pairs.
#pragma once

#define PERSEID_EMULATED_BF16_DOT
#include "cpu/simd/isa_scalar.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

inline constexpr bool kHasBf16Dot = true;

// As vdpbf16ps: the high pair is added before the low one, and small results count as 0.
struct Bf16Dot {
  using Vector = F32;
  using Element = uint32_t;
  static constexpr int kDepth = 2;
  static constexpr int kRows = 6;
  static constexpr int kVectors = 4;
  static PERSEID_INLINE uint32_t broadcast(const uint32_t* a) { return *a; }
  static PERSEID_INLINE uint32_t load(const uint32_t* b) { return *b; }
  static PERSEID_INLINE float multiply_add(uint32_t a, uint32_t b, float c) {
    // Exact products, rounded when they are added.
    c = flushed(static_cast<float>(double{high(a)} * double{high(b)} + double{c}));
    return flushed(static_cast<float>(double{low(a)} * double{low(b)} + double{c}));
  }
  static PERSEID_INLINE void store_interleaved(uint32_t* p, float low, float high) {
    *p = bits(low) | bits(high) << 16;
  }
  static PERSEID_INLINE void store_row(uint32_t* p, float first, float second) {
    *p = bits(first) | bits(second) << 16;
  }

 private:
  static PERSEID_INLINE float flushed(float x) { return x > -0x1p-126f && x < 0x1p-126f ? 0 : x; }
  static PERSEID_INLINE float high(uint32_t pair) { return float_from_bits(pair & 0xffff0000u); }
  static PERSEID_INLINE float low(uint32_t pair) { return float_from_bits(pair << 16); }
  static PERSEID_INLINE uint32_t bits(float x) { return convert<bf16>(flushed(x)).bits; }
};
using DotOfBf16 = Bf16Dot;

}  // namespace perseid::internal::cpu::PERSEID_ISA
