// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// src/cuda/device/ptx/memory.hpp on the CPU: what attention uses.
#pragma once

#include "emulated_gpu.hpp"

namespace perseid::internal::cuda::ptx {

template <int Words>
struct alignas(4 * Words) Packed {
  uint32_t word[Words];
};
template <int Words>
void store_if(bool wanted, void* to, const Packed<Words>& from) {
  if (wanted) std::memcpy(to, &from, sizeof from);
}

inline void red_add_v4(float* to, float a, float b, float c, float d) {
  const float four[4] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) to[i] += four[i];
}
inline void red_add(double* to, double summand) { *to += summand; }

inline float2 load_shared_v2(uint32_t from) {
  float2 value;
  std::memcpy(&value, &emulated_gpu::block->shared.at(from), sizeof value);
  return value;
}
inline float4 load_shared_v4(uint32_t from) {
  float4 value;
  std::memcpy(&value, &emulated_gpu::block->shared.at(from), sizeof value);
  return value;
}

}  // namespace perseid::internal::cuda::ptx
