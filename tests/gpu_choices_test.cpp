// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What GPU kernels are chosen for a problem and which problems they refuse: facts and numbers
// alone, so that no GPU is needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "attention_cases.hpp"
#include "collective/fusion.hpp"
#include "collective/shard_products.hpp"
#include "collective/sliced_product.hpp"
#include "cuda/attention/arguments.hpp"
#include "cuda/matmul/parts.hpp"
#include "cuda/portable/attention.hpp"
#include "cuda/runtime/kernel_name.hpp"
#include "cuda/sm90/attention.hpp"
#include "cuda/sm90/attention_backward.hpp"
#include "cuda/sm90/matmul.hpp"
#include "cuda/sm90/matmul_f32.hpp"
#include "cuda/sm90/matmul_f8.hpp"
#include "cuda/softmax.hpp"
#include "dispatch/implementation.hpp"

namespace perseid::internal {
namespace {

using cpu::attention_cases::make_case;
using cuda::SoftmaxKind;

AttentionProblem forward_problem(int64_t kv_len) {
  AttentionProblem problem = make_case(DType::kBF16, 1, 2, 2, 8, kv_len, 64, 64).problem;
  problem.grad_query = problem.grad_key = problem.grad_value = false;
  return problem;
}

// What is promised of reading rows once.
TEST(SoftmaxChoice, ReadsRowsOnceAsFarAsTheyFit) {
  const auto kind_of = [](const char* architecture, DType dtype, int64_t length, bool backward) {
    cuda::GpuFacts gpu;
    gpu.architecture = architecture;
    gpu.multiprocessors = 132;
    SoftmaxProblem problem{.dtype = dtype, .out_dtype = dtype, .rank = 2, .dim = 1};
    problem.shape[0] = 4;
    problem.shape[1] = length;
    return cuda::choose_softmax(SoftmaxKind::kRows, problem, backward, gpu).kind;
  };
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    for (const bool backward : {false, true}) {
      for (const int64_t length : {1, 1000, 8193, 50257, 65536, 131072, 900000, 1048576})
        EXPECT_NE(kind_of("sm_90a", dtype, length, backward), SoftmaxKind::kSplit)
            << name_of(dtype) << " " << length;
      EXPECT_EQ(kind_of("sm_90a", dtype, 16777216, backward), SoftmaxKind::kSplit);
      EXPECT_EQ(kind_of("sm_80", dtype, 8192, backward), SoftmaxKind::kRows);
      EXPECT_EQ(kind_of("sm_80", dtype, 131072, backward), SoftmaxKind::kSplit);
    }
  EXPECT_EQ(kind_of("sm_90a", DType::kBF16, 262144, false), SoftmaxKind::kShared);
  EXPECT_EQ(kind_of("sm_90a", DType::kF32, 70000, true), SoftmaxKind::kShared);
}

TEST(SectionOfRank, HasEnoughTilesOfHeadsThatArriveTogether) {
  EXPECT_EQ(cuda::section_of_rank(1, 64, 16), 4);
  EXPECT_EQ(cuda::section_of_rank(1, 64, 2), 2);
  EXPECT_EQ(cuda::section_of_rank(8, 64, 4), 4);
  EXPECT_EQ(cuda::section_of_rank(8, 64, 32), 8);
  EXPECT_EQ(cuda::section_of_rank(1, 1, 3), 3);
}

// Rows, if any, and behind them slices of whole blocks of the depth, the last one short.
// As measured on two H100: where both are short, chunks cost more than they hide.
TEST(FusionForecast, LeavesShortTransfersWhole) {
  std::shared_ptr<const dispatch::Device> device;
  ASSERT_TRUE(dispatch::assume_cuda("sm_90", {}, &device).ok());
  std::vector<std::shared_ptr<collective::Group>> groups;
  ASSERT_TRUE(collective::Group::open_threads(2, {}, &groups).ok());
  const auto is_faster = [&](int64_t m, int64_t n, int64_t k, int64_t chunks) {
    const MatmulProblem problem{DType::kBF16, DType::kBF16, 1, m, n, k};
    const auto forecast = collective::forecast_fusion(*device, *groups[0],
                                                      collective::product_seconds(*device, problem),
                                                      static_cast<double>(m * k), chunks);
    return forecast.fused() < forecast.unfused();
  };
  EXPECT_FALSE(is_faster(512, 512, 512, 2));
  EXPECT_FALSE(is_faster(1024, 1024, 1024, 6));
  EXPECT_TRUE(is_faster(2048, 2048, 2048, 4));
  EXPECT_FALSE(is_faster(2048, 2048, 2048, 16));
  EXPECT_TRUE(is_faster(8192, 256, 8192, 6));
}

TEST(SlicedProduct, CutsTheShardAlongK) {
  constexpr int64_t kBegin = 40, kRows = 60;
  for (const int64_t k : {1024, 1160, 8192})
    for (const int64_t each : {3, 7})
      for (const int64_t before : {0, 20}) {
        const collective::Shards shards{
            .dtype = DType::kBF16, .outer = 1, .inner = k, .begin = {0, kBegin, kBegin + kRows}};
        const collective::ShardChunks chunks(shards, 2, each);
        std::vector<std::byte> gathered(shards.bytes()), own(static_cast<size_t>(kRows * k * 2));
        const Tensor shard{.data = own.data(),
                           .dtype = DType::kBF16,
                           .rank = 3,
                           .shape = {1, kRows, k},
                           .stride = {kRows * k, k, 1}};
        std::vector<collective::SentPart> parts;
        collective::SlicedProduct::cut(shards, chunks, 1, kRows - before, gathered.data(), shard,
                                       &parts);
        ASSERT_EQ(std::ssize(parts), each);
        int64_t reached = 0;
        for (int64_t i = 0; i < each; ++i) {
          const collective::SentPart& part = parts[static_cast<size_t>(i)];
          const bool whole = before > 0 && i == 0;
          const int64_t row = whole ? 0 : before;
          EXPECT_EQ(part.chunk, chunks.first_of(1) + i);
          EXPECT_EQ(part.from.as<std::byte>() - own.data(), 2 * (row * k + reached));
          EXPECT_EQ(part.to.as<std::byte>() - gathered.data(), 2 * ((kBegin + row) * k + reached));
          EXPECT_EQ(part.from.shape[1], whole ? before : kRows - before);
          EXPECT_EQ(part.from.shape[2], part.to.shape[2]);
          EXPECT_GT(part.from.shape[2], 0);
          if (!whole) {
            EXPECT_EQ(reached % 64, 0);
            reached += part.from.shape[2];
          }
        }
        EXPECT_EQ(reached, k);
        EXPECT_LE(parts.back().from.shape[2], parts[1].from.shape[2]);
      }
}

TEST(AttentionKernels, RefuseWithASentence) {
  cuda::GpuFacts facts;
  facts.major = 9;
  const AttentionProblem good = forward_problem(8);
  EXPECT_EQ(cuda::refuse_attention(good, facts), "");
  const auto refused = [&](const auto& change) {
    AttentionProblem problem = good;
    change(problem);
    return !cuda::refuse_attention(problem, facts).empty();
  };
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.dtype = DType::kF64; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.head_dim = 63; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.value_dim = 520; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.scale = -1; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.kv_len = int64_t{1} << 31; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.total_q = int64_t{1} << 29; }));
  facts.major = 8;
  EXPECT_FALSE(cuda::refuse_attention(good, facts).empty());
}

