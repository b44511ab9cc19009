// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What is chosen for products and attention over the ranks of GPUs: facts and numbers alone, so
// that no GPU is needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "attention_cases.hpp"
#include "collective/fusion.hpp"
#include "collective/shard_products.hpp"
#include "cuda/sm90/backward_order.hpp"

namespace perseid::internal {
namespace {

using cpu::attention_cases::make_case;

// By copy engines: at best stores are as fast.
TEST(PeerStores, AreThoseOfWhoeverAsks) {
  const auto stores = [](int64_t k, int32_t ranks, std::string* why) {
    // 8192 x 8192 at 700 TFLOP/s.
    const double product = 2.0 * 8192 * 8192 * static_cast<double>(k) / 700e12;
    const double bytes = 4.0 * 8192 * 8192 * (ranks - 1) / ranks;
    return collective::choose_stores({.product = product, .transfer = 0, .chunk = 0, .chunks = 2},
                                     bytes, ranks, why);
  };
  unsetenv("PERSEID_PEER_STORES");
  std::string why;
  EXPECT_FALSE(stores(14336, 2, &why));
  EXPECT_EQ(why,
            "copy engines send them: stores take 395 us of the 1.37e+03 us in which the others' "
            "shards are computed");
  EXPECT_FALSE(stores(2048, 4, &why));
  EXPECT_EQ(why,
            "copy engines send them: stores take 592 us of the 295 us in which the others' shards "
            "are computed");
  for (const char* wanted : {"1", "0", "yes"}) {
    setenv("PERSEID_PEER_STORES", wanted, 1);
    EXPECT_EQ(stores(7168, 4, &why), *wanted == '1');
    EXPECT_EQ(why.find(" as PERSEID_PEER_STORES asks: ") == std::string::npos, *wanted == 'y')
        << why;
  }
  unsetenv("PERSEID_PEER_STORES");
}

struct Summed {
  int32_t ranks;
  int64_t m, n, k;
  bool along_n = false;
  int64_t leaves = 0, batch = 1;
  int32_t multiprocessors = 132;
  bool stores = false;

