// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ragged batches over ranks in attention of sm_90, on the CPU: which queries a tile has, which keys
// they see, and which ranks' keys it waits for. Expectations come from the definition of
// a rank's pieces and from what queries see.
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <vector>

#include "cuda/runtime/kernel_name.hpp"
#include "cuda/sm90/attention.hpp"
#include "cuda/sm90/attention_backward.hpp"
// Before kernels.
#include "emulated_gpu.hpp"
// Kernels.
#include "cuda/device/sm90/attention/backward_tiles.hpp"
#include "cuda/device/sm90/attention/forward_scheduler.hpp"

namespace perseid::internal::cuda {
namespace {

using Lengths = std::vector<int64_t>;

// Of dim 128.
constexpr AttentionForwardConfig config_of(bool right, bool left) {
  AttentionForwardConfig config;
  config.right = right;
  config.left = left;
  config.lengths = config.async = config.sharded = config.rank_pieces = true;
  config.mask_loop = left ? MaskLoop::kPeeled : MaskLoop::kSplitAtDiagonal;
  config.overlap_softmax_pv = left;
  return config;
}

// A rank's part of a ragged batch.
struct Part {
  AttentionProblem problem;
  Lengths queries, keys;  // where sequences begin: the rank's rows, and all keys
  // As kernels have them: where pieces begin.
  Lengths cumulative_q;
  AttentionForwardArguments arguments;

