// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// src/cuda/device/ptx/cp_async.hpp on the CPU: copies happen when their group is waited for, or
// their mbarrier's phase completes.
#pragma once

#include "emulated_gpu.hpp"

namespace perseid::internal::cuda::ptx {

inline void cp_async(uint32_t to, const void* from, int bytes, int whole = 16) {
  auto& block = *emulated_gpu::block;
  const auto size = static_cast<uintptr_t>(whole);
  if (to % size != 0 || (bytes > 0 && reinterpret_cast<uintptr_t>(from) % size != 0))
    throw std::runtime_error("cp.async of an address that is no multiple of its size");
  unsigned char* const first = &block.shared.at(to + static_cast<uint32_t>(whole) - 1) - whole + 1;
  std::memset(first, 0xff, size);  // NaN: the copy may arrive at any time
  block.own().groups.back().push_back({first, from, bytes, whole});
}
inline void cp_async_8_or_zero(uint32_t to, const void* from, bool copies) {
  cp_async(to, from, copies ? 8 : 0, 8);
}
inline void cp_async_or_zero(uint32_t to, const void* from, bool copies) {
  cp_async(to, from, copies ? 16 : 0);
}
inline void cp_async_commit() { emulated_gpu::block->own().groups.emplace_back(); }
template <int kPending>
inline void cp_async_wait() {
  auto& groups = emulated_gpu::block->own().groups;
  while (groups.size() > kPending + 1) {
    for (const emulated_gpu::Copy& copy : groups.front()) copy.run();
    groups.erase(groups.begin());
  }
}
inline void cp_async_mbarrier_arrive(uint32_t barrier) {
  auto& block = *emulated_gpu::block;
  std::vector<emulated_gpu::Copy> copies;
  for (auto& group : block.own().groups) {
    copies.insert(copies.end(), group.begin(), group.end());
    group.clear();
  }
  block.arrive(barrier, copies);
}

}  // namespace perseid::internal::cuda::ptx
