// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What overlap reports say of kernels that wait for a late rank.
#include "gpu_collective_tools.hpp"
#include "overlap_reports.hpp"

namespace {

using namespace collective_tools;
using perseid::AllGatherMatmul;
using perseid::ContextAttention;
using perseid::Fusion;
using perseid::MatmulReduce;
using perseid::Sharding;

class GpuReports : public GpuRanksTest {
 protected:
  static constexpr int32_t kTwo = 2, kLate = 1;

  void SetUp() override {
    GpuRanksTest::SetUp();
    if (are_hosts()) GTEST_SKIP() << "hosts wait for what comes from other hosts, not kernels";
  }
  // The first execution is not looked at: it may load what later ones have.
  template <class Plan, class Execute>
  static void expect_waits(const Plan& plan, const Group& group, const Context& context,
                           bool gathers, const Execute& execute) {
    for (int i = 0; i < 3; ++i) {
      group.barrier();
      if (group.rank() == kLate) std::this_thread::sleep_for(40ms);
      execute();
      context.synchronize();
      if (i == 0) continue;
      const nlohmann::json report = nlohmann::json::parse(plan.overlap_report());
      expect_consistent(plan, group, std::ssize(report["chunks"]) - 1, gathers);
      SCOPED_TRACE(report.dump(1));
      const double waited = report["waited_seconds"];
      if (group.rank() == kLate) {
        EXPECT_LT(waited, 10e-3);
        continue;
      }
      EXPECT_GT(waited, 30e-3);
      EXPECT_LT(report["compute_seconds"], 10e-3);
      // For the other rank's data alone; the own is there.
      double of_other = 0;
      for (const auto& event : report["traceEvents"])
        if (event["ph"] == "X" && event["name"] == "wait" && event["args"]["rank"] == kLate)
          of_other += event["args"]["seconds"].get<double>();
      EXPECT_GT(of_other, 30e-3);
      EXPECT_LT(waited - of_other, 1e-3);
    }
  }
};

TEST_F(GpuReports, AllGatherMatmul) {
  on_gpu_ranks(kTwo, [](const Group& group) {
    const Context context = context_of(group.rank());
    const int64_t m = 2048, n = 4096, k = 512;  // every block has tiles of both shards
    const OnGpu a(context, Matrix::random({m, k}, perseid::bf16, 1)),
        b(context, Matrix::random({k, n}, perseid::bf16, 2)),
        c(context, Matrix({kTwo * m, n}, perseid::bf16));
    for (const int64_t chunks : {1, 3}) {
      const AllGatherMatmul plan(context, group,
                                 {.dtype = perseid::bf16,
                                  .m = m,
                                  .k = k,
                                  .products = {{.n = n}},
                                  .chunks = chunks,
                                  .fusion = Fusion::kFused,
                                  .report = true});
      const GpuWorkspace workspace(context, plan);
      expect_waits(plan, group, context, true, [&] {
        plan.execute({.a = a.tensor(), .b = {b.tensor()}, .c = {c.tensor()}}, workspace.bytes());
      });
    }
  });
}

// The parts are summed after the product, whose tiles do not end where shards do, and by the own
// shard's product, of which every block has a tile.
TEST_F(GpuReports, MatmulReduce) {
  on_gpu_ranks(kTwo, [](const Group& group) {
    const Context context = context_of(group.rank());
    for (const int64_t size : {400, 4096}) {
      if (size > 400 && ranks_share_a_gpu()) continue;
      const OnGpu a(context, Matrix::random({size, size}, perseid::bf16, 1)),
          b(context, Matrix::random({size, size}, perseid::bf16, 2)),
          c(context, Matrix({size / kTwo, size}, perseid::bf16));
      const MatmulReduce plan(context, group,
                              {.dtype = perseid::bf16,
                               .m = size,
                               .n = size,
                               .k = size,
                               .fusion = Fusion::kFused,
                               .report = true});
      const GpuWorkspace workspace(context, plan);
      expect_waits(plan, group, context, false, [&] {
        plan.execute({.a = a.tensor(), .b = b.tensor(), .c = c.tensor()}, workspace.bytes());
      });
    }
  });
}

TEST_F(GpuReports, ContextAttention) {
  on_gpu_ranks(kTwo, [](const Group& group) {
    const Context context = context_of(group.rank());
    const int64_t rows = 512, heads = 8, kv_heads = 2, dim = 128;
    const ContextAttention plan(context, group,
                                {.attention = {.dtype = perseid::bf16,
                                               .heads = heads,
                                               .kv_heads = kv_heads,
                                               .q_len = rows,
                                               .kv_len = rows,
                                               .head_dim = dim},
                                 .placement = Sharding::kZigzag,
                                 .chunks = 2,
                                 .report = true,
                                 .fusion = Fusion::kFused});
    const auto array = [&](int64_t of_heads, uint64_t seed) {
      return OnGpu(context, Matrix::random({1, rows, of_heads, dim}, perseid::bf16, seed));
    };
    const OnGpu query = array(heads, 1), key = array(kv_heads, 2), value = array(kv_heads, 3),
                out = array(heads, 4);
    const GpuWorkspace workspace(context, plan);
    expect_waits(plan, group, context, false, [&] {
      plan.forward(nullptr,
                   {.query = query.tensor(),
                    .key = key.tensor(),
                    .value = value.tensor(),
                    .out = out.tensor()},
                   workspace.bytes());
    });
  });
}

}  // namespace
