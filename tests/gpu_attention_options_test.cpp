// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention's options beyond one rectangle of scores, by every implementation of the GPU. Skipped
// where there is none.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>

#include "attention_option_problems.hpp"
#include "gpu_api_tools.hpp"
#include "harness/check.hpp"

namespace perseid::harness {
namespace {

class GpuAttentionOptionsTest : public testing_gpu::ContextTest {
 protected:
  void check(const std::vector<const char*>& texts,
             const std::vector<const char*>& dtypes = {"bf16"}) {
    const Context cpu = Context::cpu();
    const Checker checker(context(), context(), cpu);
    for (const Problem& problem : option_problems(texts, dtypes)) {
      const std::vector<CheckResult> results = checker.check_all(problem);
      EXPECT_FALSE(results.empty()) << to_flags(problem);
      for (const CheckResult& result : results)
        EXPECT_TRUE(result.passed) << to_flags(problem) << "\n"
                                   << result.implementation << ": " << result.complaint;
    }
  }
};

TEST_F(GpuAttentionOptionsTest, WindowAtTheBottomRightWithoutCausal) {
  check(bottom_right_windows());
}
TEST_F(GpuAttentionOptionsTest, QueryLengths) { check(query_lengths(), {"bf16", "f32"}); }
TEST_F(GpuAttentionOptionsTest, KeysFromAnywhereInACache) { check(caches(), {"bf16", "f32"}); }
TEST_F(GpuAttentionOptionsTest, OnePlanForShorterTensors) {
  check(plans_for_more(), {"bf16", "f32"});
}
TEST_F(GpuAttentionOptionsTest, BoundsOfSplits) { check(bounds_of_splits()); }

// ---- Strides of zero --------------------------------------------------------------------------

// bf16 numbers of [2, 130 or 200, 4 or 2, 64] that repeat along some dimensions, and in another
// tensor written out.
struct Repeated {
  Repeated(const Context& context, const Dims& shape, std::array<bool, 3> repeats, uint32_t seed)
      : few(context, 2 * elements(shape)), all(context, 2 * elements(shape)) {
    Shape strides(4, 0);
    strides[3] = 1;
    int64_t count = 64;
    for (size_t d = 3; d-- > 0;) {
      if (repeats[d]) continue;
      strides[d] = count;
      count *= shape.begin()[d];
    }
    std::vector<uint16_t> numbers, written_out;
    for (const float x : testing_gpu::random_floats(static_cast<size_t>(count), seed))
      numbers.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16));
    const int64_t* size = shape.begin();
    for (int64_t b = 0; b < size[0]; ++b)
      for (int64_t i = 0; i < size[1]; ++i)
        for (int64_t h = 0; h < size[2]; ++h)
          for (int64_t d = 0; d < size[3]; ++d)
            written_out.push_back(
                numbers[static_cast<size_t>(b * strides[0] + i * strides[1] + h * strides[2] + d)]);
    context.copy(few.data(), numbers.data(), 2 * numbers.size());
    context.copy(all.data(), written_out.data(), 2 * written_out.size());
    repeated = testing_gpu::on_gpu(few.data(), bf16, shape, Dims(strides));
    dense = testing_gpu::on_gpu(all.data(), bf16, shape);
  }
  static size_t elements(const Dims& shape) {
    size_t count = 1;
    for (const int64_t size : shape) count *= static_cast<size_t>(size);
    return count;
  }
  Memory few, all;
  Tensor repeated, dense;
};

