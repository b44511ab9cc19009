// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What is chosen for products over the ranks of GPUs: facts and numbers alone, so that no GPU is
// needed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "collective/fusion.hpp"
#include "collective/shard_products.hpp"

namespace perseid::internal {
namespace {

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
  // No tile of 128 rows divides these.
  EXPECT_EQ(storing({2, 640, 8192, 4096}), "64 x 128, clusters of 1");
  EXPECT_EQ(storing({8, 8192, 8192, 7168}), "128 x 256, clusters of 2");
}

}  // namespace
}  // namespace perseid::internal
