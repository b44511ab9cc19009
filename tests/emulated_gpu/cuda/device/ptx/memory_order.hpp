// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// src/cuda/device/ptx/memory_order.hpp on the CPU: what attention and waits for chunks use.
#pragma once

#include "emulated_gpu.hpp"

namespace perseid::internal::cuda::ptx {

inline uint16_t load_relaxed(const uint16_t* from) { return *from; }
inline uint32_t load_relaxed(const uint32_t* from) { return *from; }
inline uint64_t load_relaxed(const uint64_t* from) { return *from; }
inline uint32_t load_relaxed_system(const uint32_t* from) { return *from; }
inline uint32_t load_acquire_system(const uint32_t* from) { return *from; }
inline void store_release_system(uint32_t* to, uint32_t value) { *to = value; }
inline uint64_t compare_and_swap(uint64_t* at, uint64_t expected, uint64_t value) {
  const uint64_t before = *at;
  if (before == expected) *at = value;
  return before;
}
inline uint64_t fetch_add(uint64_t* to, uint64_t value) { return atomicAdd(to, value); }
inline uint64_t nanoseconds() {
  ++emulated_gpu::timer.reads;
  return emulated_gpu::timer.nanoseconds;
}

}  // namespace perseid::internal::cuda::ptx
