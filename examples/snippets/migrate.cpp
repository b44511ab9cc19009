// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What docs/howto/migrate.md puts beside the calls of other libraries. Values are random; the
// results are held against each other where two calls mean the same.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <perseid/perseid.hpp>
#include <vector>

namespace {

constexpr int64_t kBatch = 2, kHeads = 4, kKvHeads = 2, kQ = 6, kKv = 9, kDim = 16;
const perseid::Context context = perseid::Context::cpu(2);
perseid::Workspace workspace;

std::vector<float> waves(int64_t count, float frequency) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(frequency * static_cast<float>(i));
  return values;
}

const std::vector<float> q = waves(kBatch * kHeads * kQ * kDim, 0.7f),
                         k = waves(kBatch * kKvHeads * kKv * kDim, 1.1f),
                         v = waves(kBatch * kKvHeads * kKv * kDim, 0.3f);
std::vector<float> o(q.size()), lse(kBatch*kHeads*kQ);

void require(bool condition, int line) {
  if (condition) return;
  std::fprintf(stderr, "line %d is wrong\n", line);
  std::exit(1);
}

void pytorch() {
  std::vector<uint8_t> allowed(kQ * kKv, 1);
  //! [pytorch]
  const perseid::Attention sdpa(context, {.layout = perseid::bhsd,
                                          .batch = kBatch,
                                          .heads = kHeads,
                                          .kv_heads = kKvHeads,  // enable_gqa
                                          .q_len = kQ,
                                          .kv_len = kKv,
                                          .head_dim = kDim,
                                          .mask = perseid::causal_top_left(),  // is_causal
                                          .visible = true});  // a boolean attn_mask
  sdpa.forward(nullptr,
               {.query = {q.data(), {kBatch, kHeads, kQ, kDim}},
                .key = {k.data(), {kBatch, kKvHeads, kKv, kDim}},
                .value = {v.data(), {kBatch, kKvHeads, kKv, kDim}},
                .visible = {allowed.data(), {1, 1, kQ, kKv}},
                .out = {o.data(), {kBatch, kHeads, kQ, kDim}}},
               workspace);
  //! [pytorch]
  require(o[0] == v[0], __LINE__);  // the first query sees the first key alone
}

void flash_dense() {
  //! [flash_dense]
  const perseid::Attention flash(context,
                                 {.batch = kBatch,
                                  .heads = kHeads,
                                  .kv_heads = kKvHeads,
                                  .q_len = kQ,
                                  .kv_len = kKv,
                                  .head_dim = kDim,
                                  .mask = perseid::causal_bottom_right() & perseid::window(4, 0)});
  flash.forward(nullptr,
                {.query = {q.data(), {kBatch, kQ, kHeads, kDim}},
                 .key = {k.data(), {kBatch, kKv, kKvHeads, kDim}},
                 .value = {v.data(), {kBatch, kKv, kKvHeads, kDim}},
                 .out = {o.data(), {kBatch, kQ, kHeads, kDim}},
                 .lse = {lse.data(), {kBatch, kHeads, kQ}}},
                workspace);
  //! [flash_dense]
}

void flash_varlen() {
  const std::vector<int32_t> cu_q = {0, 2, 12}, cu_k = {0, 9, 18};
  const int64_t total_q = 12, total_k = 18, max_q = 10, max_k = 9;
  //! [flash_varlen]
  const perseid::Attention varlen(context, {.batch = kBatch,
                                            .heads = kHeads,
                                            .kv_heads = kKvHeads,
                                            .q_len = max_q,
                                            .kv_len = max_k,
                                            .head_dim = kDim,
                                            .mask = perseid::causal_bottom_right(),
                                            .ragged = true,
                                            .total_q = total_q,
                                            .total_kv = total_k});
  varlen.forward(nullptr,
                 {.query = {q.data(), {total_q, kHeads, kDim}},
                  .key = {k.data(), {total_k, kKvHeads, kDim}},
                  .value = {v.data(), {total_k, kKvHeads, kDim}},
                  .cu_seqlens_q = {cu_q.data(), {kBatch + 1}},
                  .cu_seqlens_kv = {cu_k.data(), {kBatch + 1}},
                  .out = {o.data(), {total_q, kHeads, kDim}},
                  .lse = {lse.data(), {kHeads, total_q}}},
                 workspace);
  //! [flash_varlen]
}

void flash_kvcache() {
  const std::vector<int32_t> lengths = {3, 9};  // with the new token
  //! [flash_kvcache]
  const perseid::Attention step(context, {.batch = kBatch,
                                          .heads = kHeads,
                                          .kv_heads = kKvHeads,
                                          .q_len = 1,
                                          .kv_len = kKv,  // the cache's capacity
                                          .head_dim = kDim,
                                          .mask = perseid::causal_bottom_right(),
                                          .kv_lens = true});
  step.forward(nullptr,
               {.query = {q.data(), {kBatch, 1, kHeads, kDim}},
                .key = {k.data(), {kBatch, kKv, kKvHeads, kDim}},
                .value = {v.data(), {kBatch, kKv, kKvHeads, kDim}},
                .kv_lens = {lengths.data(), {kBatch}},
                .out = {o.data(), {kBatch, 1, kHeads, kDim}}},
               workspace);
  //! [flash_kvcache]
}

void cudnn() {
  //! [cudnn]
  const perseid::Attention sdpa(context,
                                {.layout = perseid::bhsd,
                                 .batch = kBatch,
                                 .heads = kHeads,
                                 .kv_heads = kKvHeads,
                                 .q_len = kQ,
                                 .kv_len = kKv,
                                 .head_dim = kDim,
                                 .mask = perseid::causal_bottom_right() & perseid::window(3, -1),
                                 .scale = 0.125,
                                 .dropout = 0.1,
                                 .bias = {{1, kHeads, kQ, kKv}},
                                 .backward = true});
  std::puts(sdpa.explain().c_str());  // instead of check_support() and build_plans()
  workspace.reserve(sdpa.workspace_size());
  //! [cudnn]
}

void onednn() {
  std::vector<float> x = waves(6, 1), y(6), a = waves(6, 2), b = waves(12, 3), c(8), bias(4);
  //! [onednn_softmax]
  const perseid::Softmax softmax(context, {.shape = {2, 3}, .dim = 1});
  softmax.forward(nullptr, {.input = {x.data(), {2, 3}}, .output = {y.data(), {2, 3}}}, workspace);
  //! [onednn_softmax]
  require(std::fabs(y[0] + y[1] + y[2] - 1) < 1e-6f, __LINE__);
  //! [onednn_matmul]
  const perseid::Matmul matmul(context, {.m = 2, .n = 4, .k = 3, .beta = 1, .bias = true});
  matmul.execute(nullptr,
                 {.a = {a.data(), {2, 3}},
                  .b = {b.data(), {3, 4}},
                  .bias = {bias.data(), {4}},
                  .c = {c.data(), {2, 4}}},
                 workspace);
  //! [onednn_matmul]
  require(std::fabs(c[0] - (a[0] * b[0] + a[1] * b[4] + a[2] * b[8])) < 1e-6f, __LINE__);
}

}  // namespace

int main() try {
  pytorch();
  flash_dense();
  flash_varlen();
  flash_kvcache();
  cudnn();
  onednn();
  return 0;
} catch (const perseid::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
