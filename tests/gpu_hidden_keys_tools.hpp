// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// NaN, infinity and large numbers at some keys, and which queries see those, for tests of GPU
// kernels.
#pragma once

#include <cstring>

#include "gpu_attention_tools.hpp"

namespace perseid::internal::testing_gpu {

// The keys of every sequence whose rows of key and value are replaced. In both, all columns or one.
struct Poison {
  double value = kNaN;
  bool key = true, values = true, one_column = false;
};
// A problem, and the keys of each sequence that are replaced.
struct Hidden {
  const char* name;
  Case test;
  std::vector<int64_t> keys;
};

inline bool sees(const Fixture& fixture, int64_t batch, int64_t head, int64_t row, int64_t key) {
  const AttentionProblem& p = fixture.problem;
  const Sequence sequence = sequence_of(p, fixture.arguments, batch);
  const KeyRange range = visible_keys(p, row, sequence.q_len, sequence.kv_len);
  if (key < range.begin || key >= range.end) return false;
  const Tensor& visible = fixture.arguments.visible;
  return !p.visible || get(visible, at(visible, {batch, head, row, key})) != 0;
}
// Offsets of element 0 of a row of query, key or value, and of one number a row.
inline int64_t row_of(const AttentionProblem& p, const Tensor& tensor, int64_t begin, int64_t batch,
                      int64_t head, int64_t row) {
  return p.ragged ? at(tensor, {head, begin + row}) : at(tensor, {batch, head, row});
}
inline void replace(const AttentionProblem& p, const AttentionBackward& arguments,
                    const std::vector<int64_t>& keys, const Poison& poison) {
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    const Sequence sequence = sequence_of(p, arguments, batch);
    const int64_t rows = p.ragged ? sequence.kv_len : p.kv_len;  // that there are
    for (const int64_t key : keys) {
      if (key >= rows) continue;
      for (int64_t head = 0; head < p.kv_heads; ++head)
        for (const bool values : {false, true}) {
          if (!(values ? poison.values : poison.key)) continue;
          const Tensor& tensor = values ? arguments.value : arguments.key;
          const int64_t first = row_of(p, tensor, sequence.kv_begin, batch, head, key);
          const int64_t dim = tensor.shape[tensor.rank - 1];
          for (int64_t column = 0; column < dim; ++column)
            if (!poison.one_column || column == dim / 2 + 1)
              put(tensor, first + column * tensor.stride[tensor.rank - 1], poison.value);
        }
    }
  }
}
inline bool sees_any(const Fixture& fixture, int64_t batch, int64_t head, int64_t row,
                     const std::vector<int64_t>& keys) {
  for (const int64_t key : keys)
    if (sees(fixture, batch, head, row, key)) return true;
  return false;
}
// Whether a row of both tensors, whose first elements are at `first`, has the same bits.
inline bool same_row(const Tensor& a, const Tensor& b, int64_t first, int64_t dim) {
  const int64_t stride = a.stride[a.rank - 1];
  for (int64_t column = 0; column < dim; ++column) {
    const int64_t at = (first + column * stride) * size_of(a.dtype);
    if (std::memcmp(a.as<std::byte>() + at, b.as<std::byte>() + at,
                    static_cast<size_t>(size_of(a.dtype))) != 0)
      return false;
  }
  return true;
}
inline Case with_poison(const Hidden& hidden, const Poison& poison) {
  Case test = hidden.test;
  test.prepare = [problem = test.problem, keys = hidden.keys, poison](AttentionBackward& a) {
    replace(problem, a, keys, poison);
  };
  return test;
}
inline Hidden masked(const char* name, DType dtype, int64_t heads, int64_t q_len, int64_t kv_len,
                     int64_t dim, std::vector<int64_t> keys) {
  Case test = forward_case(dtype, 1, heads, 1, q_len, kv_len, dim, dim);
  test.layout = Layout::kBshd;
  return {name, test, std::move(keys)};
}

}  // namespace perseid::internal::testing_gpu
