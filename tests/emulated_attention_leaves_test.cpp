// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention backward of sm_90 in canonical order, on the CPU: which block of which rank adds what
// in which order, for 1, 2, 4 and 8 ranks, and the kernel that adds leaves. Expectations come from
// the definition of leaves and from what queries see.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "cuda/runtime/kernel_name.hpp"
#include "cuda/sm90/attention_backward.hpp"
#include "math/leaf_tree.hpp"
// Before kernels.
#include "emulated_gpu.hpp"
// Kernels.
#include "cuda/device/sm90/attention/backward_leaves.hpp"
#include "cuda/device/sm90/attention/backward_tiles.hpp"

namespace perseid::internal::cuda {
namespace {

constexpr int32_t kRanks[] = {1, 2, 4, 8};

constexpr AttentionBackwardConfig config_of(int dim, bool right, bool left = false,
                                            bool clusters = false) {
  AttentionBackwardConfig config;
  config.key_dim = config.value_dim = dim;
  config.queries = dim > 64 ? 64 : 128;
  config.split_keys = dim <= 128;
  config.right = right;
  config.left = left;
  config.clusters = clusters;
  config.deterministic = config.sharded = config.f32_key_gradients = config.leaves = true;
  return config;
}

AttentionProblem problem_of(int64_t dim, int64_t length, bool zigzag) {
  AttentionProblem problem;
  problem.dtype = DType::kBF16;
  problem.batch = 2;
  problem.heads = 6;
  problem.kv_heads = 2;
  problem.q_len = length;
  problem.kv_len = length + 100;
  problem.head_dim = problem.value_dim = dim;
  problem.causal = Causal::kBottomRight;
  problem.grad_query = problem.grad_key = problem.grad_value = true;
  problem.rows.zigzag = zigzag;
  problem.rows.canonical = problem.f32_key_gradients = true;
  return problem;
}

// The problem of a rank that has an equal part of the queries.
AttentionProblem of_rank(AttentionProblem problem, int32_t rank, int32_t ranks) {
  problem.q_len /= ranks;
  problem.rows.ranks = ranks;
  problem.rows.rank = rank;
  return problem;
}

int32_t leaf_of(const AttentionProblem& whole, int32_t row) {
  const int64_t piece = row * (whole.rows.zigzag ? 16 : 8) / whole.q_len;
  return static_cast<int32_t>(piece < 8 ? piece : 15 - piece);
}

// What is added to each sum, in order.
struct Sums {
  using Block = std::tuple<int32_t, int32_t, int32_t>;  // batch entry, query head, first row
  // Of gradients of keys: batch entry, key head, leaf, first key.
  std::map<std::tuple<int32_t, int32_t, int32_t, int32_t>, std::vector<Block>> keys;
  std::map<Block, std::vector<int32_t>> queries;  // of tiles, by their first keys
  bool operator==(const Sums&) const = default;
};

// The first row of each block of queries. Under a causal mask alone sums have the first tiles of
// keys and the last queries first, else the last tiles and the first queries.
template <AttentionBackwardConfig C>
Sums by_definition(const AttentionProblem& whole) {
  const auto q_len = static_cast<int32_t>(whole.q_len), group = static_cast<int32_t>(whole.group());
  Sums sums;
  for (int32_t batch = 0; batch < whole.batch; ++batch)
    for (int32_t kv_head = 0; kv_head < whole.kv_heads; ++kv_head)
      for (int32_t key = 0; key < whole.kv_len; key += C.keys()) {
        for (int32_t leaf = 0; leaf < kLeaves; ++leaf) sums.keys[{batch, kv_head, leaf, key}] = {};
        for (int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
          for (int32_t i = 0; i < q_len; i += C.queries) {
            const int32_t row = C.right && !C.left ? q_len - C.queries - i : i;
            const int64_t begin = visible_keys(whole, row, q_len, whole.kv_len).begin;
            const int64_t end = visible_keys(whole, row + C.queries - 1, q_len, whole.kv_len).end;
            if (begin >= key + C.keys() || end <= key) continue;
            sums.keys[{batch, kv_head, leaf_of(whole, row), key}].emplace_back(batch, head, row);
            std::vector<int32_t>& tiles = sums.queries[{batch, head, row}];
            tiles.insert(C.right && !C.left ? tiles.end() : tiles.begin(), key);
          }
      }
  return sums;
}

// A block may wait only for those with smaller numbers.
template <AttentionBackwardConfig C>
void add_rank(const AttentionProblem& problem, Sums* sums) {
  ASSERT_EQ(kernel_name("", choose_attention_backward(problem)), kernel_name("", C));
  ASSERT_EQ(refuse_attention_backward(problem), "");
  const int32_t log2 = backward_cluster_log2(problem, C), blocks = 1 << log2;
  const AttentionBackwardArguments a = attention_backward_arguments(problem, C, log2);
  const int32_t units = a.batch_heads * a.k_tiles * a.leaves.count;
  ASSERT_EQ(a.dq_contributors,
            static_cast<uint64_t>(a.k_tiles * a.leaves.count * blocks * C.kConsumers));
  for (int32_t number = 0; number < units; ++number) {
    const BackwardTile tile = find_backward_tile<C>(a, number);
    const auto leaf = static_cast<int32_t>(problem.rows.rank) * a.leaves.count + tile.leaf;
    ASSERT_LT(tile.leaf, a.leaves.count);
    std::vector<Sums::Block> summands;
    for (int block = 0; block < blocks; ++block) {
      emulated_gpu::Block of_cluster(block, 32, 0, blocks);
      emulated_gpu::block = &of_cluster;
      for_each_step<C>(a, tile, [&](int, const BackwardStep& step) {
        const int32_t row = whole_row<C>(a, tile, step.block * C.queries);
        summands.emplace_back(tile.batch, step.head, row);
        std::vector<int32_t>& tiles = sums->queries[{tile.batch, step.head, row}];
        ASSERT_EQ(dq_summands_before<C>(a, tile, step.block), static_cast<int32_t>(tiles.size()));
        tiles.push_back(tile.key);
      });
    }
    ASSERT_TRUE(
        sums->keys.emplace(std::tuple(tile.batch, tile.kv_head, leaf, tile.key), summands).second);
  }
}

template <AttentionBackwardConfig C>
void expect_same_sums(const AttentionProblem& whole) {
  const Sums wanted = by_definition<C>(whole);
  for (const int32_t ranks : kRanks) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks, zigzag " << whole.rows.zigzag);
    Sums sums;
    for (int32_t rank = 0; rank < ranks; ++rank) add_rank<C>(of_rank(whole, rank, ranks), &sums);
    EXPECT_EQ(sums.keys.size(), wanted.keys.size());
    EXPECT_TRUE(sums.keys == wanted.keys);
    EXPECT_TRUE(sums.queries == wanted.queries);
  }
}

TEST(AttentionLeaves, HaveTheSameSumsOnAnyNumberOfRanks) {
  for (const bool zigzag : {false, true}) {
    const int64_t length = zigzag ? 4096 : 3072;
    AttentionProblem problem = problem_of(64, length, zigzag);
    expect_same_sums<config_of(64, true)>(problem);
    problem = problem_of(128, length, zigzag);
    problem.kv_len = length - 300;  // the first queries see nothing
    expect_same_sums<config_of(128, true)>(problem);
    problem.heads = 8;
    expect_same_sums<config_of(128, true, false, true)>(problem);
    problem = problem_of(256, length, zigzag);
    problem.causal = Causal::kNone;
    expect_same_sums<config_of(256, false)>(problem);
    problem = problem_of(128, length, zigzag);
    problem.window_left = 700;
    expect_same_sums<config_of(128, true, true)>(problem);
    problem.causal = Causal::kNone;
    expect_same_sums<config_of(128, false, true)>(problem);
    problem.window_bottom_right = true;
    problem.window_right = 90;
    expect_same_sums<config_of(128, true, true)>(problem);
  }
}

// A fixup of a key sums over the same queries, to the same rows.
TEST(AttentionLeaves, HaveTheirQueriesAndBuffers) {
  constexpr AttentionBackwardConfig kConfig = config_of(128, true);
  for (const bool zigzag : {false, true})
    for (const int32_t ranks : kRanks)
      for (int32_t rank = 0; rank < ranks; ++rank) {
        const AttentionProblem whole = problem_of(128, 2048, zigzag);
        const AttentionProblem problem = of_rank(whole, rank, ranks);
        AttentionBackwardArguments a = attention_backward_arguments(problem, kConfig, 0);
        ASSERT_EQ(a.leaves.count, kLeaves / ranks);
        float key = 0, buffer = 0;
        a.grad_key_rows = {&key, {1, 2, 3, 1}};
        a.leaves.grad_key.data = &buffer;
        BackwardTile tile = find_backward_tile<kConfig>(a, 0);
        for (tile.leaf = 0; tile.leaf < a.leaves.count; ++tile.leaf) {
          const auto sum = sum_of<kConfig>(a, tile);
          for (int32_t query = 0; query < problem.q_len; query += 64)
            EXPECT_EQ(sum.has(query), leaf_of(whole, whole_row<kConfig>(a, tile, query)) ==
                                          rank * a.leaves.count + tile.leaf);
          const RowsInMemory rows = sum.grad_key(a);
          EXPECT_EQ(rows.data, tile.leaf == 0
                                   ? &key
                                   : &buffer + (tile.leaf - 1) * problem.batch * problem.kv_heads *
                                                   problem.kv_len * problem.head_dim);
          EXPECT_EQ(rows.stride[2], tile.leaf == 0 ? 3 : problem.head_dim);
        }
      }
}

TEST(AttentionLeaves, AreRefusedWherePiecesAreNoWholeBlocks) {
  EXPECT_EQ(refuse_attention_backward(problem_of(64, 2048, true)), "");
  EXPECT_EQ(refuse_attention_backward(problem_of(64, 1024, false)), "");
  EXPECT_EQ(refuse_attention_backward(of_rank(problem_of(64, 1024, true), 0, 2)),
            "its gradients in canonical order are made for queries of a rank that are a multiple "
            "of 1024, got q_len 512");
  EXPECT_NE(refuse_attention_backward(of_rank(problem_of(64, 3072, false), 0, 3)), "");
}

// Rows of two key heads in both orders, whose elements are random.
TEST(AttentionLeaves, AreAddedInPairs) {
  constexpr AttentionBackwardConfig kConfig = config_of(64, true);
  constexpr int64_t kBatch = 2, kHeads = 2, kKeys = 5, kKeyDim = 24, kValueDim = 8;
  std::mt19937_64 engine(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  const auto random = [&](int64_t count) {
    std::vector<float> elements(static_cast<size_t>(count));
    for (float& element : elements) element = uniform(engine);
    return elements;
  };
  for (const int32_t leaves : {2, 4, 8})
    for (const bool has_value : {false, true}) {
      const int64_t rows = kBatch * kHeads * kKeys;
      // Keys: rows first, with gaps; values: heads first.
      std::vector<float> key = random(2 * rows * kKeyDim), value = random(rows * kValueDim);
      const std::vector<float> keys = random((leaves - 1) * rows * kKeyDim),
                               values = random((leaves - 1) * rows * kValueDim);
      const std::vector<float> old_key = key, old_value = value;
      LeafSumArguments a;
      a.leaves.count = leaves;
      a.leaves.grad_key = {const_cast<float*>(keys.data()),
                           {kHeads * kKeys * kKeyDim, kKeys * kKeyDim, kKeyDim, 1}};
      a.leaves.grad_value = {const_cast<float*>(values.data()),
                             {kHeads * kKeys * kValueDim, kKeys * kValueDim, kValueDim, 1}};
      a.grad_key = {key.data(), {2 * kHeads * kKeys * kKeyDim, kKeyDim, 2 * kHeads * kKeyDim, 1}};
      a.grad_value = a.leaves.grad_value;
      a.grad_value.data = has_value ? value.data() : nullptr;
      a.kv_heads = kHeads;
      a.kv_len = kKeys;
      a.head_dim = kKeyDim;
      a.value_dim = kValueDim;
      a.vectors = rows * (kKeyDim + kValueDim) / 4;
      const auto blocks = static_cast<int>(ceil_div(a.vectors, int64_t{kRowThreads}));
      for (int b = 0; b < blocks; ++b) {
        emulated_gpu::Block block(b, kRowThreads, 0, blocks);
        block.run([&] { attention_backward_leaves<kConfig>(a); });
      }
      const auto tree = [&](float first, const float* others, int64_t apart) {
        std::vector<float> sum{first};
        for (int32_t leaf = 1; leaf < leaves; ++leaf) sum.push_back(others[(leaf - 1) * apart]);
        for (; sum.size() > 1; sum.resize(sum.size() / 2))
          for (size_t i = 0; i < sum.size() / 2; ++i) sum[i] = sum[2 * i] + sum[2 * i + 1];
        return sum[0];
      };
      std::vector<float> wanted_key = old_key, wanted_value = old_value;
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t entry = row / kKeys / kHeads, head = row / kKeys % kHeads, i = row % kKeys;
        for (int64_t c = 0; c < kKeyDim; ++c) {
          const auto at = static_cast<size_t>(entry * a.grad_key.stride[0] + head * kKeyDim +
                                              i * a.grad_key.stride[2] + c);
          wanted_key[at] =
              tree(old_key[at], &keys[static_cast<size_t>(row * kKeyDim + c)], rows * kKeyDim);
        }
        for (int64_t c = 0; has_value && c < kValueDim; ++c) {
          const auto at = static_cast<size_t>(row * kValueDim + c);
          wanted_value[at] = tree(old_value[at], &values[at], rows * kValueDim);
        }
      }
      EXPECT_TRUE(key == wanted_key) << leaves;
      EXPECT_TRUE(value == wanted_value) << leaves;
    }
}

}  // namespace
}  // namespace perseid::internal::cuda
