// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Plans of products in canonical order on Hopper, with the fake driver, whose kernels do nothing:
// in how many launches a rank sums its leaves.
#include "gpu_collective_tools.hpp"
#include "nccl_ranks.hpp"

namespace {

using namespace collective_tools;
using perseid::MatmulReduce;

class CanonicalProductPlans : public host_ranks::NcclRanks {
 protected:
  void SetUp() override { HostRanks::SetUp(); }
  void enter(int32_t rank) override {
    NcclRanks::enter(rank);
    unsetenv("PERSEID_SHARED_MEMORY");
  }
};

struct Product {
  DType dtype;
  int64_t batch, m, n, leaf;
  int64_t of_one, of_two;  // launches on one rank, and on each of two
};

// Of executions that succeed, without the sum over ranks.
int64_t launches_of(const Product& product, int32_t rank, int32_t ranks) {
  const Group group(
      {.rank = rank,
       .size = ranks,
       .rendezvous = "unix:" + testing::TempDir() + "products" + std::to_string(getppid()),
       .token = "a secret"});
  const Context context = Context::cuda(0);
  const int64_t k = 8 / ranks * product.leaf;
  const MatmulReduce plan(context, group,
                          {.dtype = product.dtype,
                           .batch = product.batch,
                           .m = product.m,
                           .n = product.n,
                           .k = k,
                           .fusion = perseid::Fusion::kUnfused,
                           .canonical = true});
  const OnGpu a(context, Matrix({product.batch, product.m, k}, product.dtype)),
      b(context, Matrix({product.batch, k, product.n}, product.dtype)),
      c(context, Matrix({product.batch, product.m / ranks, product.n}, product.dtype));
  const GpuWorkspace workspace(context, plan);
  const auto launches = host_ranks::fake<decltype(&fake_launches)>("fake_launches");
  int64_t count = 0;
  for (int run = 0; run < 2; ++run) {
    const int64_t before = launches();
    plan.execute({.a = a.tensor(), .b = b.tensor(), .c = c.tensor()}, workspace.bytes());
    count = launches() - before;
    context.synchronize();
  }
  return count - 1;
}

TEST_F(CanonicalProductPlans, SumLeavesInFewLaunches) {
  using namespace perseid;
  const std::vector<Product> products = {
      // f32 is split by two kernels, for each entry of the batch.
      {f32, 1, 304, 904, 136, 3, 3},
      {f32, 2, 304, 904, 133, 6, 6},
      // TMA does not store it: four launches for each leaf, and the sum of pairs.
      {f32, 1, 304, 902, 136, 33, 17},
      // Two leaves in a launch, where these are whole steps, else one.
      {f64, 2, 152, 136, 48, 5, 2},
      {f64, 2, 152, 136, 24, 9, 5},
      {bf16, 2, 96, 72, 64, 1, 1},
      // A copy of each operand that TMA does not load, for each entry.
      {bf16, 1, 96, 72, 65, 2, 2},
      {bf16, 2, 96, 72, 65, 3, 3},
      {bf16, 1, 96, 76, 72, 2, 2},
      {bf16, 1, 96, 76, 65, 3, 3},
      {bf16, 1, 96, 72, 72, 1, 1},
      {bf16, 1, 96, 74, 72, 9, 5}};
  for (const Product& product : products)
    for (const int32_t ranks : {1, 2}) {
      const int64_t wanted = ranks == 1 ? product.of_one : product.of_two;
      start(ranks, [&](int32_t rank) {
        const int64_t launches = launches_of(product, rank, ranks);
        if (launches != wanted) fprintf(stderr, "%ld launches\n", static_cast<long>(launches));
        return launches == wanted;
      });
      EXPECT_EQ(join(), std::vector<int>(static_cast<size_t>(ranks), 0))
          << wanted << " launches, type " << static_cast<int>(product.dtype) << ", n " << product.n
          << ", leaf " << product.leaf << ", ranks " << ranks;
    }
}

}  // namespace
