// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// An input that tests of attention forward and backward, emulated and on a GPU, share.
#pragma once

#include "attention_cases.hpp"

namespace perseid::internal::cpu::attention_cases {

inline void scale_row(const Tensor& tensor, int64_t batch, int64_t head, int64_t row,
                      double factor) {
  for (int64_t i = 0; i < tensor.shape[3]; ++i) {
    const int64_t offset = tests::at(tensor, {batch, head, row, i});
    tests::put(tensor, offset, tests::get(tensor, offset) * factor);
  }
}

// Multiplies the keys of each head of each sequence by a power of two of their own, from 2^-12 on
// in steps of 2^4, and their queries by the inverse. Scores stay the same, unless a kernel reads
// the exponents of another head's rows; heads whose rows have the same exponents hide that.
inline void scale_heads_apart(AttentionBackward& a) {
  const int64_t heads = a.query.shape[1], kv_heads = a.key.shape[1];
  for (int64_t batch = 0; batch < a.query.shape[0]; ++batch)
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t kv_head = head / (heads / kv_heads);
      const double factor = std::exp2(4 * (batch * kv_heads + kv_head) - 12);
      for (int64_t row = 0; row < a.query.shape[2]; ++row)
        scale_row(a.query, batch, head, row, 1 / factor);
      if (head % (heads / kv_heads) != 0) continue;
      for (int64_t row = 0; row < a.key.shape[2]; ++row)
        scale_row(a.key, batch, kv_head, row, factor);
    }
}

}  // namespace perseid::internal::cpu::attention_cases
