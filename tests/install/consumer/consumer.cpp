// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <perseid/perseid.hpp>
#include <vector>

int main() try {
  const int64_t batch = 2, length = 128, heads = 8, dim = 64;
  const auto context = perseid::Context::cpu();
  const perseid::Attention attention(context, {.dtype = perseid::f32,
                                               .batch = batch,
                                               .heads = heads,
                                               .q_len = length,
                                               .kv_len = length,
                                               .head_dim = dim,
                                               .mask = perseid::causal_bottom_right()});
  std::vector<float> q(batch * length * heads * dim, 0.5f), k = q, v = q, o = q;
  const auto view = [&](auto& x) { return perseid::Tensor(x.data(), {batch, length, heads, dim}); };
  perseid::Workspace workspace;
  attention.forward(nullptr, {.query = view(q), .key = view(k), .value = view(v), .out = view(o)},
                    workspace);
  std::printf("%s\nout[0] = %g\n", attention.explain().c_str(), static_cast<double>(o[0]));
  return o[0] > 0.49f && o[0] < 0.51f ? 0 : 1;  // an average of values that are all 0.5
} catch (const perseid::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
