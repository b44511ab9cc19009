// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Problems with NaN, infinity and large numbers at some keys, for tests of GPU kernels.
#pragma once

#include "gpu_attention_tools.hpp"
#include "hidden_rows.hpp"

namespace perseid::internal::testing_gpu {

using namespace hidden_rows;

// A problem, and the keys of each sequence that are replaced.
struct Hidden {
  const char* name;
  Case test;
  std::vector<int64_t> keys;
};

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