// Rows of splits count in 31 bits, though there are fewer tiles.
TEST(AttentionKernels, CombineSplitsOfFewerRowsThan31BitsCount) {
  cuda::GpuFacts facts;
  facts.major = 9;
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64}) {
    AttentionProblem problem = forward_problem(1024);
    problem.dtype = dtype;
    problem.heads = 64;
    problem.kv_heads = problem.head_dim = problem.value_dim = 1;
    problem.q_len = 33;
    problem.batch = int64_t{1} << 19;
    EXPECT_EQ(cuda::refuse_portable_attention(problem, facts), "");
    problem.batch *= 2;
    EXPECT_NE(cuda::refuse_portable_attention(problem, facts).find("splits of the keys"),
              std::string::npos);
    problem.num_splits = 1;
    EXPECT_EQ(cuda::refuse_portable_attention(problem, facts), "");
    problem.num_splits = 0;
    problem.batch /= 2;
    problem.value_dim = 33;
    EXPECT_NE(cuda::refuse_portable_attention(problem, facts), "");
  }
}

// Beyond 256: forward of many queries, with lengths and masks of a range.
TEST(AttentionKernels, TakeLargeDims) {
  cuda::GpuFacts facts;
  facts.major = 9;
  AttentionProblem good = forward_problem(100);
  good.q_len = 65;
  good.causal = Causal::kBottomRight;
  good.window_left = 10;
  good.kv_lens = true;
  for (good.head_dim = 8; good.head_dim <= 512; good.head_dim += 8)
    for (good.value_dim = 8; good.value_dim <= 512; good.value_dim += 8) {
      EXPECT_EQ(cuda::refuse_attention(good, facts), "");
      const cuda::AttentionForwardConfig config = cuda::choose_attention_forward(good);
      EXPECT_TRUE(config.fits()) << "dims " << good.head_dim << " and " << good.value_dim;
      EXPECT_GE(config.value_parts * config.value_dim, good.value_dim);
      EXPECT_EQ(config.keys / config.value_pieces() % 16, 0);
    }
  good.head_dim = good.value_dim = 512;
  const auto refused = [&](const auto& change) {
    AttentionProblem problem = good;
    change(problem);
    return !cuda::refuse_attention(problem, facts).empty();
  };
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.q_len = 64; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.value_dim = 520; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.bias = true; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.visible = true; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.dropout = .1; }));
  EXPECT_FALSE(refused([](AttentionProblem& p) { p.dropout = .001; }));  // drops nothing
}

