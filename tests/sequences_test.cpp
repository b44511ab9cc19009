// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention over lists of sequences (sequences.hpp): each sequence gets, bit for bit, what a plan
// of its own gives.
#include <gtest/gtest.h>

#include <array>

#include "perseid/perseid.hpp"

namespace perseid {
namespace {

constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 24, kValueDim = 16;

std::vector<float> numbers(int64_t count, uint32_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) * 0x1p-23f - 1;
  }
  return values;
}

// Tensors [rows, heads, dim] of every sequence, each in memory of its own; where `spread`, heads
// come first in memory.
struct List {
  List(std::span<const int64_t> lengths, int64_t heads, int64_t dim, uint32_t seed, bool spread) {
    for (const int64_t rows : lengths) {
      memory.push_back(numbers(rows * heads * dim, ++seed));
      tensors.push_back(spread ? Tensor(memory.back().data(), {heads, rows, dim}).transposed(0, 1)
                               : Tensor(memory.back().data(), {rows, heads, dim}));
    }
  }
  // One sequence, as a batch.
  Tensor batch(size_t i) const {
    const Tensor& t = tensors[i];
    return {t.data<float>(),
            {1, t.size(0), t.size(1), t.size(2)},
            {0, t.stride(0), t.stride(1), t.stride(2)}};
  }
  std::vector<std::vector<float>> memory;
  std::vector<Tensor> tensors;
};

void check(const std::vector<int64_t>& q_lens, const std::vector<int64_t>& kv_lens,
           const Mask& mask, bool spread) {
  const Context context = Context::cpu(2);
  AttentionOptions options{.heads = kHeads,
                           .kv_heads = kKvHeads,
                           .head_dim = kDim,
                           .value_dim = kValueDim,
                           .mask = mask,
                           .backward = true,
                           .implementation = "cpu:tiled"};
  const List query(q_lens, kHeads, kDim, 1, spread), key(kv_lens, kKvHeads, kDim, 10, spread);
  const List value(kv_lens, kKvHeads, kValueDim, 20, spread);
  const List grad_out(q_lens, kHeads, kValueDim, 30, spread);
  const List out(q_lens, kHeads, kValueDim, 40, spread);
  const List grad_query(q_lens, kHeads, kDim, 50, spread),
      grad_key(kv_lens, kKvHeads, kDim, 60, spread);
  const List grad_value(kv_lens, kKvHeads, kValueDim, 70, spread);
  std::vector<std::vector<float>> lse;
  std::vector<Tensor> lse_tensors;
  for (const int64_t length : q_lens) {
    lse.emplace_back(static_cast<size_t>(kHeads * length));
    lse_tensors.emplace_back(lse.back().data(), Dims{kHeads, length});
  }
  std::vector<std::vector<float>> grad_lse;
  std::vector<Tensor> grad_lse_tensors;
  for (const int64_t length : q_lens) {
    grad_lse.push_back(numbers(kHeads * length, static_cast<uint32_t>(80 + grad_lse.size())));
    grad_lse_tensors.emplace_back(grad_lse.back().data(), Dims{kHeads, length});
  }
  SequenceAttention attention(context, options, q_lens, kv_lens);
  attention.forward(nullptr, {.query = query.tensors,
                              .key = key.tensors,
                              .value = value.tensors,
                              .out = out.tensors,
                              .lse = lse_tensors});
  attention.backward(nullptr, {.grad_out = grad_out.tensors,
                               .grad_query = grad_query.tensors,
                               .grad_key = grad_key.tensors,
                               .grad_value = grad_value.tensors,
                               .grad_lse = grad_lse_tensors});

  const auto own = [](const List& like, size_t i) {
    return std::vector<float>(like.memory[i].size());
  };
  Workspace workspace;
  for (size_t i = 0; i < q_lens.size(); ++i) {
    options.q_len = q_lens[i];
    options.kv_len = kv_lens[i];
    const Attention one(context, options);
    std::vector<float> o = own(out, i), l(lse[i].size()), dq = own(grad_query, i),
                       dk = own(grad_key, i), dv = own(grad_value, i);
    const auto as = [&](const List& like, std::vector<float>& memory) {
      const Tensor t = like.batch(i);
      return Tensor(memory.data(), t.shape(), {t.stride(0), t.stride(1), t.stride(2), t.stride(3)});
    };
    const Tensor logs(l.data(), {1, kHeads, q_lens[i]});
    one.forward(nullptr,
                {.query = query.batch(i),
                 .key = key.batch(i),
                 .value = value.batch(i),
                 .out = as(out, o),
                 .lse = logs},
                workspace);
    one.backward(nullptr,
                 {.query = query.batch(i),
                  .key = key.batch(i),
                  .value = value.batch(i),
                  .out = as(out, o),
                  .lse = logs,
                  .grad_out = grad_out.batch(i),
                  .grad_lse = Tensor(grad_lse[i].data(), {1, kHeads, q_lens[i]}),
                  .grad_query = as(grad_query, dq),
                  .grad_key = as(grad_key, dk),
                  .grad_value = as(grad_value, dv)},
                 workspace);
    EXPECT_EQ(out.memory[i], o) << i;
    EXPECT_EQ(lse[i], l) << i;
    EXPECT_EQ(grad_query.memory[i], dq) << i;
    EXPECT_EQ(grad_key.memory[i], dk) << i;
    EXPECT_EQ(grad_value.memory[i], dv) << i;
  }
}

