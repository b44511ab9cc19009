// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranks on GPUs that take no part in a sum, and what the others say of them.
#include "gpu_collective_tools.hpp"

namespace {

using namespace collective_tools;
using perseid::Fusion;
using perseid::MatmulReduce;

class GpuSilentRanks : public GpuRanksTest {};

// A chunk of the own shard that rank 1 has not added its part to.
TEST_F(GpuSilentRanks, NameTheChunkTheyAddNoPartTo) {
  on_gpu_ranks(2, [](const Group& group) {
    const int32_t rank = group.rank();
    const Context context = context_of(rank);
    const int64_t m = 256, n = 128, k = 64;
    const MatmulReduce plan(
        context, group, {.dtype = perseid::bf16, .m = m, .n = n, .k = k, .fusion = Fusion::kFused});
    const GpuWorkspace workspace(context, plan);
    const OnGpu a(context, Matrix::random({m, k}, perseid::bf16, 1)),
        b(context, Matrix::random({k, n}, perseid::bf16, 2)),
        c(context, Matrix({m / 2, n}, perseid::bf16));
    perseid_wait_record record{};
    const auto once = [&] {
      plan.execute(
          {.a = a.tensor(), .b = b.tensor(), .c = c.tensor(), .deadline = 300ms, .record = &record},
          workspace.bytes());
      context.synchronize();
    };
    once();
    EXPECT_EQ(record.status, PERSEID_OK);
    if (rank == 1) std::this_thread::sleep_for(900ms);
    const Ended end = ended(once);
    EXPECT_EQ(end.status, PERSEID_TIMEOUT) << end.sentence;
    EXPECT_NE(end.sentence.find("rank 1"), std::string::npos) << end.sentence;
    if (rank != 0) return;
    EXPECT_NE(end.sentence.find("chunk 0 has not arrived"), std::string::npos) << end.sentence;
    EXPECT_EQ(record.status, PERSEID_TIMEOUT);
    EXPECT_EQ(record.rank, 1);
    EXPECT_EQ(record.chunk, 0);
  });
}

}  // namespace