// f32: forward of many queries, any dims up to 128.
// Those of any GPU take the rows of a rank, zigzag piece by piece.
TEST(AttentionKernels, TakeTheRowsOfARank) {
  std::shared_ptr<const dispatch::Device> device;
  ASSERT_TRUE(dispatch::assume_cuda("sm_80", {}, &device).ok());
  const auto list = dispatch::attention_implementations();
  const auto portable = std::find_if(list.begin(), list.end(), [](const auto& each) {
    return std::string_view(each.name) == "cuda:portable";
  });
  ASSERT_NE(portable, list.end());
  AttentionProblem problem = make_case(DType::kF32, 1, 2, 2, 200, 400, 64, 64).problem;
  problem.rows = {.ranks = 2, .rank = 1, .zigzag = true};
  EXPECT_EQ(portable->refuse(problem, *device), "");
  std::unique_ptr<dispatch::Executable<dispatch::Attention>> attention;
  ASSERT_TRUE(portable->make(problem, *device, &attention).ok());
  EXPECT_EQ(attention->kernels().substr(0, 30), "two pieces, each by forward: t");
  problem.dropout = 0.1;
  EXPECT_EQ(portable->refuse(problem, *device), "");
  problem.rows = {.ranks = 2, .rank = 1, .begin = 100, .total = 300};
  EXPECT_EQ(portable->refuse(problem, *device), "");
  problem.dtype = DType::kBF16;
  cuda::GpuFacts facts;
  facts.major = 9;
  EXPECT_EQ(cuda::refuse_attention(problem, facts),
            "made for a rank whose rows begin at a multiple of 16, with dropout, got 100");
  problem.dtype = DType::kF32;
  problem.ragged = problem.bias = problem.visible = true;
  problem.bias_dtype = DType::kF32;
  problem.total_q = problem.total_kv = 400;
  for (const bool zigzag : {false, true}) {
    problem.rows = {.ranks = 2, .rank = 1, .zigzag = zigzag};
    EXPECT_EQ(portable->refuse(problem, *device), "");
  }
  problem.grad_bias = true;
  EXPECT_EQ(portable->refuse(problem, *device),
            "its gradient of bias is made for sequences of one length, in zigzag pieces");
  EXPECT_EQ((portable + 1)->name, std::string_view("cuda:reference"));
  EXPECT_EQ((portable + 1)->refuse(problem, *device), "");
}

