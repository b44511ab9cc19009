// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ceilings of one core: multiply-adds in registers, copying and reading. Every rate that the
// project reports is a fraction of one of these.
//
// Operands are loaded from volatile memory and results stored to it, so that the compiler can
// neither fold a value nor drop a result; the loop itself uses registers alone.
#pragma once

#include "cpu/simd/isa.hpp"

namespace perseid::internal::cpu::PERSEID_ISA {

// As many independent sums as a tile of micro_gemm has: enough to hide the latency of any
// multiply-add. Returns the FLOPs done.
template <class Dot>
double peak(int64_t iterations) {
  using V = typename Dot::Vector;
  using Scalar = typename V::Scalar;
  constexpr int kSums = Dot::kRows * Dot::kVectors;
  volatile typename Dot::Element operand = {};
  volatile Scalar start = 0;
  const typename Dot::Element element = operand;
  const auto a = Dot::broadcast(&element);
  const auto b = Dot::broadcast(&element);
  typename V::Reg sum[kSums];
  for (int i = 0; i < kSums; ++i) sum[i] = V::set1(start);
  for (int64_t iteration = 0; iteration < iterations; ++iteration) {
#pragma GCC unroll 32
    for (int i = 0; i < kSums; ++i) sum[i] = Dot::multiply_add(a, b, sum[i]);
  }
  typename V::Reg total = sum[0];
  for (int i = 1; i < kSums; ++i) total = V::add(total, sum[i]);
  volatile Scalar result = V::reduce_add(total);
  static_cast<void>(result);
  return 2.0 * Dot::kDepth * V::kLanes * kSums * static_cast<double>(iterations);
}

// Past the caches where the array is larger than they are. Returns the bytes read and written.
inline double copy(const void* from, void* to, size_t bytes) {
  using V = F32;
  constexpr size_t kVector = V::kLanes * sizeof(float);
  constexpr size_t kBlock = 8;
  constexpr size_t kCached = size_t{1} << 20;
  const char* in = static_cast<const char*>(from);
  char* out = static_cast<char*>(to);
  const bool stream = bytes > kCached && reinterpret_cast<uintptr_t>(to) % kVector == 0;
  size_t i = 0;
  for (; i + kBlock * kVector <= bytes; i += kBlock * kVector) {
    V::Reg block[kBlock];
#pragma GCC unroll 8
    for (size_t j = 0; j < kBlock; ++j)
      block[j] = V::load(reinterpret_cast<const float*>(in + i + j * kVector));
    if (stream) {
#pragma GCC unroll 8
      for (size_t j = 0; j < kBlock; ++j)
        V::stream(reinterpret_cast<float*>(out + i + j * kVector), block[j]);
    } else {
#pragma GCC unroll 8
      for (size_t j = 0; j < kBlock; ++j)
        V::store(reinterpret_cast<float*>(out + i + j * kVector), block[j]);
    }
  }
  __builtin_memcpy(out + i, in + i, bytes - i);
  // Streamed stores are not ordered by the release that ends a task.
  if (stream) V::fence();
  return 2.0 * static_cast<double>(bytes);
}

inline double read(const void* from, size_t bytes) {
  constexpr int kSums = 8;
  constexpr int64_t kBlock = kSums * U64::kLanes;
  const uint64_t* words = static_cast<const uint64_t*>(from);
  const int64_t count = static_cast<int64_t>(bytes / sizeof(uint64_t));
  U64::Reg sum[kSums];
  for (int j = 0; j < kSums; ++j) sum[j] = U64::set1(0);
  for (int64_t i = 0; i + kBlock <= count; i += kBlock) {
#pragma GCC unroll 8
    for (int j = 0; j < kSums; ++j)
      sum[j] = U64::exclusive_or(sum[j], U64::load(words + i + j * U64::kLanes));
  }
  for (int j = 1; j < kSums; ++j) sum[0] = U64::exclusive_or(sum[0], sum[j]);
  uint64_t lanes[U64::kLanes];
  U64::store(lanes, sum[0]);
  volatile uint64_t result = lanes[0];
  static_cast<void>(result);
  return static_cast<double>(bytes);
}

}  // namespace perseid::internal::cpu::PERSEID_ISA
