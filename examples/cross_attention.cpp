// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Cross-attention over a ragged batch: the queries of a decoder's sequences against the keys of an
// encoder's, each packed without padding, forward and backward in one call each. Every sequence is
// held against the same one alone.
#include <cmath>
#include <cstdio>
#include <numeric>
#include <perseid/perseid.hpp>
#include <vector>

namespace {

constexpr int64_t kHeads = 4, kDim = 32, kRow = kHeads * kDim;

std::vector<float> waves(int64_t count, float frequency) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(frequency * static_cast<float>(i + 1));
  return values;
}

float difference(const std::vector<float>& all, int64_t first_row, const std::vector<float>& part) {
  float worst = 0;
  for (size_t i = 0; i < part.size(); ++i)
    worst = std::max(worst, std::fabs(all[static_cast<size_t>(first_row * kRow) + i] - part[i]));
  return worst;
}

}  // namespace

int main() try {
  const auto context = perseid::Context::cpu();

  //! [lengths]
  const std::vector<int32_t> q_ends = {0, 7, 7, 71, 90};      // sequences of 7, 0, 64, 19 queries
  const std::vector<int32_t> kv_ends = {0, 50, 60, 61, 200};  // and of 50, 10, 1, 139 keys
  const int64_t batch = 4, total_q = q_ends.back(), total_kv = kv_ends.back();
  //! [lengths]

  //! [plan]
  const perseid::Attention attention(context, {.batch = batch,
                                               .heads = kHeads,
                                               .q_len = 64,    // the longest
                                               .kv_len = 139,  // the longest
                                               .head_dim = kDim,
                                               .ragged = true,
                                               .total_q = total_q,
                                               .total_kv = total_kv,
                                               .backward = true});
  //! [plan]

  auto query = waves(total_q * kRow, 0.7f), key = waves(total_kv * kRow, 1.3f);
  auto value = waves(total_kv * kRow, 0.9f), grad_out = waves(total_q * kRow, 1.1f);
  std::vector<float> out(query.size()), lse(static_cast<size_t>(kHeads * total_q));
  std::vector<float> grad_query(query.size()), grad_key(key.size()), grad_value(value.size());

  //! [execute]
  const auto rows = [](auto& data) {  // [total, heads, dim]
    return perseid::Tensor(data.data(), {static_cast<int64_t>(data.size()) / kRow, kHeads, kDim});
  };
  const perseid::Tensor cu_seqlens_q(q_ends.data(), {batch + 1});
  const perseid::Tensor cu_seqlens_kv(kv_ends.data(), {batch + 1});
  const perseid::Tensor logs(lse.data(), {kHeads, total_q});
  perseid::Workspace workspace;
  attention.forward(nullptr,
                    {.query = rows(query),
                     .key = rows(key),
                     .value = rows(value),
                     .cu_seqlens_q = cu_seqlens_q,
                     .cu_seqlens_kv = cu_seqlens_kv,
                     .out = rows(out),
                     .lse = logs},
                    workspace);
  attention.backward(nullptr,
                     {.query = rows(query),
                      .key = rows(key),
                      .value = rows(value),
                      .cu_seqlens_q = cu_seqlens_q,
                      .cu_seqlens_kv = cu_seqlens_kv,
                      .out = rows(out),
                      .lse = logs,
                      .grad_out = rows(grad_out),
                      .grad_query = rows(grad_query),
                      .grad_key = rows(grad_key),
                      .grad_value = rows(grad_value)},
                     workspace);
  //! [execute]

  float worst = 0;
  for (size_t b = 0; b + 1 < q_ends.size(); ++b) {
    const int64_t m = q_ends[b + 1] - q_ends[b], n = kv_ends[b + 1] - kv_ends[b];
    const auto part = [&](auto& data, const std::vector<int32_t>& ends) {  // [1, length, ...]
      const int64_t length = ends[b + 1] - ends[b];
      return perseid::Tensor(data.data() + ends[b] * kRow, {1, length, kHeads, kDim});
    };
    const perseid::Attention alone(
        context, {.heads = kHeads, .q_len = m, .kv_len = n, .head_dim = kDim, .backward = true});
    std::vector<float> o(static_cast<size_t>(m * kRow)), l(static_cast<size_t>(kHeads * m));
    std::vector<float> dk(static_cast<size_t>(n * kRow));
    const perseid::Tensor o_view(o.data(), {1, m, kHeads, kDim}), l_view(l.data(), {1, kHeads, m});
    const perseid::Tensor q = part(query, q_ends), k = part(key, kv_ends), v = part(value, kv_ends);
    alone.forward(nullptr, {.query = q, .key = k, .value = v, .out = o_view, .lse = l_view},
                  workspace);
    alone.backward(nullptr,
                   {.query = q,
                    .key = k,
                    .value = v,
                    .out = o_view,
                    .lse = l_view,
                    .grad_out = part(grad_out, q_ends),
                    .grad_key = {dk.data(), {1, n, kHeads, kDim}}},
                   workspace);
    worst = std::max({worst, difference(out, q_ends[b], o), difference(grad_key, kv_ends[b], dk)});
  }
  std::printf("%lld packed queries, %lld packed keys; largest difference %g\n",
              static_cast<long long>(total_q), static_cast<long long>(total_kv),
              static_cast<double>(worst));
  return worst < 1e-5f ? 0 : 1;
} catch (const perseid::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
