// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What is chosen for products over the ranks of GPUs: facts and numbers alone, so that no GPU is
// needed.
#include <gtest/gtest.h>

#include <cstdlib>

#include "collective/fusion.hpp"
#include "collective/shard_products.hpp"

namespace perseid::internal {
namespace {

// By TMA where the computing of the others' shards hides it, as the figures of rank-shards say.
TEST(PeerStores, AreHiddenByTheOthersShards) {
  const auto stores = [](int64_t k, int32_t ranks, std::string* why) {
    // 8192 x 8192 at 700 TFLOP/s.
    const double product = 2.0 * 8192 * 8192 * static_cast<double>(k) / 700e12;
    const double bytes = 4.0 * 8192 * 8192 * (ranks - 1) / ranks;
    return collective::choose_stores({.product = product, .transfer = 0, .chunk = 0, .chunks = 2},
                                     bytes, ranks, why);
  };
  std::string why;
  EXPECT_TRUE(stores(7168, 4, &why));
  EXPECT_EQ(why,
            "TMA stores them in the memory of the others: stores take 592 us of the 1.03e+03 us in "
            "which the others' shards are computed");
  EXPECT_FALSE(stores(2048, 4, &why));
  EXPECT_EQ(why,
            "copy engines send them: stores take 592 us of the 295 us in which the others' shards "
            "are computed");
  EXPECT_TRUE(stores(14336, 2, &why));
  EXPECT_FALSE(stores(4096, 2, &why));
  for (const char* wanted : {"1", "0"}) {
    setenv("PERSEID_PEER_STORES", wanted, 1);
    EXPECT_EQ(stores(7168, 4, &why), *wanted == '1');
    EXPECT_EQ(stores(2048, 4, &why), *wanted == '1');
    EXPECT_NE(why.find(" as PERSEID_PEER_STORES asks: "), std::string::npos) << why;
  }
  unsetenv("PERSEID_PEER_STORES");
}

// Tiles that divide the shards; stores under the next tile's mainloop, of at most four ranks.
TEST(ShardProducts, DeferTheEpilogueOfTilesThatDivideTheShards) {
  // Of 8192 x n x 1024.
  const auto kernel = [&](int32_t ranks, bool along_n, int64_t n, int64_t leaves) -> std::string {
    collective::Shards shards{.outer = along_n ? 8192 : 1, .inner = along_n ? 1 : n, .begin = {}};
    for (int64_t rank = 0; rank <= ranks; ++rank)
      shards.begin.push_back(rank * (along_n ? n : 8192) / ranks);
    const collective::ShardChunks chunks(shards, ranks, 2);
    perseid_matmul_desc desc{};
    desc.dtype = PERSEID_BF16;
    desc.out_dtype = PERSEID_F32;
    desc.batch = 1;
    desc.m = 8192;
    desc.n = n;
    desc.k = 1024;
    const auto config = collective::ShardProducts::choose({.product = desc,
                                                           .out_dtype = DType::kBF16,
                                                           .bias = false,
                                                           .average = false,
                                                           .along_n = along_n,
                                                           .shards = shards,
                                                           .chunks = chunks,
                                                           .rank = 1,
                                                           .leaves = leaves},
                                                          132);
    if (config == nullptr) return "none";
    return cuda::config_name(*config) + (config->deferred_parts ? ", deferred" : "");
  };
  EXPECT_EQ(kernel(4, false, 8192, 0), "128 x 192, clusters of 1, deferred");
  EXPECT_EQ(kernel(2, false, 8192, 0), "128 x 192, clusters of 1, deferred");
  EXPECT_EQ(kernel(4, true, 8192, 0), "128 x 256, clusters of 2, deferred");
  EXPECT_EQ(kernel(4, true, 9216, 0), "128 x 192, clusters of 1, deferred");
  EXPECT_EQ(kernel(8, false, 8192, 0), "128 x 256, clusters of 2");
  EXPECT_EQ(kernel(4, false, 8192, 2), "128 x 128, clusters of 2");
  EXPECT_EQ(kernel(3, false, 8192, 0), "none");
}

}  // namespace
}  // namespace perseid::internal
