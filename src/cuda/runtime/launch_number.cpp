// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/launch_number.hpp"

#include <atomic>
#include <chrono>

namespace perseid::internal::cuda {

uint64_t launch_number() {
  static std::atomic<uint64_t> state{
      static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count())};
  uint64_t x = state.fetch_add(0x9e3779b97f4a7c15u, std::memory_order_relaxed);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x = (x ^ (x >> 31)) & ~uint64_t{1};
  return x == 0 ? 2 : x;
}

}  // namespace perseid::internal::cuda
