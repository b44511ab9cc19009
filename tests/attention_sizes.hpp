// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention over more than 2^32 scores, most of them hidden by a window, in both directions: on any
// context, by any implementation.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "perseid/perseid.hpp"

namespace perseid::attention_sizes {

// Queries and keys of the last tiles too; the counters of dropout have their own sizes.
inline AttentionOptions many_scores(DType dtype, double dropout) {
  AttentionOptions options{.dtype = dtype,
                           .heads = 2,
                           .kv_heads = 1,
                           .q_len = 70000,
                           .kv_len = 70001,
                           .head_dim = 8,
                           .mask = window_bottom_right(5, 3),
                           .dropout = dropout,
                           .backward = true};
  return options;
}

// A tensor of f32 or bf16 in memory of the context.
class Placed {
 public:
  Placed(const Context& context, DType dtype, const Dims& shape, uint32_t seed)
      : context_(context),
        count_(count_of(shape)),
        dtype_(dtype),
        memory_(context, count_ * bytes()) {
    std::vector<std::byte> host(count_ * bytes(), std::byte{0xff});
    std::mt19937 random(seed);
    for (size_t i = 0; seed != 0 && i < count_; ++i) {
      const float value = static_cast<float>(random() >> 8) * 0x1p-23f - 1;
      const uint32_t word = std::bit_cast<uint32_t>(value) >> (dtype == bf16 ? 16 : 0);
      std::memcpy(host.data() + i * bytes(), &word, bytes());
    }
    context.copy(memory_.data(), host.data(), host.size());
    tensor = Tensor(memory_.data(), dtype, shape, {}, context.device());
  }
  std::vector<float> values() const {
    std::vector<std::byte> host(count_ * bytes());
    context_.copy(host.data(), memory_.data(), host.size());
    std::vector<float> values(count_);
    for (size_t i = 0; i < count_; ++i) {
      uint32_t word = 0;
      std::memcpy(&word, host.data() + i * bytes(), bytes());
      values[i] = std::bit_cast<float>(word << (dtype_ == bf16 ? 16 : 0));
    }
    return values;
  }
  Tensor tensor;

 private:
  static size_t count_of(const Dims& shape) {
    size_t count = 1;
    for (const int64_t size : shape) count *= static_cast<size_t>(size);
    return count;
  }
  size_t bytes() const { return dtype_ == bf16 ? 2 : 4; }
  const Context& context_;
  size_t count_;
  DType dtype_;
  Memory memory_;
};

// Memory of the context for executions of a plan.
class PlacedWorkspace {
 public:
  PlacedWorkspace(const Context& context, const Attention& attention, bool backward)
      : memory_(context, std::max<size_t>(
                             {attention.workspace_size(Direction::kForward),
                              backward ? attention.workspace_size(Direction::kBackward) : 0, 1})) {}
  std::span<std::byte> bytes() const { return memory_; }

 private:
  Memory memory_;
};

struct Result {
  const char* name;
  std::vector<float> values;
};

// By an implementation, of the same inputs on every context.
inline std::vector<Result> results_of(const Context& context, AttentionOptions options,
                                      const char* implementation) {
  options.implementation = implementation;
  const Attention attention(context, options);
  const Dims queries{1, options.q_len, options.heads, options.head_dim};
  const Dims keys{1, options.kv_len, options.kv_heads, options.head_dim};
  const Placed query(context, options.dtype, queries, 1), key(context, options.dtype, keys, 2);
  const Placed value(context, options.dtype, keys, 3), grad(context, options.dtype, queries, 4);
  const Placed out(context, options.dtype, queries, 0);
  const Placed lse(context, f32, {1, options.heads, options.q_len}, 0);
  const Placed grad_query(context, options.dtype, queries, 0);
  const Placed grad_key(context, options.dtype, keys, 0);
  const Placed grad_value(context, options.dtype, keys, 0);
  const PlacedWorkspace workspace(context, attention, true);
  attention.forward(nullptr,
                    {.query = query.tensor,
                     .key = key.tensor,
                     .value = value.tensor,
                     .out = out.tensor,
                     .lse = lse.tensor,
                     .seed = 9},
                    workspace.bytes());
  attention.backward(nullptr,
                     {.query = query.tensor,
                      .key = key.tensor,
                      .value = value.tensor,
                      .out = out.tensor,
                      .lse = lse.tensor,
                      .grad_out = grad.tensor,
                      .grad_query = grad_query.tensor,
                      .grad_key = grad_key.tensor,
                      .grad_value = grad_value.tensor,
                      .seed = 9},
                     workspace.bytes());
  context.synchronize();
  return {{"out", out.values()},
          {"lse", lse.values()},
          {"grad_query", grad_query.values()},
          {"grad_key", grad_key.values()},
          {"grad_value", grad_value.values()}};
}

inline void expect_alike(const std::vector<Result>& got, const std::vector<Result>& want,
                         double tolerance) {
  for (size_t r = 0; r < want.size(); ++r) {
    size_t wrong = 0, first = 0;
    for (size_t i = 0; i < want[r].values.size(); ++i) {
      const double expected = want[r].values[i], error = std::abs(got[r].values[i] - expected);
      if (error <= tolerance * (1 + std::abs(expected))) continue;
      if (wrong++ == 0) first = i;
    }
    EXPECT_EQ(wrong, 0u) << want[r].name << ", first at " << first << ": " << got[r].values[first]
                         << " instead of " << want[r].values[first];
  }
}

}  // namespace perseid::attention_sizes
