// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes on GPUs, or on one GPU: their results, and what those that are left do
// when one is killed or stopped.
#include "gpu_nccl_processes.hpp"

namespace {

using namespace collective_tools;

constexpr int32_t kRanks = 2;

TEST_F(GpuProcesses, ComputeWithMemoryOfOneAnother) {
  for (const int32_t ranks : {2, 3, 4}) {
    start(ranks, [&](int32_t rank) {
      const Group group = group_of(rank, ranks);
      const Context context = context_of(rank);
      for (int repeat = 0; repeat < 3; ++repeat)
        for (const bool attention : {false, true}) {
          const std::unique_ptr<Work> work = make_work(attention, context, group);
          for (int i = 0; i < 10; ++i)
            if (!work->once()) return false;
        }
      return true;
    });
    expect_all_well();
  }
}

// torchrun names a host and a port.
TEST_F(GpuProcesses, ComputeWhereTheyMetByTcp) {
  const std::string port = std::to_string(free_port() - 1);
  start(kRanks, [&](int32_t rank) {
    for (const auto& [name, value] : {std::pair{"RANK", std::to_string(rank)},
                                      {"WORLD_SIZE", std::to_string(kRanks)},
                                      {"MASTER_ADDR", "127.0.0.1"},
                                      {"MASTER_PORT", port},
                                      {"PERSEID_TOKEN", "a secret"}})
      setenv(name, value.c_str(), 1);
    const Group group;
    const Context context = context_of(rank);
    return Products(context, group).once();
  });
  EXPECT_EQ(join(), std::vector<int>(kRanks, 0));
}

// Loading a kernel waits for all work of the GPU, copies that wait for a silent rank among it, and
// so may allocating. It ends with the operation's deadline.
TEST_F(GpuProcesses, LoadAndAllocateWhileARankIsSilent) {
  const perseid::MatmulOptions other{.dtype = perseid::f64, .m = 96, .n = 96, .k = 96};
  enum { kPlan, kSum, kMemory };
  for (const auto what : {kPlan, kSum, kMemory}) {
    new (board_) Board;
    start(kRanks, [&](int32_t rank) {
      alarm(60);  // instead of waiting for ever
      const Group group = group_of(rank);
      const Context context = context_of(rank);
      const Products work(context, group);
      const OnGpu single(context, Matrix({64}, perseid::f32, 0)),
          half(context, Matrix({64}, perseid::bf16, 0));
      group.all_reduce(single.tensor(), single.tensor());
      // Compiled and kept, so that the deadline does not pass meanwhile.
      const perseid::Matmul compiled(context, other);
      if (!work.once()) return false;
      if (rank == 1) {
        while (!board_->go) usleep(1000);
        return true;
      }
      const Ended end = ended([&] {
        if (what == kSum) return group.all_reduce(half.tensor(), half.tensor(), {}, 2s);
        work.enqueue(2s);
        const Context second = context_of(rank);
        if (what == kMemory) {
          const Memory memory(second, 1 << 20);
        } else {
          const perseid::Matmul plan(second, other);
        }
        context.synchronize();
      });
      board_->go = true;
      fprintf(stderr, "case %d ended after %.2f s: %s\n", what, end.seconds, end.sentence.c_str());
      return end.status == PERSEID_TIMEOUT && group.info().failed_rank == 1 && end.seconds < 10;
    });
    EXPECT_EQ(join(), std::vector<int>(kRanks, 0)) << what;
  }
}

TEST_F(GpuProcesses, SurviveTheDeathOfARank) {
  kill_one({});
  EXPECT_LT(board_->ranks[0].seconds_on, 0.1) << board_->ranks[0].sentence;
}

TEST_F(GpuProcesses, SurviveTheDeathOfOneOfThree) {
  for (const int32_t victim : {0, 2})
    kill_one({.ranks = 3, .victim = victim, .attention = victim == 0, .to_meet = 10s});
}

TEST_F(GpuProcesses, SweepSurviveDeathsAtRandomMoments) {
  for (int32_t number = 0; number < 20; ++number) {
    SCOPED_TRACE(number);
    const int32_t ranks = 2 + number % 2;
    kill_one({.ranks = ranks,
              .victim = number / 2 % ranks,
              .attention = number % 4 >= 2,
              .warm = ranks == 2,
              .to_meet = ranks == 2 ? std::chrono::nanoseconds(200ms) : 10s});
    const Board::Rank& left = board_->ranks[1 - number / 2 % 2];
    if (ranks == 2) {
      EXPECT_LT(left.seconds_on, 0.1) << left.steps;
    }
  }
}

TEST_F(GpuProcesses, GoOnWithoutARankThatIsStopped) {
  stop_rank_one(400ms);
  EXPECT_GT(board_->ranks[0].seconds, 0.3);
  EXPECT_LT(board_->ranks[0].seconds, 1.5);
  // It goes on later, and learns that the others did without it.
  kill(children_[1], SIGCONT);
  children_.erase(children_.begin());
  EXPECT_NE(join()[0], 0);
  EXPECT_EQ(board_->ranks[1].status, PERSEID_TIMEOUT) << board_->ranks[1].sentence;
}

// Ranks that reach memory of one another by CUDA IPC.
class IpcProcesses : public GpuProcesses {
 protected:
  void enter(int32_t) override { setenv("PERSEID_PEER_MEMORY", "ipc", 1); }
};

TEST_F(IpcProcesses, ComputeWithMemoryOfOneAnother) {
  for (const int32_t ranks : {2, 3}) {
    start(ranks, [&](int32_t rank) {
      const Group group = group_of(rank, ranks);
      const Context context = context_of(rank);
      for (int repeat = 0; repeat < 3; ++repeat)
        for (const bool attention : {false, true}) {
          const std::unique_ptr<Work> work = make_work(attention, context, group);
          for (int i = 0; i < 10; ++i)
            if (!work->once()) return false;
        }
      return true;
    });
    expect_all_well();
  }
}

TEST_F(IpcProcesses, SurviveTheDeathOfARank) { kill_one({}); }

// A plan of each kind with random operands of this rank: all results.
std::vector<std::byte> results_of(const Context& context, const Group& group, DType dtype,
                                  bool second_dim,
                                  perseid::Fusion fusion = perseid::Fusion::kAuto) {
  std::vector<std::byte> all;
  const int32_t rank = group.rank(), size = group.size();
  const auto keep = [&](const OnGpu& result) {
    const Matrix matrix = result.get();
    all.insert(all.end(), matrix.bytes.begin(), matrix.bytes.end());
  };
  // Uneven shards, of rows of two matrices or of columns.
  const auto length_of = [](int32_t of_rank) { return int64_t{96} + 32 * of_rank; };
  const int64_t batch = second_dim ? 1 : 2, n = 136, m = second_dim ? 128 : length_of(rank),
                k = second_dim ? length_of(rank) : 192;
  const int64_t gathered = size * (length_of(0) + length_of(size - 1)) / 2;
  const int64_t all_m = second_dim ? m : gathered, all_k = second_dim ? gathered : k;
  const OnGpu a(context, Matrix::random({batch, m, k}, dtype, 10 + static_cast<uint64_t>(rank))),
      b(context, Matrix::random({batch, all_k, n}, dtype, 20 + static_cast<uint64_t>(rank))),
      c(context, Matrix({batch, all_m, n}, dtype)),
      copy(context, Matrix({batch, all_m, all_k}, dtype));
  const AllGatherMatmul gather(
      context, group,
      {.dtype = dtype,
       .gather_dim = second_dim ? perseid::ChunkDim::kK : perseid::ChunkDim::kM,
       .batch = batch,
       .m = m,
       .k = k,
       .products = {{.n = n}},
       .chunks = 3,
       .fusion = fusion});
  EXPECT_STREQ(gather.info().implementation,
               std::getenv("PERSEID_TRANSPORT") == std::string_view("nccl") ? "cuda:nccl"
                                                                            : "cuda:host_staging");
  const GpuWorkspace first(context, gather);
  for (int repeat = 0; repeat < 3; ++repeat)
    gather.execute(
        {.a = a.tensor(), .b = {b.tensor()}, .c = {c.tensor()}, .gathered = copy.tensor()},
        first.bytes());
  context.synchronize();
  keep(c);
  keep(copy);
  for (const bool all_reduce : {false, true}) {
    const int64_t rows = 144, columns = 80, depth = 64 + 32 * rank;
    const MatmulReduce reduce(
        context, group,
        {.dtype = dtype,
         .scatter_dim = second_dim ? perseid::ChunkDim::kN : perseid::ChunkDim::kM,
         .all_reduce = all_reduce,
         .batch = batch,
         .m = rows,
         .n = columns,
         .k = depth,
         .fusion = fusion});
    const int64_t part_m = all_reduce || second_dim ? rows : rows / size,
                  part_n = all_reduce || !second_dim ? columns : columns / size;
    const OnGpu left(context,
                     Matrix::random({batch, rows, depth}, dtype, 30 + static_cast<uint64_t>(rank))),
        right(context,
              Matrix::random({batch, depth, columns}, dtype, 40 + static_cast<uint64_t>(rank))),
        sum(context, Matrix({batch, part_m, part_n}, dtype));
    const GpuWorkspace second(context, reduce);
    for (int repeat = 0; repeat < 3; ++repeat)
      reduce.execute({.a = left.tensor(), .b = right.tensor(), .c = sum.tensor()}, second.bytes());
    context.synchronize();
    keep(sum);
  }
  return all;
}

// The ranks of a group, whatever carries their data, against those that send through their hosts.
bool have_bits_of_staged(int32_t rank, int32_t size, const Group& group) {
  alarm(240);
  const Context context = context_of(rank);
  const Group staged = staged_group_of(rank, size);
  bool right = true;
  for (const DType dtype : {perseid::bf16, perseid::f32, perseid::f64})
    for (const bool second_dim : {false, true}) {
      setenv("PERSEID_TRANSPORT", "sockets", 1);
      const std::vector<std::byte> expected = results_of(context, staged, dtype, second_dim);
      setenv("PERSEID_TRANSPORT", "nccl", 1);
      for (const auto fusion : {perseid::Fusion::kUnfused, perseid::Fusion::kFused})
        if (results_of(context, group, dtype, second_dim, fusion) != expected) {
          fprintf(stderr, "dtype %s, %s, %s\n", std::to_string(static_cast<int>(dtype)).c_str(),
                  second_dim ? "columns" : "rows",
                  fusion == perseid::Fusion::kFused ? "fused" : "unfused");
          right = false;
        }
    }
  return right && !testing::Test::HasFailure();
}

TEST_F(NcclProcesses, HaveTheBitsOfRanksThatSendThroughTheirHosts) {
  start(kRanks, [&](int32_t rank) { return have_bits_of_staged(rank, kRanks, group_of(rank)); });
  EXPECT_EQ(join(), std::vector<int>(kRanks, 0));
}

// Many executions in flight, of kernels that take as many multiprocessors as they may. Prints what
// an execution takes.
TEST_F(NcclOnNvlink, ComputesWhileNcclSends) {
  start(kRanks, [&](int32_t rank) {
    alarm(120);
    const Group group = group_of(rank);
    const Context context = context_of(rank);
    const int64_t m = 4096, n = 4096, k = 4096;
    const auto random = [&](int64_t rows, int64_t columns, uint64_t seed) {
      return Matrix::random({rows, columns}, perseid::bf16, seed + static_cast<uint64_t>(rank));
    };
    const OnGpu a(context, random(m, k, 1)), b(context, random(k, n, 11)),
        wide(context, random(kRanks * m, k, 21)),
        gathered(context, Matrix({kRanks * m, n}, perseid::bf16)),
        reduced(context, Matrix({m, n}, perseid::bf16));
    const auto time = [&](const char* what, const std::function<void()>& execute) {
      constexpr int kTimes = 30;
      for (int i = 0; i < 3; ++i) execute();
      context.synchronize();
      group.barrier();
      const int64_t from = now();
      for (int i = 0; i < kTimes; ++i) execute();
      context.synchronize();
      if (rank == 0) printf("%s: %.0f us\n", what, 1e6 * since(from) / kTimes);
    };
    const perseid::Matmul product(context,
                                  {.dtype = perseid::bf16, .m = kRanks * m, .n = n, .k = k});
    const GpuWorkspace alone(context, product);
    time("product", [&] {
      product.execute(nullptr, {.a = wide.tensor(), .b = b.tensor(), .c = gathered.tensor()},
                      alone.bytes());
    });
    std::vector<Matrix> results;
    for (const auto fusion : {perseid::Fusion::kUnfused, perseid::Fusion::kFused}) {
      const bool fused = fusion == perseid::Fusion::kFused;
      const AllGatherMatmul gather(context, group,
                                   {.dtype = perseid::bf16,
                                    .m = m,
                                    .k = k,
                                    .products = {{.n = n}},
                                    .chunks = 4,
                                    .fusion = fusion});
      const MatmulReduce reduce(
          context, group,
          {.dtype = perseid::bf16, .m = kRanks * m, .n = n, .k = k, .fusion = fusion});
      const GpuWorkspace first(context, gather), second(context, reduce);
      if (rank == 0) printf("%s%s", gather.explain().c_str(), reduce.explain().c_str());
      time(fused ? "all-gather + matmul, fused" : "all-gather + matmul, unfused", [&] {
        gather.execute({.a = a.tensor(), .b = {b.tensor()}, .c = {gathered.tensor()}},
                       first.bytes());
      });
      time(fused ? "matmul + reduce-scatter, fused" : "matmul + reduce-scatter, unfused", [&] {
        reduce.execute({.a = wide.tensor(), .b = b.tensor(), .c = reduced.tensor()},
                       second.bytes());
      });
      results.push_back(gathered.get());
      results.push_back(reduced.get());
    }
    return results[0].bytes == results[2].bytes && results[1].bytes == results[3].bytes;
  });
  EXPECT_EQ(join(), std::vector<int>(kRanks, 0));
}

TEST_F(NcclProcesses, GoOnWithoutARankThatIsKilled) { kill_one({}); }

TEST_F(NcclProcesses, GoOnWhereACallHasFailed) { kill_one({.synchronizes = false}); }

TEST_F(NcclProcesses, GoOnWithoutARankThatIsStopped) {
  stop_rank_one(1s);
  EXPECT_LT(board_->ranks[0].seconds, 2.5);
  kill(children_[1], SIGKILL);
  children_.erase(children_.begin());
  (void)join();
}

TEST_F(NcclHostProcesses, HaveTheBitsOfRanksThatSendThroughTheirHosts) {
  start(kAll, [&](int32_t rank) { return have_bits_of_staged(rank, kAll, group_of(rank, kAll)); });
  EXPECT_EQ(join(), std::vector<int>(kAll, 0));
}

// Processes that share a GPU take turns, so that those that wait for one another need seconds.
TEST_F(NcclHostProcesses, GoOnWithoutARankThatIsKilled) {
  if (count_gpus() < kAll) GTEST_SKIP() << "needs a GPU for each of four ranks";
  kill_one({.ranks = kAll, .victim = 1, .to_meet = 10s});
}

TEST_F(NcclHostProcesses, GoOnWhereACallHasFailed) {
  if (count_gpus() < kAll) GTEST_SKIP() << "needs a GPU for each of four ranks";
  kill_one({.ranks = kAll, .victim = 1, .synchronizes = false, .to_meet = 10s});
}

}  // namespace
