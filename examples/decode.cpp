// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Generating token by token with a cache of keys and values, for sequences of different lengths.
// One plan serves every step: kv_lens says how much of the cache is filled. The last step is held
// against attention over the same keys as one prompt.
#include <cmath>
#include <cstdio>
#include <perseid/perseid.hpp>
#include <vector>

namespace {

constexpr int64_t kBatch = 3, kHeads = 8, kKvHeads = 2, kDim = 64, kCapacity = 256;
constexpr int64_t kRow = kKvHeads * kDim;  // of one token's keys, or values

float value_at(int64_t sequence, int64_t token, int64_t i, int64_t kind) {
  return std::sin(static_cast<float>(1 + sequence + 3 * token + 7 * i + 13 * kind));
}

//! [cache]
struct Cache {
  std::vector<float> keys = std::vector<float>(kBatch * kCapacity * kRow);
  std::vector<float> values = keys;
  std::vector<int32_t> lengths = std::vector<int32_t>(kBatch, 0);

  // What the projections of a new token would write.
  void append(int64_t sequence) {
    const int64_t token = lengths[static_cast<size_t>(sequence)]++;
    float* key = &keys[static_cast<size_t>((sequence * kCapacity + token) * kRow)];
    float* value = &values[static_cast<size_t>((sequence * kCapacity + token) * kRow)];
    for (int64_t i = 0; i < kRow; ++i) {
      key[i] = value_at(sequence, token, i, 1);
      value[i] = value_at(sequence, token, i, 2);
    }
  }
};
//! [cache]

}  // namespace

int main() try {
  const auto context = perseid::Context::cpu();
  Cache cache;
  const int64_t prompts[kBatch] = {5, 40, 170};
  for (int64_t b = 0; b < kBatch; ++b)
    for (int64_t t = 0; t < prompts[b]; ++t) cache.append(b);

  //! [plan]
  const perseid::Attention step(context, {.batch = kBatch,
                                          .heads = kHeads,
                                          .kv_heads = kKvHeads,
                                          .q_len = 1,
                                          .kv_len = kCapacity,
                                          .head_dim = kDim,
                                          .kv_lens = true});
  perseid::Workspace workspace;
  step.reserve(workspace);
  //! [plan]
  std::printf("implementation: %s\n", step.info().implementation);

  //! [steps]
  const perseid::Dims cache_shape = {kBatch, kCapacity, kKvHeads, kDim};
  std::vector<float> query(kBatch * kHeads * kDim), out(query.size());
  for (int64_t i = 0; i < 16; ++i) {
    for (int64_t b = 0; b < kBatch; ++b) cache.append(b);
    for (size_t j = 0; j < query.size(); ++j) query[j] = value_at(0, i, static_cast<int64_t>(j), 3);
    step.forward(nullptr,
                 {.query = {query.data(), {kBatch, 1, kHeads, kDim}},
                  .key = {cache.keys.data(), cache_shape},
                  .value = {cache.values.data(), cache_shape},
                  .kv_lens = {cache.lengths.data(), {kBatch}},
                  .out = {out.data(), {kBatch, 1, kHeads, kDim}}},
                 workspace);
  }
  //! [steps]

  // The same of each sequence alone, over as many keys as it has.
  float worst = 0;
  for (int64_t b = 0; b < kBatch; ++b) {
    const int64_t length = cache.lengths[static_cast<size_t>(b)];
    const perseid::Attention whole(
        context,
        {.heads = kHeads, .kv_heads = kKvHeads, .q_len = 1, .kv_len = length, .head_dim = kDim});
    const auto of = [&](std::vector<float>& data, const perseid::Dims& shape) {
      return perseid::Tensor(data.data(), shape).slice(0, b, b + 1);
    };
    std::vector<float> expected(kHeads * kDim);
    whole.forward(nullptr,
                  {.query = of(query, {kBatch, 1, kHeads, kDim}),
                   .key = of(cache.keys, cache_shape).slice(1, 0, length),
                   .value = of(cache.values, cache_shape).slice(1, 0, length),
                   .out = {expected.data(), {1, 1, kHeads, kDim}}},
                  workspace);
    for (size_t i = 0; i < expected.size(); ++i)
      worst = std::max(worst,
                       std::fabs(expected[i] - out[static_cast<size_t>(b) * expected.size() + i]));
  }
  std::printf("lengths %d, %d, %d; largest difference %g\n", cache.lengths[0], cache.lengths[1],
              cache.lengths[2], static_cast<double>(worst));
  return worst < 1e-5f ? 0 : 1;
} catch (const perseid::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