TEST(SequenceAttention, IsThatOfEachSequence) {
  for (const bool spread : {false, true}) {
    check({3, 0, 70, 1}, {5, 4, 90, 0}, {}, spread);
    check({33, 1, 20}, {33, 8, 20}, causal_bottom_right(), spread);
    check({0}, {0}, {}, spread);
  }
}

// Numbers of dropout in memory are read by each execution, those of seed and offset not.
TEST(SequenceAttention, DrawsTheNumbersInMemory) {
  const Context context = Context::cpu(1);
  const std::vector<int64_t> lengths = {40, 3};
  SequenceAttention attention(context,
                              {.heads = kHeads, .head_dim = kDim, .dropout = 0.5, .backward = true},
                              lengths, lengths);
  const List query(lengths, kHeads, kDim, 1, false), out(lengths, kHeads, kDim, 2, false);
  const List grad_value(lengths, kHeads, kDim, 3, false);
  uint64_t drawn[] = {0, 0};
  const auto results = [&](uint64_t seed, uint64_t offset, const uint64_t* rng) {
    attention.forward(nullptr, {.query = query.tensors,
                                .key = query.tensors,
                                .value = query.tensors,
                                .out = out.tensors,
                                .seed = seed,
                                .offset = offset,
                                .rng = rng});
    attention.backward(nullptr, {.grad_out = query.tensors, .grad_value = grad_value.tensors});
    return std::pair(out.memory, grad_value.memory);
  };
  const auto first = results(7, 5, nullptr), second = results(8, 5, nullptr);
  EXPECT_NE(first.first, second.first);
  EXPECT_NE(first.second, second.second);
  for (const uint64_t seed : {7, 8}) {
    drawn[0] = seed;
    drawn[1] = 5;
    EXPECT_EQ(results(1, 2, drawn), seed == 7 ? first : second);
  }
}

TEST(SequenceAttention, NamesListsOfWrongLengths) {
  const Context context = Context::cpu(1);
  const std::array<int64_t, 2> lengths = {2, 1};
  const std::array<int64_t, 1> fewer = {2};
  const AttentionOptions options{.head_dim = 4};
  EXPECT_THROW(SequenceAttention(context, options, lengths, fewer), Error);
  SequenceAttention attention(context, options, lengths, lengths);
  std::vector<float> x(2 * 4);
  const std::vector<Tensor> one = {{x.data(), {2, 1, 4}}};
  const std::vector<Tensor> longer = {{x.data(), {2, 1, 4}}, {x.data(), {2, 1, 4}}};
  for (const auto& list : {one, longer})
    EXPECT_THROW(
        attention.forward(nullptr, {.query = list, .key = list, .value = list, .out = list}),
        Error);
}

}  // namespace
}  // namespace perseid
