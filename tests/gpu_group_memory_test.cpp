// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Memory of GPUs that the ranks of a group share: products that store their results into the memory
// of another rank and signal each chunk there. With one GPU the ranks are processes that share it.
#include "gpu_collective_tools.hpp"

namespace {

using namespace collective_tools;

using GpuGroupMemory = GpuRanksTest;

TEST_F(GpuGroupMemory, TakesResultsAndSignalsOfAnotherRank) {
  on_gpu_ranks(2, [](const Group& group) {
    const Context context = context_of(group.rank());
    const int32_t rank = group.rank(), other = 1 - rank;
    if (are_hosts()) {
      EXPECT_EQ(ended([&] { const perseid::GroupMemory memory(context, group, 1); }).status,
                PERSEID_UNSUPPORTED);
      return;
    }
    const int64_t m = 512, n = 256, k = 128;
    const perseid::Chunks chunks{{0, 100, 300, m}};
    const auto count = static_cast<size_t>(chunks.count());
    const Matrix a[] = {Matrix::random({m, k}, perseid::bf16, 1),
                        Matrix::random({m, k}, perseid::bf16, 2)},
                 b = Matrix::random({k, n}, perseid::bf16, 3);
    const OnGpu left(context, a[rank]), right(context, b);
    const perseid::Matmul plan(context,
                               {.dtype = perseid::bf16, .m = m, .n = n, .k = k, .sink_c = chunks});
    const GpuWorkspace workspace(context, plan);
    const Matrix wanted = gpu_product(context, a[other], b, perseid::bf16);
    // Freed in another order on each rank, while the other one may still be at work.
    auto inbox = std::make_unique<perseid::GroupMemory>(context, group, wanted.bytes.size());
    auto words = std::make_unique<perseid::GroupMemory>(context, group, count * sizeof(uint32_t));
    std::vector<uint32_t> zeros(count, 1);
    context.copy(zeros.data(), words->data(), count * sizeof(uint32_t));
    EXPECT_EQ(zeros, std::vector<uint32_t>(count, 0));
    for (uint32_t epoch = 1; epoch <= 3; ++epoch) {
      plan.execute(
          nullptr,
          {.a = left.tensor(),
           .b = right.tensor(),
           .c = Tensor(inbox->peer(other), perseid::bf16, {m, n}, {}, context.device()),
           .departure_c = {.signals = static_cast<uint32_t*>(words->peer(other)), .epoch = epoch}},
          workspace.bytes());
      for (size_t chunk = 0; chunk < count; ++chunk)
        perseid::wait_for_signal(context,
                                 {.signals = static_cast<const uint32_t*>(words->data()) + chunk,
                                  .epoch = epoch,
                                  .deadline = 10s},
                                 nullptr);
      Matrix found({m, n}, perseid::bf16);
      context.copy(found.bytes.data(), inbox->data(), found.bytes.size());
      EXPECT_TRUE(found.bytes == wanted.bytes) << "epoch " << epoch;
      context.synchronize();
      group.barrier();
    }
    if (rank == 0) inbox.reset();
    words.reset();
    inbox.reset();
    // The ranks' own operations go on.
    const OnGpu one(context, Matrix::random({4, 4}, perseid::f32, 5));
    group.all_reduce(one.tensor(), one.tensor());
  });
}

}  // namespace