  std::string kernel() const {
    collective::Shards shards{
        .outer = along_n ? batch * m : batch, .inner = along_n ? 1 : n, .begin = {}};
    for (int64_t rank = 0; rank <= ranks; ++rank)
      shards.begin.push_back(rank * (along_n ? n : m) / ranks);
    const collective::ShardChunks chunks(shards, ranks, 2);
    perseid_matmul_desc desc{};
    desc.dtype = PERSEID_BF16;
    desc.out_dtype = PERSEID_F32;
    desc.batch = batch;
    desc.m = m;
    desc.n = n;
    desc.k = k;
    const auto config = collective::ShardProducts::choose({.product = desc,
                                                           .out_dtype = DType::kBF16,
                                                           .bias = false,
                                                           .average = false,
                                                           .along_n = along_n,
                                                           .shards = shards,
                                                           .chunks = chunks,
                                                           .rank = 1,
                                                           .leaves = leaves,
                                                           .stores = stores},
                                                          multiprocessors);
    if (config == nullptr) return "none";
    EXPECT_TRUE(config->fits());
    return cuda::config_name(*config) + (config->deferred_parts ? ", deferred" : "");
  }
};

constexpr const char *kDeferred192 = "128 x 192, clusters of 1, deferred",
                     *kDeferred256 = "128 x 256, clusters of 2, deferred";

// As measured: 8192 rows are 21 waves of 192 columns, or 16 of 256; 2048 rows are 6, or 4. Deferred
// 256 columns were behind there with 8192 rows, 192 with 2048, 128 with both.
TEST(ShardProducts, TakeTheFastestWidthThatWasMeasured) {
  EXPECT_EQ((Summed{4, 8192, 8192, 7168}.kernel()), kDeferred192);
  EXPECT_EQ((Summed{2, 8192, 8192, 14336}.kernel()), kDeferred192);
  EXPECT_EQ((Summed{2, 8192, 8192, 4096}.kernel()), kDeferred192);
  EXPECT_EQ((Summed{4, 8192, 8192, 2048}.kernel()), kDeferred192);
  EXPECT_EQ((Summed{4, 2048, 8192, 7168}.kernel()), kDeferred256);
}

// Eight and 42 waves; on fewer multiprocessors and in batches as in as many rows.
TEST(ShardProducts, ChooseByWaves) {
  EXPECT_EQ((Summed{4, 4096, 8192, 7168}.kernel()), kDeferred256);
  EXPECT_EQ((Summed{4, 16384, 8192, 7168}.kernel()), kDeferred192);
  EXPECT_EQ((Summed{4, 4096, 4096, 4096}.kernel()), kDeferred256);
  Summed batch{4, 2048, 8192, 7168};
  batch.batch = 4;
  EXPECT_EQ(batch.kernel(), kDeferred192);
  Summed half{4, 2048, 8192, 7168};
  half.multiprocessors = 33;
  EXPECT_EQ(half.kernel(), kDeferred192);
}

// No mainloop hides the last tile of a block, which is one of two or three.
TEST(ShardProducts, StoreFromRegistersWhereWavesAreFew) {
  EXPECT_EQ((Summed{4, 1024, 8192, 7168}.kernel()), "128 x 256, clusters of 1");
  EXPECT_EQ((Summed{2, 2304, 2304, 8192}.kernel()), "128 x 192, clusters of 1");
  EXPECT_EQ((Summed{2, 2048, 2048, 2048}.kernel()), "128 x 256, clusters of 1");
  EXPECT_EQ((Summed{2, 512, 512, 512}.kernel()), "64 x 64, clusters of 1");
}

// A tile belongs to one rank, and so does a pair of them.
TEST(ShardProducts, DivideTheShards) {
  EXPECT_EQ((Summed{4, 8192, 9216, 7168, true}.kernel()), kDeferred192);
  EXPECT_EQ((Summed{4, 8192, 8192, 7168, true}.kernel()), kDeferred256);
  EXPECT_EQ((Summed{4, 8192, 8704, 7168, true}.kernel()), "128 x 128, clusters of 2, deferred");
  EXPECT_EQ((Summed{3, 6144, 8192, 7168}.kernel()), kDeferred192);
  EXPECT_EQ((Summed{2, 2304, 7424, 7168}.kernel()), "128 x 256, clusters of 1, deferred");
  EXPECT_EQ((Summed{2, 640, 8192, 4096}.kernel()), "64 x 128, clusters of 1");
  EXPECT_EQ((Summed{3, 8192, 8192, 7168}.kernel()), "none");
}

// In canonical order registers hold two leaves of 192 columns, not of 256; 2048 rows are 6 waves of
// 192, or 8 of 128.
TEST(ShardProducts, DeferInCanonicalOrder) {
  EXPECT_EQ((Summed{4, 8192, 8192, 7168, false, 2}.kernel()), kDeferred192);
  EXPECT_EQ((Summed{2, 8192, 8192, 4096, false, 4}.kernel()), kDeferred192);
  EXPECT_EQ((Summed{4, 2048, 8192, 7168, false, 2}.kernel()), "128 x 128, clusters of 2, deferred");
}

// Of at most four ranks.
TEST(ShardProducts, DeferNothingElse) {
  EXPECT_EQ((Summed{8, 8192, 8192, 7168}.kernel()), "128 x 256, clusters of 2");
  EXPECT_EQ((Summed{8, 8192, 8192, 1024, false, 1}.kernel()), "128 x 256, clusters of 2");
}

// Who asks for stores gets the best kernel that can: problems of gpu_matmul_reduce_test.
TEST(ShardProducts, TakeTargetsWhereStoresAreAskedFor) {
  const auto storing = [](Summed problem) {
    problem.stores = true;
    return problem.kernel();
  };
  for (const int32_t ranks : {2, 3, 4})
    for (const Summed& problem : std::vector<Summed>{{ranks, 256 * ranks, 520, 512},
                                                     {ranks, 512 * ranks, 264, 1024},
                                                     {ranks, 328, 384 * ranks, 704, true},
                                                     {ranks, 520, 256 * ranks, 640, true},
                                                     {ranks, 128 * ranks, 400, 576, false, 0, 2}})
      EXPECT_TRUE(storing(problem).ends_with(", deferred"))
          << ranks << " ranks: " << storing(problem);
  EXPECT_EQ(storing({4, 8192, 8192, 7168}), kDeferred192);
  // Half of 256 columns would go to the others at once.
  EXPECT_EQ(storing({4, 4096, 8192, 7168}), kDeferred192);
  // No tile of 128 rows divides these.
  EXPECT_EQ(storing({2, 640, 8192, 4096}), "64 x 128, clusters of 1");
  EXPECT_EQ(storing({8, 8192, 8192, 7168}), "128 x 256, clusters of 2");
}

// Attention over ranks, of dim 128, whose transfer takes about as long as between four GPUs.
TEST(HeadGroups, FollowTheTransferAndTheTiles) {
  const auto groups = [](int64_t length, int64_t heads, int64_t kv_heads, double transfer) {
    return collective::head_groups({.kv_heads = kv_heads,
                                    .heads = heads,
                                    .rows = length / 4,
                                    .keys = length,
                                    .seen = 0.5,
                                    .columns = 256},
                                   transfer);
  };
  EXPECT_EQ(groups(32768, 16, 16, 550e-6), 4);  // eight would have one wave of tiles each
  EXPECT_EQ(groups(32768, 32, 4, 158e-6), 2);
  EXPECT_EQ(groups(8192, 32, 4, 61e-6), 2);
  EXPECT_EQ(groups(131072, 32, 4, 500e-6), 2);
  EXPECT_EQ(groups(131072, 64, 64, 20e-3), 8);
  EXPECT_EQ(groups(32768, 8, 1, 100e-6), 1);   // no heads to divide
  EXPECT_EQ(groups(32768, 18, 6, 1), 2);       // three heads are not divided
  EXPECT_EQ(groups(4096, 16, 16, 100e-6), 1);  // one wave of tiles
  EXPECT_EQ(groups(32768, 16, 16, 0), 1);
}

TEST(BackwardOrder, FollowsTheStagesOfChunks) {
  AttentionProblem problem = make_case(DType::kBF16, 1, 4, 4, 8, 1000, 64, 64).problem;
  const int64_t begin[] = {0, 250, 500, 750, 1000};
  const int32_t stages[] = {1, 0, 0, 2};
  problem.chunks_kv = {ChunkDim::kKv, begin, 4};
  problem.chunk_stages = stages;
  problem.arriving_groups = 2;
  const cuda::BackwardLaunch launch{.heads = 4, .heads_per_section = 4, .multiprocessors = 2};
  // All tiles take equally long, and some of 1 and 5 have to wait.
  std::vector<int32_t> wanted;
  const auto add = [&](std::initializer_list<int32_t> tiles, int32_t first, int32_t end) {
    for (const int32_t tile : tiles)
      for (int32_t head = first; head < end; ++head) wanted.push_back(tile * 4 + head);
  };
  for (const int32_t head : {0, 2}) {  // heads that arrive together
    add({2}, head, head + 2);
    add({0, 1, 5, 6, 7}, head, head + 2);
  }
  add({3, 4}, 0, 4);
  EXPECT_EQ(cuda::backward_order(problem, launch), wanted);
  problem.chunks_kv = {ChunkDim::kKv, begin, 0};
  problem.arriving_groups = 1;
  wanted.clear();
  add({0, 1, 2, 3, 4, 5, 6, 7}, 0, 4);
  EXPECT_EQ(cuda::backward_order(problem, launch), wanted);
}

// Of zigzag ranks of four, bf16, dim 128, causal: against an order that has every other tile of the
// own keys first, and the others last. Of all ranks the slowest counts.
TEST(BackwardOrder, FillsTheMultiprocessors) {
  struct Case {
    int64_t length, heads;
    int32_t kv_heads;
    int64_t groups;
    double arrival;  // of the keys of a rank and a group
  };
  for (const Case& of : {Case{8192, 32, 4, 2, 9e-6}, {32768, 8, 1, 1, 15e-6}}) {
    double slowest = 0, slowest_before = 0;
    for (int32_t rank = 0; rank < 4; ++rank) {
      SCOPED_TRACE(testing::Message() << of.length << " positions, rank " << rank);
      const int64_t rows = of.length / 4, piece = rows / 2;
      AttentionProblem problem =
          make_case(DType::kBF16, 1, of.heads, of.kv_heads, rows, of.length, 128, 128).problem;
      problem.causal = Causal::kBottomRight;
      problem.rows.ranks = 4;
      problem.rows.rank = rank;
      problem.rows.zigzag = true;
      int64_t begin[9];
      int32_t stages[8];
      for (int32_t i = 0; i <= 8; ++i) begin[i] = i * piece;
      for (int32_t i = 0; i < 8; ++i) stages[i] = ((i < 4 ? i : 7 - i) - rank + 4) % 4;
      problem.chunks_kv = {ChunkDim::kKv, begin, 8};
      problem.chunk_stages = stages;
      problem.arriving_groups = of.groups;
      problem.chunk_traffic = {28e-6, of.arrival, 2 * of.arrival};
      const cuda::BackwardLaunch launch{
          .heads = of.kv_heads, .heads_per_section = of.kv_heads, .cluster_size = 2};
      const std::vector<int32_t> order = cuda::backward_order(problem, launch);
      const auto tiles = static_cast<int32_t>(of.length / 128);
      std::vector<int32_t> numbers = order;
      std::sort(numbers.begin(), numbers.end());
      for (int32_t i = 0; i < tiles * of.kv_heads; ++i)
        ASSERT_EQ(numbers[static_cast<size_t>(i)], i);
      // Of the own keys those of the later piece are seen by the fewest queries.
      EXPECT_EQ(order.front() / of.kv_heads * 128, rank * piece);
      EXPECT_EQ(order.back() / of.kv_heads * 128, (8 - rank) * piece - 128);
      std::vector<int32_t> before, last;
      for (int32_t stage = 0; stage < 4; ++stage)
        for (int32_t tile = 0, seen = 0; tile < tiles; ++tile) {
          if (stages[tile * 128 / piece] != stage) continue;
          for (int32_t head = 0; head < of.kv_heads; ++head)
            (stage == 0 && seen % 2 == 1 ? last : before).push_back(tile * of.kv_heads + head);
          ++seen;
        }
      before.insert(before.end(), last.begin(), last.end());
      slowest = std::max(slowest, cuda::backward_seconds(problem, launch, order));
      slowest_before = std::max(slowest_before, cuda::backward_seconds(problem, launch, before));
    }
    EXPECT_LT(slowest, 0.92 * slowest_before) << of.length;
  }
}

// Backward of the same; the transfer is that of keys and of gradients.
TEST(BackwardStreams, WhereTransfersTakeLong) {
  const auto streams = [](int64_t length, int64_t heads, int64_t kv_heads, double transfer) {
    return collective::backward_streams({.kv_heads = kv_heads,
                                         .heads = heads,
                                         .rows = length / 4,
                                         .keys = length,
                                         .seen = 0.5,
                                         .columns = 256},
                                        transfer, 132);
  };
  EXPECT_TRUE(streams(8192, 32, 4, 154e-6));
  EXPECT_TRUE(streams(16384, 32, 4, 252e-6));
  EXPECT_TRUE(streams(32768, 8, 1, 154e-6));
  EXPECT_FALSE(streams(65536, 8, 1, 252e-6));
}

}  // namespace
}  // namespace perseid::internal