  Part(const AttentionProblem& mask, const Lengths& q_lens, const Lengths& kv_lens, int32_t ranks,
       int32_t rank, bool zigzag, const AttentionForwardConfig& config)
      : problem(mask) {
    problem.dtype = DType::kBF16;
    problem.batch = std::ssize(q_lens);
    problem.heads = 4;
    problem.kv_heads = 2;
    problem.head_dim = problem.value_dim = 128;
    problem.ragged = true;
    problem.rows = {.ranks = ranks, .rank = rank, .zigzag = zigzag};
    problem.arriving_groups = 3;
    int64_t q_end = 0, kv_end = 0;
    for (size_t i = 0; i < q_lens.size(); ++i) {
      queries.push_back(q_end);
      keys.push_back(kv_end);
      q_end += q_lens[i] / ranks;
      kv_end += kv_lens[i];
      problem.q_len = max(problem.q_len, q_lens[i] / ranks);
      problem.kv_len = max(problem.kv_len, kv_lens[i]);
    }
    queries.push_back(q_end);
    keys.push_back(kv_end);
    problem.total_q = q_end;
    problem.total_kv = kv_end;
    for (size_t i = 0; i < queries.size(); ++i) {
      cumulative_q.push_back(queries[i]);
      const bool last = i + 1 == queries.size();
      if (zigzag && !last) cumulative_q.push_back((queries[i] + queries[i + 1]) / 2);
    }
    set_attention_lengths(problem, config, &arguments);
    bind(&arguments);
  }
  void bind(AttentionArguments* a) const {
    a->cumulative_q = {cumulative_q.data(), 1, true};
    a->cumulative_kv = {keys.data(), 1, true};
  }
  // Of a sequence of queries.
  int32_t key_sequence(int32_t batch) const { return problem.rows.zigzag ? batch / 2 : batch; }
  int64_t q_len(int64_t i) const {
    return queries[static_cast<size_t>(i) + 1] - queries[static_cast<size_t>(i)];
  }
  int64_t kv_len(int64_t i) const {
    return keys[static_cast<size_t>(i) + 1] - keys[static_cast<size_t>(i)];
  }
};

// Of a sequence that is cut into equal pieces, the owner of a key.
int64_t owner_of(const QueryRows& rows, int64_t key, int64_t kv_len) {
  if (!rows.zigzag) return key / (kv_len / rows.ranks);
  const int64_t piece = key / (kv_len / (2 * rows.ranks));
  return min(piece, 2 * rows.ranks - 1 - piece);
}

template <AttentionForwardConfig C>
void expect_all_queries(const AttentionProblem& mask, const Lengths& q_lens, const Lengths& kv_lens,
                        int32_t ranks, int32_t rank, bool zigzag) {
  SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << ranks << ", zigzag " << zigzag);
  const Part part(mask, q_lens, kv_lens, ranks, rank, zigzag, C);
  const AttentionProblem& problem = part.problem;
  const AttentionForwardArguments& a = part.arguments;
  std::map<std::pair<int32_t, int64_t>, int> seen;  // head and packed row: how often
  TileFinder<C> finder(a);
  bool ended = false;
  for (int32_t number = 0; number < a.tiles; ++number) {
    const AttentionTile tile = finder.find(number);
    if (tile.number < 0) ended = true;
    ASSERT_EQ(tile.number, ended ? -1 : number);
    if (ended) continue;
    const int32_t batch = part.key_sequence(tile.batch);
    const int64_t q_len = part.q_len(batch), kv_len = part.kv_len(batch);
    const int64_t begin = part.queries[static_cast<size_t>(batch)];
    ASSERT_EQ(tile.kv_head, tile.head / 2);
    ASSERT_EQ(tile.kv_begin, part.keys[static_cast<size_t>(batch)]);
    KeyRange all{kv_len, 0};
    for (int32_t q = tile.query; q < min(tile.query + C.rows(), tile.q_len); ++q) {
      const int64_t packed = tile.q_begin + q;
      ASSERT_EQ(++seen[std::pair(tile.head, packed)], 1);
      const int64_t row = packed - begin;  // of the rank's of this sequence
      ASSERT_GE(row, 0);
      ASSERT_LT(row, q_len);
      const KeyRange visible = visible_keys(problem, row, q_len, kv_len);
      const int64_t from = C.left ? clamp<int64_t>(q + tile.left, 0, tile.kv_len) : 0;
      const int64_t to = C.right ? clamp<int64_t>(q + tile.right, 0, tile.kv_len) : tile.kv_len;
      ASSERT_EQ(max(from, to) - from, visible.end - visible.begin) << row;
      if (visible.begin == visible.end) continue;
      ASSERT_EQ(from, visible.begin) << row;
      all = {min(all.begin, from), max(all.end, to)};
    }
    if (all.begin >= all.end) continue;
    EXPECT_LE(tile.first * C.keys, all.begin);
    EXPECT_GE((tile.last + 1) * C.keys, all.end);
    // The rank's first piece of keys.
    EXPECT_EQ(pivot_of<C>(a, tile), rank * kv_len / ranks / (zigzag ? 2 : 1));
    for (int32_t n = tile.first; n <= tile.last; ++n) {
      const int32_t from = n * C.keys;
      const auto to = static_cast<int32_t>(min<int64_t>(from + C.keys, kv_len));
      uint64_t owners = 0;
      for (int32_t key = from; key < to; ++key)
        owners |= uint64_t{1} << owner_of(problem.rows, key, kv_len);
      ASSERT_EQ(owners_of_keys(a, keys_of_piece(a, tile), from, to), owners) << from;
    }
  }
  EXPECT_EQ(std::ssize(seen), problem.heads * problem.total_q);
}

template <bool kRight, bool kLeft>
void expect_all_queries(const AttentionProblem& mask) {
  constexpr AttentionForwardConfig kConfig = config_of(kRight, kLeft);
  constexpr int32_t kUnit = 24;  // all pieces of 1 to 4 ranks, zigzag, have whole rows
  const Lengths q_lens = {kUnit, 0, 40 * kUnit, 0, 300 * kUnit, 3 * kUnit};
  const Lengths others = {2 * kUnit, 5 * kUnit, 40 * kUnit, 0, 170 * kUnit, 30 * kUnit};
  const Lengths equal(5, 32 * kUnit);
  for (const bool zigzag : {false, true})
    for (const int32_t ranks : {2, 3, 4})
      for (int32_t rank = 0; rank < ranks; ++rank)
        for (const auto& [queries, keys] :
             {std::pair{q_lens, q_lens}, {q_lens, others}, {equal, equal}}) {
          const Part part(mask, queries, keys, ranks, rank, zigzag, kConfig);
          AttentionProblem chunked = part.problem;
          const std::vector<int64_t> begin = {0, chunked.total_kv};
          chunked.chunks_kv.dim = ChunkDim::kKv;
          chunked.chunks_kv.begin = begin.data();
          chunked.chunks_kv.count = 1;
          EXPECT_EQ(kernel_name("", choose_attention_forward(chunked)), kernel_name("", kConfig));
          expect_all_queries<kConfig>(mask, queries, keys, ranks, rank, zigzag);
        }
}

TEST(RankPieces, HaveEachQueryOnceAndItsKeys) {
  AttentionProblem mask;
  for (const Causal causal : {Causal::kTopLeft, Causal::kBottomRight}) {
    mask.causal = causal;
    mask.window_left = -1;
    expect_all_queries<true, false>(mask);
    mask.window_left = 700;
    expect_all_queries<true, true>(mask);
  }
  mask = {};
  mask.window_left = 130;
  mask.window_right = 90;
  expect_all_queries<true, true>(mask);
  mask.window_bottom_right = true;
  expect_all_queries<true, true>(mask);
  mask = {};
  mask.window_right = 1000;
  expect_all_queries<true, false>(mask);
}

// The second piece of a sequence, which sees more keys, before its first one.
TEST(RankPieces, ComeBySequences) {
  constexpr AttentionForwardConfig kConfig = config_of(true, false);
  AttentionProblem mask;
  mask.causal = Causal::kBottomRight;
  const Lengths lengths = {2048, 0, 1024};
  const Part part(mask, lengths, lengths, 2, 0, true, kConfig);
  TileFinder<kConfig> finder(part.arguments);
  std::vector<std::tuple<int32_t, int32_t, int32_t>> begins;  // without those of other heads
  for (int32_t number = 0; number < part.arguments.tiles; ++number) {
    const AttentionTile tile = finder.find(number);
    if (tile.number >= 0 && tile.head == 0)
      begins.emplace_back(tile.batch / 2, tile.q_begin, tile.query);
  }
  using At = std::tuple<int32_t, int32_t, int32_t>;
  const std::vector<At> wanted = {At{0, 512, 384}, At{0, 512, 256},  At{0, 512, 128},
                                  At{0, 512, 0},   At{0, 0, 384},    At{0, 0, 256},
                                  At{0, 0, 128},   At{0, 0, 0},      At{2, 1280, 128},
                                  At{2, 1280, 0},  At{2, 1024, 128}, At{2, 1024, 0}};
  EXPECT_EQ(begins, wanted);
  EXPECT_EQ(part.arguments.rows_of_arrival, 1024);
}

// Of sequences without queries no keys either are visited: no row of scores may be read.
TEST(ForwardTiles, HaveNoKeysWithoutQueries) {
  constexpr AttentionForwardConfig kConfig = [] {
    AttentionForwardConfig config;
    config.lengths = config.visible = true;
    return config;
  }();
  AttentionProblem problem;
  problem.dtype = DType::kBF16;
  problem.batch = 4;
  problem.heads = problem.kv_heads = 2;
  problem.q_len = problem.kv_len = 300;
  problem.head_dim = problem.value_dim = 128;
  problem.q_lens = problem.visible = true;
  AttentionForwardArguments arguments;
  set_attention_lengths(problem, kConfig, &arguments);
  const Lengths q_lens = {0, 300, 1, 0};
  arguments.q_lens = {q_lens.data(), 1, true};
  TileFinder<kConfig> finder(arguments);
  int empty = 0;
  for (int32_t number = 0; number < arguments.tiles; ++number) {
    const AttentionTile tile = finder.find(number);
    ASSERT_EQ(tile.number, number);
    EXPECT_EQ(tile.q_len, q_lens[static_cast<size_t>(tile.batch)]);
    EXPECT_EQ(tile.kv_len, tile.q_len == 0 ? 0 : 300);
    if (tile.q_len == 0) {
      ++empty;
      EXPECT_EQ(tile.first, tile.last);
      EXPECT_FALSE((UnmaskedTiles<kConfig>::of(tile, 0, 0).contains(tile.first)));
    }
  }
  EXPECT_EQ(empty, arguments.tiles / 2);
}

// The steps of backward's tiles have each pair of a query and a key that it sees, once, and
// deterministic ones add to a block of queries in the order that they wait for.
template <AttentionBackwardConfig C>
void expect_all_pairs(const AttentionProblem& mask, int32_t ranks, int32_t rank, bool zigzag) {
  SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << ranks << ", zigzag " << zigzag);
  const Lengths lengths = {24, 0, 960, 72, 480};
  Part part(mask, lengths, lengths, ranks, rank, zigzag, config_of(true, false));
  AttentionProblem& problem = part.problem;
  problem.grad_query = problem.grad_key = problem.grad_value = true;
  problem.f32_key_gradients = true;
  problem.deterministic = C.deterministic;
  ASSERT_EQ(refuse_attention_backward(problem), "");
  AttentionBackwardConfig chosen = choose_attention_backward(problem);
  chosen.clusters = false;
  EXPECT_EQ(kernel_name("", chosen), kernel_name("", C));
  AttentionBackwardArguments a = attention_backward_arguments(problem, C, 0);
  part.bind(&a);
  AttentionBackwardProblem rows = a;  // of the kernels that have blocks of queries
  if (zigzag) rows.batch *= 2;
  // Of a head and a packed row: the keys of its sequence, by how often.
  std::map<std::pair<int32_t, int64_t>, std::vector<int>> met;
  std::map<int64_t, int32_t> added;  // tiles, to a block of queries
  for (int32_t number = 0; number < a.batch_heads * a.k_tiles; ++number) {
    BackwardTile tile{};
    emulated_gpu::Block block(0, 32, 0, 1);
    block.run([&] {
      const BackwardTile found = find_backward_tile<C>(a, number);
      if (threadIdx.x == 0) tile = found;
    });
    emulated_gpu::block = &block;
    for_each_step<C>(a, tile, [&](int, const BackwardStep& step) {
      const int32_t first = first_query<C>(tile, step.block);
      const int32_t gap = gap_of_block<C>(a, tile, step.block);
      const int32_t begin =
          tile.q_begin + (is_in_second_piece<C>(tile, step.block) ? tile.q_len : 0);
      const int64_t at = number_of_block<C>(a, tile, step.head, step.block);
      QueryBlock found;
      emulated_gpu::Block other(0, 32, 0, 1);
      other.run([&] {
        const QueryBlock of_number = find_block<C>(rows, at);
        if (threadIdx.x == 0) found = of_number;
      });
      emulated_gpu::block = &block;
      ASSERT_EQ(found.head, step.head);
      ASSERT_EQ(found.sequence.q_begin, begin);
      ASSERT_EQ(found.query, first);
      ASSERT_EQ(found.sequence.q_len, tile.q_len);
      ASSERT_EQ(found.sequence.right, tile.right + gap);
      if (C.deterministic) {
        ASSERT_EQ((dq_summands_before<C>(a, tile, step.block)), added[at]++);
      }
      const int32_t end = min(first + C.queries, tile.q_len);
      for (int32_t q = first; q < end; ++q) {
        std::vector<int>& keys = met[{step.head, begin + q}];
        keys.resize(static_cast<size_t>(tile.kv_rows));
        const int32_t from = C.left ? q + gap + tile.left : 0;
        const int32_t to = C.right ? q + gap + tile.right : tile.kv_len;
        for (int32_t key = max(tile.key, from);
             key < min(min(tile.key + C.keys(), tile.kv_len), to); ++key)
          ++keys[static_cast<size_t>(key)];
      }
    });
  }
  for (int64_t i = 0; i < std::ssize(lengths); ++i)
    for (int32_t head = 0; head < problem.heads; ++head)
      for (int64_t row = 0; row < part.q_len(i); ++row) {
        const KeyRange seen = visible_keys(problem, row, part.q_len(i), part.kv_len(i));
        std::vector<int> wanted(static_cast<size_t>(part.kv_len(i)));
        for (int64_t key = seen.begin; key < seen.end; ++key) wanted[static_cast<size_t>(key)] = 1;
        ASSERT_EQ((met[{head, part.queries[static_cast<size_t>(i)] + row}]), wanted)
            << "sequence " << i << ", row " << row;
      }
}

constexpr AttentionBackwardConfig backward_config(bool left, bool deterministic) {
  AttentionBackwardConfig config;
  config.right = config.lengths = config.sharded = config.rank_pieces = true;
  config.f32_key_gradients = true;
  config.left = left;
  config.deterministic = deterministic;
  return config;
}

TEST(RankPieces, HaveEachPairOnceInBackward) {
  AttentionProblem mask;
  for (const bool zigzag : {false, true})
    for (const int32_t ranks : {2, 3})
      for (int32_t rank = 0; rank < ranks; ++rank) {
        mask.causal = Causal::kTopLeft;
        mask.window_left = -1;
        expect_all_pairs<backward_config(false, false)>(mask, ranks, rank, zigzag);
        expect_all_pairs<backward_config(false, true)>(mask, ranks, rank, zigzag);
        mask.causal = Causal::kBottomRight;
        mask.window_left = 150;
        expect_all_pairs<backward_config(true, false)>(mask, ranks, rank, zigzag);
        expect_all_pairs<backward_config(true, true)>(mask, ranks, rank, zigzag);
      }
}

}  // namespace
}  // namespace perseid::internal::cuda
