// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes on GPUs, or on one GPU: their results, and what those that are left do
// when one is killed or stopped. The parent uses no GPU, so that it may fork.
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "gpu_collective_tools.hpp"
#include "rank_processes.hpp"

namespace {

using namespace collective_tools;
using perseid::AllGatherMatmul;
using perseid::GroupOptions;
using perseid::MatmulReduce;

constexpr int32_t kRanks = 2;

// Both products over the ranks of a group; all operands are ones.
class Work {
 public:
  Work(const Context& context, const Group& group)
      : context_(context),
        size_(group.size()),
        gather_(context, group,
                {.dtype = perseid::bf16,
                 .m = kRows,
                 .k = kDepth,
                 .products = {{.n = kColumns}},
                 .fusion = perseid::Fusion::kFused}),
        reduce_(context, group,
                {.dtype = perseid::bf16,
                 .all_reduce = true,
                 .m = kRows,
                 .n = kColumns,
                 .k = kDepth,
                 .fusion = perseid::Fusion::kFused}),
        first_(context, gather_),
        second_(context, reduce_),
        a_(context, ones({kRows, kDepth})),
        b_(context, ones({kDepth, kColumns})),
        gathered_(context, Matrix({kRows * size_, kColumns}, perseid::bf16)),
        reduced_(context, Matrix({kRows, kColumns}, perseid::bf16)) {}

  void enqueue(std::chrono::nanoseconds deadline) const {
    gather_.execute(
        {.a = a_.tensor(), .b = {b_.tensor()}, .c = {gathered_.tensor()}, .deadline = deadline},
        first_.bytes());
    reduce_.execute(
        {.a = a_.tensor(), .b = b_.tensor(), .c = reduced_.tensor(), .deadline = deadline},
        second_.bytes());
  }
  bool once(std::chrono::nanoseconds deadline = 20s) const {
    enqueue(deadline);
    context_.synchronize();
    return all_are(gathered_.get(), kDepth) && all_are(reduced_.get(), kDepth * size_);
  }

 private:
  static constexpr int64_t kRows = 512, kColumns = 256, kDepth = 64;
  static uint16_t bits_of(int64_t value) {
    const auto single = static_cast<float>(value);
    uint32_t bits = 0;
    std::memcpy(&bits, &single, sizeof bits);
    return static_cast<uint16_t>(bits >> 16);
  }
  static Matrix ones(std::vector<int64_t> shape) {
    Matrix matrix(std::move(shape), perseid::bf16);
    const uint16_t one = bits_of(1);
    for (size_t i = 0; i < matrix.bytes.size() / 2; ++i) std::memcpy(matrix.at(i), &one, 2);
    return matrix;
  }
  static bool all_are(const Matrix& matrix, int64_t value) {
    const uint16_t wanted = bits_of(value);
    for (size_t i = 0; i < matrix.bytes.size() / 2; ++i)
      if (std::memcmp(matrix.bytes.data() + 2 * i, &wanted, 2) != 0) return false;
    return true;
  }

  const Context& context_;
  int32_t size_;
  AllGatherMatmul gather_;
  MatmulReduce reduce_;
  GpuWorkspace first_, second_;
  OnGpu a_, b_, gathered_, reduced_;
};

class GpuProcesses : public RankProcesses {
 protected:
  void SetUp() override {
    if (count_gpus() == 0) GTEST_SKIP() << "needs a GPU";
  }