TEST(AttentionKernels, TakeFloat32) {
  cuda::GpuFacts facts;
  facts.major = 9;
  AttentionProblem good = forward_problem(100);
  good.dtype = DType::kF32;
  good.q_len = 65;
  good.head_dim = 1;
  good.value_dim = 127;
  EXPECT_EQ(cuda::refuse_attention(good, facts), "");
  const auto refused = [&](const auto& change) {
    AttentionProblem problem = good;
    change(problem);
    return !cuda::refuse_attention(problem, facts).empty();
  };
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.q_len = 64; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.head_dim = 129; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.value_dim = 129; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.scale = 0; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) { p.q_lens = true; }));
  EXPECT_TRUE(refused([](AttentionProblem& p) {
    p.batch = 1 << 20;
    p.kv_len = 1 << 10;
  }));
  for (good.head_dim = 1; good.head_dim <= 128; good.head_dim += 9)
    for (good.value_dim = 1; good.value_dim <= 128; good.value_dim += 9)
      for (good.bias = false;; good.bias = true) {
        EXPECT_TRUE(cuda::choose_attention_forward(good).fits())
            << "dims " << good.head_dim << " and " << good.value_dim;
        if (good.bias) break;
      }
}

// Blocks of a cluster have neighbouring tiles of queries of a head, whose rows all see two tiles of
// keys; and a rank's kernel is that of the whole.
TEST(AttentionKernels, HaveClustersForLongCausalSequences) {
  AttentionProblem good = forward_problem(4096);
  good.q_len = 4096;
  good.head_dim = good.value_dim = 128;
  good.causal = Causal::kTopLeft;
  const auto cluster = [&](const auto& change) {
    AttentionProblem problem = good;
    change(problem);
    return cuda::choose_attention_forward(problem).cluster;
  };
  EXPECT_EQ(cluster([](AttentionProblem&) {}), 2);
  EXPECT_EQ(cluster([](AttentionProblem& p) { p.head_dim = 72; }), 2);
  EXPECT_EQ(cluster([](AttentionProblem& p) { p.q_len = 250; }), 2);
  EXPECT_EQ(cluster([](AttentionProblem& p) { p.q_len = 257; }), 1);
  EXPECT_EQ(cluster([](AttentionProblem& p) { p.q_len = 4352; }), 1);
  EXPECT_EQ(cluster([](AttentionProblem& p) { p.q_len = p.kv_len = 3840; }), 1);
  EXPECT_EQ(cluster([](AttentionProblem& p) { p.head_dim = 64; }), 1);
  EXPECT_EQ(cluster([](AttentionProblem& p) { p.head_dim = p.value_dim = 64; }), 1);
  EXPECT_EQ(cluster([](AttentionProblem& p) { p.value_dim = 136; }), 1);
  EXPECT_EQ(cluster([](AttentionProblem& p) { p.dtype = DType::kF32; }), 1);
  EXPECT_EQ(cluster([](AttentionProblem& p) { p.causal = Causal::kNone; }), 1);
  EXPECT_EQ(cluster([](AttentionProblem& p) { p.window_left = 1000; }), 1);
  EXPECT_EQ(cluster([](AttentionProblem& p) { p.visible = true; }), 1);
  EXPECT_EQ(cluster([](AttentionProblem& p) { p.dropout = 0.1; }), 1);
  EXPECT_EQ(cluster([](AttentionProblem& p) { p.kv_lens = true; }), 1);
  EXPECT_EQ(cluster([](AttentionProblem& p) { p.max_lengths = true; }), 1);
  EXPECT_EQ(cluster([](AttentionProblem& p) { p.rows.canonical = true; }), 1);
}

