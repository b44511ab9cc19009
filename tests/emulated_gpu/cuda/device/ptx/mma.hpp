// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// src/cuda/device/ptx/mma.hpp on the CPU. As on a GPU, sums are truncated to float32.
#pragma once

#include "cuda/device/element.hpp"

namespace perseid::internal::cuda::ptx {

template <DType D>
inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Operands {
    uint32_t a[4], b[2];
  };
  auto& block = *emulated_gpu::block;
  const Operands* all = block.exchange(Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const auto element = [](uint32_t pair, int i) {
    return i % 2 == 0 ? widen_low<D>(pair) : widen_high<D>(pair);
  };
  const int lane = block.thread() % 32;
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
    double sum = d[e];
    for (int k = 0; k < 16; ++k) {
      const Operands& left = all[row % 8 * 4 + k % 8 / 2];
      const Operands& right = all[column * 4 + k % 8 / 2];
      sum += double{element(left.a[row / 8 + k / 8 * 2], k)} * element(right.b[k / 8], k);
    }
    const auto rounded = static_cast<float>(sum);
    d[e] = std::fabs(rounded) > std::fabs(sum) ? std::nextafter(rounded, 0.0f) : rounded;
  }
}

}  // namespace perseid::internal::cuda::ptx
