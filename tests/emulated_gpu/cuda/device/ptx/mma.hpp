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

// Sums in float64, of A of 16 x 2 kCount and B of 2 kCount x 8.
template <int kCount>
inline void mma_f64(double (&d)[4], const double (&a)[kCount], const double (&b)[kCount / 2]) {
  auto& block = *emulated_gpu::block;
  double right[emulated_gpu::kWarp][kCount / 2], left[emulated_gpu::kWarp][kCount];
  for (int i = 0; i < kCount; ++i) {
    const double* all = block.exchange(a[i]);
    for (int lane = 0; lane < emulated_gpu::kWarp; ++lane) left[lane][i] = all[lane];
  }
  for (int i = 0; i < kCount / 2; ++i) {
    const double* all = block.exchange(b[i]);
    for (int lane = 0; lane < emulated_gpu::kWarp; ++lane) right[lane][i] = all[lane];
  }
  const int lane = block.thread() % 32;
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4, column = lane % 4 * 2 + e % 2;
    for (int k = 0; k < 2 * kCount; ++k)
      d[e] = std::fma(left[row * 4 + k % 4][k / 4 * 2 + e / 2], right[column * 4 + k % 4][k / 4],
                      d[e]);
  }
}

}  // namespace perseid::internal::cuda::ptx