// What is not refused has a kernel that the GPU can hold.
TEST(AttentionKernels, FitIntoSharedMemory) {
  AttentionProblem problem = forward_problem(5000);
  int64_t wrong = 0;
  for (problem.head_dim = 8; problem.head_dim <= 256; problem.head_dim += 8)
    for (problem.value_dim = 8; problem.value_dim <= 256; problem.value_dim += 8)
      for (const int64_t q_len : {1, 100, 2000})
        for (int features = 0; features < 64; ++features)
          for (const DType bias : {DType::kNone, DType::kBF16, DType::kF32}) {
            problem.q_len = q_len;
            problem.causal = features & 1 ? Causal::kBottomRight : Causal::kNone;
            problem.window_left = features & 2 ? 1023 : -1;
            problem.window_right = features & 4 ? 100 : -1;
            problem.visible = features & 8;
            problem.dropout = features & 16 ? 0.1 : 0;
            problem.kv_lens = features & 32;
            problem.bias = bias != DType::kNone;
            problem.bias_dtype = bias;
            if (cuda::choose_attention_forward(problem).fits()) continue;
            if (++wrong <= 5)
              ADD_FAILURE() << "dims " << problem.head_dim << " and " << problem.value_dim
                            << ", q_len " << q_len << ", features " << features << ", bias "
                            << name_of(bias);
          }
  EXPECT_EQ(wrong, 0);
}

TEST(AttentionBackwardKernels, RefuseWithASentence) {
  const AttentionProblem good = make_case(DType::kBF16, 1, 2, 2, 8, 8, 64, 64).problem;
  EXPECT_EQ(cuda::refuse_attention_backward(good), "");
  const auto refused = [&](const auto& change) {
    AttentionProblem problem = good;
    change(problem);
    return !cuda::refuse_attention_backward(problem).empty();
  };
  EXPECT_TRUE(refused([](AttentionProblem& p) {
    p.batch = int64_t{1} << 20;
    p.kv_len = int64_t{1} << 15;
  }));
}

// What is not refused has a kernel that the GPU can hold.
// Blocks that share a cursor begin where others are, so that the order of sums depends on time.
TEST(AttentionBackwardKernels, ShareNoCursorWhereGradientsRepeat) {
  AttentionProblem problem = make_case(DType::kBF16, 4, 32, 8, 2048, 2048, 128, 128).problem;
  for (const bool grad_query : {true, false}) {
    problem.grad_query = grad_query;
    problem.deterministic = false;
    EXPECT_TRUE(cuda::choose_attention_backward(problem).shared_cursor);
    problem.deterministic = true;
    EXPECT_FALSE(cuda::choose_attention_backward(problem).shared_cursor);
  }
}

// An execution of one query, or one key, by a plan for more: its sums are those of the plan.
TEST(BiasTiles, FitIntoTheWorkspaceOfThePlan) {
  constexpr int64_t kQueries = 64, kKeys = 128;
  for (const bool of_queries : {true, false})
    for (const int64_t length : {0, 1, 2}) {
      AttentionProblem plan = make_case(DType::kBF16, 8, 16, 16, 512, 512, 64, 64).problem;
      plan.bias = plan.grad_bias = plan.max_lengths = true;
      const int64_t shape[] = {1, 16, of_queries ? 1 : 512, of_queries ? 512 : 1};
      std::copy(std::begin(shape), std::end(shape), plan.bias_shape);
      const cuda::BiasTiles tiles = cuda::divide_bias(plan, kQueries, kKeys);
      ASSERT_GT(tiles.num_splits, 1);
      AttentionLengths lengths{plan.q_len, plan.kv_len, 0, 0};
      (of_queries ? lengths.q_len : lengths.kv_len) = length;
      cuda::BiasTiles own = cuda::divide_bias(with_lengths(plan, lengths), kQueries, kKeys);
      cuda::keep_splits(tiles, &own);
      EXPECT_LE(cuda::bytes_of_splits(own, kQueries, kKeys),
                cuda::bytes_of_splits(tiles, kQueries, kKeys));
      EXPECT_TRUE(of_queries ? own.sums_queries : own.sums_keys);
    }
}

