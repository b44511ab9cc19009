// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// src/cuda/device/ptx/cp_async.hpp on the CPU: copies happen when their group is waited for.
#pragma once

#include "emulated_gpu.hpp"

namespace perseid::internal::cuda::ptx {

inline void cp_async(uint32_t to, const void* from, int bytes, int whole = 16) {
  auto& block = *emulated_gpu::block;
  const auto size = static_cast<uintptr_t>(whole);
  if (to % size != 0 || (bytes > 0 && reinterpret_cast<uintptr_t>(from) % size != 0))
    throw std::runtime_error("cp.async of an address that is no multiple of its size");
  block.own().groups.back().push_back({&block.shared.at(to), from, bytes, whole});
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
    for (const emulated_gpu::Copy& copy : groups.front()) {
      std::memset(copy.to, 0, static_cast<size_t>(copy.whole));
      if (copy.bytes > 0) std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
    }
    groups.erase(groups.begin());
  }
}

}  // namespace perseid::internal::cuda::ptx