TEST_F(GpuAttentionOptionsTest, TensorsThatRepeatAreReadAsIfWrittenOut) {
  const Dims queries{2, 130, 4, 64}, keys{2, 200, 2, 64}, rows{2, 4, 130};
  const Repeated query(context(), queries, {true, false, false}, 1);
  const Repeated key(context(), keys, {false, false, true}, 2);
  const Repeated value(context(), keys, {true, false, true}, 3);
  const Repeated grad_out(context(), queries, {true, true, true}, 4);
  for (const char* implementation : {"cuda:sm90", "cuda:portable", "cuda:reference"}) {
    std::vector<std::vector<uint8_t>> results[2];
    for (const bool dense : {false, true}) {
      const Attention attention(context(), {.dtype = bf16,
                                            .batch = 2,
                                            .heads = 4,
                                            .kv_heads = 2,
                                            .q_len = 130,
                                            .kv_len = 200,
                                            .head_dim = 64,
                                            .mask = causal_bottom_right(),
                                            .backward = true,
                                            .deterministic = true,
                                            .implementation = implementation});
      const auto of = [&](const Repeated& each) { return dense ? each.dense : each.repeated; };
      std::vector<Memory> memory;
      std::vector<size_t> bytes;
      const auto result = [&](const Dims& shape, DType dtype) {
        bytes.push_back(Repeated::elements(shape) * (dtype == f32 ? 4 : 2));
        memory.emplace_back(context(), bytes.back());
        return testing_gpu::on_gpu(memory.back().data(), dtype, shape);
      };
      const Tensor out = result(queries, bf16), lse = result(rows, f32);
      const Tensor grad_query = result(queries, bf16), grad_key = result(keys, bf16),
                   grad_value = result(keys, bf16);
      const Memory workspace(context(), std::max(attention.workspace_size(Direction::kForward),
                                                 attention.workspace_size(Direction::kBackward)));
      attention.forward(
          nullptr, {.query = of(query), .key = of(key), .value = of(value), .out = out, .lse = lse},
          {workspace});
      attention.backward(nullptr,
                         {.query = of(query),
                          .key = of(key),
                          .value = of(value),
                          .out = out,
                          .lse = lse,
                          .grad_out = of(grad_out),
                          .grad_query = grad_query,
                          .grad_key = grad_key,
                          .grad_value = grad_value},
                         {workspace});
      context().synchronize();
      for (size_t i = 0; i < memory.size(); ++i) {
        results[dense].emplace_back(bytes[i]);
        context().copy(results[dense].back().data(), memory[i].data(), bytes[i]);
      }
    }
    EXPECT_EQ(results[0], results[1]) << implementation;
  }
}

// ---- Lists of sequences -----------------------------------------------------------------------

// bf16 tensors [rows, 2, 64] of every sequence, one behind another, with gaps.
struct List {
  List(const Context& context, std::span<const int64_t> lengths, uint32_t seed)
      : memory(context, 2 * kElements) {
    std::vector<uint16_t> numbers;
    for (const float x : testing_gpu::random_floats(kElements, seed))
      numbers.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16));
    context.copy(memory.data(), numbers.data(), memory.size());
    const auto* next = static_cast<const uint16_t*>(memory.data());
    for (const int64_t rows : lengths) {
      tensors.emplace_back(next, bf16, Dims{rows, 2, 64}, Dims{}, context.device());
      next += rows * 128 + 8;
    }
  }
  std::vector<float> values(const Context& context) const {
    std::vector<uint16_t> numbers(kElements);
    context.copy(numbers.data(), memory.data(), memory.size());
    std::vector<float> values;
    for (const uint32_t x : numbers) values.push_back(std::bit_cast<float>(x << 16));
    return values;
  }
  static constexpr size_t kElements = 400 * 128;
  Memory memory;
  std::vector<Tensor> tensors;
};

TEST_F(GpuAttentionOptionsTest, ListsOfSequencesGiveWhatTheCpuGives) {
  const std::vector<int64_t> q_lens = {70, 0, 1, 129}, kv_lens = {90, 5, 64, 150};
  std::vector<std::vector<float>> results[2];
  const Context cpu = Context::cpu();
  for (const bool gpu : {false, true}) {
    const Context& here = gpu ? context() : cpu;
    const List query(here, q_lens, 1), key(here, kv_lens, 2), value(here, kv_lens, 3);
    const List grad_out(here, q_lens, 4), out(here, q_lens, 5), grad_query(here, q_lens, 6);
    const List grad_key(here, kv_lens, 7), grad_value(here, kv_lens, 8);
    SequenceAttention attention(here,
                                {.dtype = bf16,
                                 .heads = 2,
                                 .head_dim = 64,
                                 .mask = causal_bottom_right(),
                                 .backward = true},
                                q_lens, kv_lens);
    attention.forward(
        nullptr,
        {.query = query.tensors, .key = key.tensors, .value = value.tensors, .out = out.tensors});
    attention.backward(nullptr, {.grad_out = grad_out.tensors,
                                 .grad_query = grad_query.tensors,
                                 .grad_key = grad_key.tensors,
                                 .grad_value = grad_value.tensors});
    for (const List* each : {&out, &grad_query, &grad_key, &grad_value})
      results[gpu].push_back(each->values(here));
  }
  for (size_t i = 0; i < 4; ++i)
    for (size_t j = 0; j < List::kElements; ++j)
      ASSERT_NEAR(results[1][i][j], results[0][i][j], 0.03 + 0.03 * std::abs(results[0][i][j]))
          << i << " " << j;
}

}  // namespace
}  // namespace perseid::harness