TEST(F32MatmulKernels, FitIntoSharedMemory) {
  constexpr int64_t kSizes[] = {1, 64, 200, 1000, 2048, 4096, 8192, 20000};
  for (const int64_t m : kSizes)
    for (const int64_t n : kSizes)
      for (const double beta : {0.0, 1.0})
        for (const Precision precision : {Precision::kDefault, Precision::kTF32}) {
          const MatmulProblem problem{
              .m = m, .n = n, .k = 512, .beta = beta, .precision = precision};
          EXPECT_EQ(cuda::refuse_split_matmul(problem), "");
          const auto config = cuda::choose_sm90_f32_matmul(problem, 132);
          EXPECT_TRUE(config.fits()) << m << " " << n << " " << config.columns;
          EXPECT_LE(config.shared_bytes(), cuda::Sm90MatmulConfig::kMostShared);
          EXPECT_EQ(config.planes, precision == Precision::kTF32 ? 1 : 2);
        }
}

// Tiles of a partly filled wave are split along k where that gains, whatever the batch, the chunks
// and the epilogue are; never those of full waves, nor where reading the operands takes as long.
TEST(MatmulKernels, SplitTilesThatFillNoWave) {
  const auto splits = [](const MatmulProblem& problem) {
    const auto config = cuda::choose_sm90_matmul(problem, 132);
    EXPECT_TRUE(config.fits());
    EXPECT_LE(config.shared_bytes(), cuda::Sm90MatmulConfig::kMostShared);
    const auto candidates = cuda::sm90_matmul_candidates(problem, 132);
    EXPECT_TRUE(!config.split_k || candidates.size() == 1);
    return config.split_k;
  };
  constexpr int64_t kSplit[][3] = {
      {640, 8192, 8192}, {2304, 2304, 8192}, {512, 512, 32768}, {16, 1024, 16384}};
  constexpr int64_t kWhole[][3] = {{2048, 2048, 2048}, {512, 8192, 8192}, {4096, 4096, 4096},
                                   {8192, 8192, 8192}, {256, 256, 256},   {1, 8192, 8192},
                                   {64, 8192, 8192},   {1000, 1000, 1000}};
  for (const auto& [m, n, k] : kSplit) {
    MatmulProblem problem{.dtype = DType::kBF16, .out_dtype = DType::kBF16, .m = m, .n = n, .k = k};
    EXPECT_TRUE(splits(problem)) << m << " " << n << " " << k;
    const auto alone = cuda::choose_sm90_matmul(problem, 132);
    const int64_t begin[] = {0, m};
    problem.batch = 5;
    problem.beta = 1;
    problem.chunks_a = {ChunkDim::kM, begin, 1};
    const auto in_batch = cuda::choose_sm90_matmul(problem, 132);
    EXPECT_TRUE(in_batch.split_k);
    EXPECT_EQ(in_batch.consumers, alone.consumers);
    EXPECT_EQ(in_batch.columns, alone.columns);
  }
  for (const auto& [m, n, k] : kWhole)
    EXPECT_FALSE(splits({.dtype = DType::kBF16, .out_dtype = DType::kBF16, .m = m, .n = n, .k = k}))
        << m << " " << n << " " << k;
}

