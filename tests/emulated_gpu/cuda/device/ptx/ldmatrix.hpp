// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// src/cuda/device/ptx/ldmatrix.hpp on the CPU.
#pragma once

#include "emulated_gpu.hpp"

namespace perseid::internal::cuda::ptx {

template <bool kTransposed>
inline void load_matrices(uint32_t row, uint32_t (&matrices)[4]) {
  auto& block = *emulated_gpu::block;
  const uint32_t* rows = block.exchange(row);
  const int lane = block.thread() % 32;
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint32_t pair = 0;
    for (int i = 0; i < 2; ++i) {
      const int line = kTransposed ? lane % 4 * 2 + i : lane / 4;
      const int at = kTransposed ? lane / 4 : lane % 4 * 2 + i;
      uint16_t element;
      std::memcpy(&element, &block.shared.at(rows[8 * matrix + line] + static_cast<size_t>(2 * at)),
                  2);
      pair |= static_cast<uint32_t>(element) << (16 * i);
    }
    matrices[matrix] = pair;
  }
}
inline void ldmatrix_x4(uint32_t row, uint32_t (&matrices)[4]) {
  load_matrices<false>(row, matrices);
}
inline void ldmatrix_x4_trans(uint32_t row, uint32_t (&matrices)[4]) {
  load_matrices<true>(row, matrices);
}

}  // namespace perseid::internal::cuda::ptx