  Group group_of(int32_t rank) const {
    return Group(GroupOptions{
        .rank = rank,
        .size = kRanks,
        .rendezvous = "unix:" + testing::TempDir() + "gpus" + std::to_string(getppid()),
        .token = "a secret",
        .deadline = 30s});
  }
  // Rank 0 works until an operation fails, then goes on alone. The parent does `harm` to rank 1.
  void lose_rank_one(std::chrono::nanoseconds deadline, const std::function<void()>& harm) {
    start(kRanks, [&](int32_t rank) {
      const Group group = group_of(rank);
      const Context context = context_of(rank);
      const Work work(context, group);
      if (!work.once()) return false;
      ++board_->ready;
      Board::Rank& mine = board_->ranks[rank];
      for (;;) {
        // Several are in flight, so that waits of every kind are met.
        const Ended end = ended([&] {
          for (int i = 0; i < 4; ++i) work.enqueue(deadline);
          if (!work.once(deadline)) throw std::runtime_error("wrong result");
        });
        if (end.status == PERSEID_OK) continue;
        mine.seconds = since(board_->killed_at);
        mine.status = end.status;
        mine.named = group.info().failed_rank;
        std::snprintf(mine.sentence, sizeof mine.sentence, "%s", end.sentence.c_str());
        break;
      }
      const int64_t from = now();
      const Group left = group.shrink(200ms);
      const Work alone(context, left);
      const bool right = alone.once() && alone.once();
      mine.seconds_on = since(from);
      return right && left.size() == 1;
    });
    while (board_->ready < kRanks) usleep(1000);
    usleep(static_cast<useconds_t>(std::random_device()() % 100000));  // at any moment of its work
    board_->killed_at = now();
    harm();
  }
  void kill_rank_one() {
    lose_rank_one(20s, [&] { kill(children_[1], SIGKILL); });
    EXPECT_EQ(join(), (std::vector<int>{0, -SIGKILL}));
    const Board::Rank& rank = board_->ranks[0];
    EXPECT_EQ(rank.status, PERSEID_PEER_LOST) << rank.sentence;
    EXPECT_EQ(rank.named, 1) << rank.sentence;
    EXPECT_LT(rank.seconds, 1) << rank.sentence;
    printf("PEER_LOST after %.1f ms, a right operation %.0f ms later: %s\n", 1e3 * rank.seconds,
           1e3 * rank.seconds_on, rank.sentence);
  }
  // Rank 1 is still stopped when this returns.
  void stop_rank_one(std::chrono::nanoseconds deadline) {
    lose_rank_one(deadline, [&] { kill(children_[1], SIGSTOP); });
    int status = 0;
    const pid_t survivor = children_[0];
    ASSERT_EQ(waitpid(survivor, &status, 0), survivor);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    const Board::Rank& rank = board_->ranks[0];
    EXPECT_EQ(rank.status, PERSEID_TIMEOUT) << rank.sentence;
    EXPECT_EQ(rank.named, 1) << rank.sentence;
    printf("TIMEOUT after %.1f ms: %s\n", 1e3 * rank.seconds, rank.sentence);
  }
};

TEST_F(GpuProcesses, ComputeWithMemoryOfOneAnother) {
  start(kRanks, [&](int32_t rank) {
    const Group group = group_of(rank);
    const Context context = context_of(rank);
    for (int repeat = 0; repeat < 3; ++repeat) {
      const Work work(context, group);
      for (int i = 0; i < 20; ++i)
        if (!work.once()) return false;
    }
    return true;
  });
  EXPECT_EQ(join(), std::vector<int>(kRanks, 0));
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
    return Work(context, group).once();
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
      const Work work(context, group);
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
  kill_rank_one();
  EXPECT_LT(board_->ranks[0].seconds_on, 0.1) << board_->ranks[0].sentence;
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

// Ranks as on several hosts, whose data NCCL carries. It takes two ranks on one GPU where it is
// told that they are on two hosts.
class NcclProcesses : public GpuProcesses {
 protected:
  void SetUp() override {
    GpuProcesses::SetUp();
    if (dlopen("libnccl.so.2", RTLD_LAZY) == nullptr) GTEST_SKIP() << "needs NCCL";
  }
  void enter(int32_t rank) override {
    for (const auto& [name, value] : {std::pair{"PERSEID_SHARED_MEMORY", std::string("0")},
                                      {"PERSEID_TRANSPORT", "nccl"},
                                      {"NCCL_HOSTID", "host" + std::to_string(rank)},
                                      {"NCCL_SOCKET_IFNAME", "lo"},
                                      {"NCCL_IB_DISABLE", "1"}})
      setenv(name, value.c_str(), 1);
  }
};

// A plan of each kind with random operands of this rank: all results.
std::vector<std::byte> results_of(const Context& context, const Group& group, DType dtype,
                                  bool second_dim) {
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
       .chunks = 3});
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
         .k = depth});
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

TEST_F(NcclProcesses, HaveTheBitsOfRanksThatSendThroughTheirHosts) {
  start(kRanks, [&](int32_t rank) {
    alarm(120);
    const Group group = group_of(rank);
    const Context context = context_of(rank);
    setenv("PERSEID_TRANSPORT", "sockets", 1);
    const Group staged = Group(GroupOptions{
        .rank = rank,
        .size = kRanks,
        .rendezvous = "unix:" + testing::TempDir() + "staged" + std::to_string(getppid()),
        .token = "a secret",
        .deadline = 30s});
    bool right = true;
    for (const DType dtype : {perseid::bf16, perseid::f32, perseid::f64})
      for (const bool second_dim : {false, true}) {
        setenv("PERSEID_TRANSPORT", "sockets", 1);
        const std::vector<std::byte> expected = results_of(context, staged, dtype, second_dim);
        setenv("PERSEID_TRANSPORT", "nccl", 1);
        right = right && results_of(context, group, dtype, second_dim) == expected;
      }
    return right && !testing::Test::HasFailure();
  });
  EXPECT_EQ(join(), std::vector<int>(kRanks, 0));
}

TEST_F(NcclProcesses, GoOnWithoutARankThatIsKilled) { kill_rank_one(); }

TEST_F(NcclProcesses, GoOnWithoutARankThatIsStopped) {
  stop_rank_one(1s);
  EXPECT_LT(board_->ranks[0].seconds, 2.5);
  kill(children_[1], SIGKILL);
  children_.erase(children_.begin());
  (void)join();
}

}  // namespace