// The split tiles leave no more than a fraction of a wave empty, and each split has steps.
TEST(MatmulKernels, SplitsFillTheLastWave) {
  constexpr cuda::Sm90MatmulTile kTile = {2, 256, 1};
  for (const int64_t m : {640, 1152, 2304, 5000})
    for (const int64_t n : {128, 1000, 8192})
      for (const int64_t k : {64, 1000, 8192, 100000}) {
        const auto [split, time] =
            cuda::choose_split_k({.m = m, .n = n, .k = k, .multiprocessors = 132}, kTile);
        const auto whole = static_cast<double>(ceil_div(ceil_div(m, 128) * ceil_div(n, 256), 132)) *
                           128 * 256 * static_cast<double>(k);
        EXPECT_LE(time, whole);
        EXPECT_LE(split.splits * 4, max<int64_t>(4, ceil_div(k, 64)));
        if (split.splits == 1) continue;
        EXPECT_TRUE(split.m == m || split.n == n);
        EXPECT_TRUE(split.m < m || split.n < n);
        EXPECT_EQ(split.m == m ? 0 : split.m % 128, 0);
        EXPECT_EQ(split.n == n ? 0 : split.n % 256, 0);
      }
}

TEST(F8MatmulKernels, FitIntoSharedMemory) {
  constexpr int64_t kSizes[] = {1, 64, 200, 1000, 2048, 4096, 8192, 20000};
  constexpr DType kOuts[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3};
  constexpr Scaling kScalings[] = {Scaling::kNone, Scaling::kRow, Scaling::kBlock};
  for (const int64_t m : kSizes)
    for (const int64_t n : kSizes)
      for (const double beta : {0.0, 1.0})
        for (const DType out : kOuts)
          for (const Scaling scaling : kScalings)
            for (const Accumulation sums : {Accumulation::kPromoted, Accumulation::kFast}) {
              const MatmulProblem problem{.dtype = DType::kF8E4M3,
                                          .out_dtype = out,
                                          .m = m,
                                          .n = n,
                                          .k = 512,
                                          .beta = beta,
                                          .scaling = scaling,
                                          .accumulation = sums};
              EXPECT_EQ(cuda::refuse_sm90_f8_matmul(problem), "");
              const auto config = cuda::choose_sm90_f8_matmul(problem, 132);
              EXPECT_TRUE(config.fits()) << m << " " << n << " " << config.columns;
              EXPECT_LE(config.shared_bytes(), cuda::Sm90MatmulConfig::kMostShared);
            }
}

TEST(F32MatmulKernels, LeaveFewRowsToMultiplyAdd) {
  const auto avoided = [](int64_t m, int64_t n, int64_t k) {
    return !cuda::avoid_split_matmul({.m = m, .n = n, .k = k}).empty();
  };
  EXPECT_TRUE(avoided(1, 8192, 8192));
  EXPECT_TRUE(avoided(8192, 64, 8192));
  EXPECT_TRUE(avoided(256, 256, 256));
  EXPECT_FALSE(avoided(128, 8192, 8192));
  EXPECT_FALSE(avoided(512, 512, 512));
  EXPECT_FALSE(avoided(int64_t{1} << 30, int64_t{1} << 30, int64_t{1} << 29));
}

// As measured on an H100: pairs of blocks in long runs; of 4096^3 six waves of 192 columns with
// block scales, eight of 128 without.
TEST(F32AndF8MatmulKernels, ChooseTheFastest) {
  for (const Precision precision : {Precision::kDefault, Precision::kTF32}) {
    MatmulProblem problem{.m = 8192, .n = 8192, .k = 8192, .precision = precision};
    EXPECT_EQ(cuda::choose_sm90_f32_matmul(problem, 132).cluster, 2);
    problem.m = problem.n = 1024;
    EXPECT_EQ(cuda::choose_sm90_f32_matmul(problem, 132).cluster, 1);
  }
  MatmulProblem problem{.dtype = DType::kF8E4M3,
                        .out_dtype = DType::kBF16,
                        .m = 4096,
                        .n = 4096,
                        .k = 4096,
                        .scaling = Scaling::kBlock};
  EXPECT_EQ(cuda::choose_sm90_f8_matmul(problem, 132).columns, 192);
  problem.scaling = Scaling::kTensor;
  EXPECT_EQ(cuda::choose_sm90_f8_matmul(problem, 132).columns, 128);
}

TEST(F32AndF8MatmulKernels, RefuseWithASentence) {
  const auto refused = [](const auto& change) {
    MatmulProblem problem{.m = 8, .n = 8, .k = 8};
    change(problem);
    const bool f32 = !cuda::refuse_split_matmul(problem).empty();
    problem.dtype = DType::kF8E4M3;
    EXPECT_EQ(!cuda::refuse_sm90_f8_matmul(problem).empty(), f32);
    return f32;
  };
  EXPECT_FALSE(refused([](MatmulProblem&) {}));
  EXPECT_TRUE(refused([](MatmulProblem& p) { p.k = 0; }));
  EXPECT_TRUE(refused([](MatmulProblem& p) { p.alpha = 0; }));
  EXPECT_TRUE(refused([](MatmulProblem& p) { p.m = int64_t{1} << 31; }));
  EXPECT_TRUE(refused([](MatmulProblem& p) { p.n = p.m = int64_t{1} << 28; }));
}

// Parts of random tables from any pivot on: each line once, not before its chunk was waited for and
// as soon as it fills a part; each chunk is waited for once; chunks of c are completed once, not
// before all their lines are computed.
TEST(ProductParts, TakeWhatIsHere) {
  std::mt19937 random(1);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  const auto table = [&](int64_t size) {
    std::vector<int64_t> begin = {0};
    while (begin.back() < size) begin.push_back(std::min(size, begin.back() + draw(1, 40)));
    return begin;
  };
  for (int turn = 0; turn < 3000; ++turn) {
    const int64_t size = draw(1, 300), lines = draw(1, 70);
    const std::vector<int64_t> begin = table(size), of_c = table(size);
    const auto count = static_cast<int64_t>(begin.size()) - 1;
    const ChunkTable<int64_t> chunks{begin.data(), count, draw(0, count - 1)};
    const ChunkTable<int64_t> chunks_c{of_c.data(), static_cast<int64_t>(of_c.size()) - 1};
    const auto parts = cuda::product_parts(chunks, size, lines);
    const auto completed = cuda::completed_chunks(parts, chunks_c);
    ASSERT_EQ(completed.size(), parts.size());
    std::vector<int> here(begin.size()), computed(static_cast<size_t>(size)), left(of_c.size());
    for (size_t part = 0; part < parts.size(); ++part) {
      const auto& [first, last, arrive] = parts[part];
      for (int32_t chunk = arrive.first; chunk <= arrive.last; ++chunk)
        ASSERT_EQ(++here[static_cast<size_t>(chunk)], 1);
      ASSERT_TRUE((last - first) % lines == 0 || last == size || last % lines == 0);
      for (int64_t line = first; line < last; ++line) {
        ASSERT_EQ(++computed[static_cast<size_t>(line)], 1);
        ASSERT_EQ(here[static_cast<size_t>(chunks.chunk_of(line))], 1);
      }
      // Before its last chunk came, there was no whole part.
      ASSERT_TRUE(arrive.empty() || begin[static_cast<size_t>(arrive.last)] - first < lines);
      for (int32_t chunk = completed[part].first; chunk <= completed[part].last; ++chunk) {
        const auto at = static_cast<size_t>(chunk);
        ASSERT_EQ(++left[at], 1);
        for (int64_t line = of_c[at]; line < of_c[at + 1]; ++line)
          ASSERT_EQ(computed[static_cast<size_t>(line)], 1);
      }
    }
    EXPECT_EQ(std::count(computed.begin(), computed.end(), 1), size);
    EXPECT_EQ(std::count(here.begin(), here.end(), 1), count);
    EXPECT_EQ(std::count(left.begin(), left.end(), 1), chunks_c.count);
  }
}

// Nine waves of 132 of ten are as full as can be with units of 86 tiles: three, of 129.
TEST(ProductParts, FillWaves) {
  EXPECT_EQ(cuda::preferred_units(86, 1, 132), 3);
  EXPECT_EQ(cuda::preferred_units(44, 1, 132), 3);
  EXPECT_EQ(cuda::preferred_units(44, 5, 132), 6);
  EXPECT_EQ(cuda::preferred_units(132, 2, 132), 2);
}

}  // namespace
}  // namespace perseid::internal
