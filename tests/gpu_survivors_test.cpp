// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Groups of GPUs beside other work: captured graphs that outlive a rank, streams that are being
// captured, a process that replaces one that was killed, groups that come and go, and two groups on
// the same GPUs.
#include <dirent.h>

#include <array>

#include "gpu_api_tools.hpp"
#include "gpu_rank_processes.hpp"

namespace {

using namespace collective_tools;
using perseid::testing_gpu::DriverStreams;

// Each test with several numbers of ranks.
class GpuRankProcesses : public GpuProcesses, public testing::WithParamInterface<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GpuRankProcesses, testing::Values(2, 3),
                         testing::PrintToStringParamName());

int device_of(int32_t rank) { return rank % count_gpus(); }

// ---- Captured graphs

// A plain product and an attention, captured once.
class Captured {
 public:
  explicit Captured(const Context& context)
      : context_(context),
        streams_(1, context.device().device_id),
        matmul_(context, {.dtype = perseid::bf16, .m = kRows, .n = kRows, .k = kRows}),
        attention_(context, {.dtype = perseid::bf16,
                             .heads = kHeads,
                             .q_len = kRows,
                             .kv_len = kRows,
                             .head_dim = kDim,
                             .mask = perseid::causal_bottom_right()}),
        first_(context, matmul_),
        second_(context, attention_),
        a_(context, Matrix::random({kRows, kRows}, perseid::bf16, 1)),
        b_(context, Matrix::random({kRows, kRows}, perseid::bf16, 2)),
        c_(context, Matrix({kRows, kRows}, perseid::bf16)),
        out_(context, Matrix({1, kRows, kHeads, kDim}, perseid::bf16)),
        query_(context, Matrix::random({1, kRows, kHeads, kDim}, perseid::bf16, 3)) {
    enqueue();  // what the first execution alone does
    context_.synchronize(streams_[0]);
    wanted_ = {c_.get(), out_.get()};
    void* graph = nullptr;
    EXPECT_EQ(streams_.cuda.capture_begin(streams_[0], 2), 0);
    enqueue();
    EXPECT_EQ(streams_.cuda.capture_end(streams_[0], &graph), 0);
    EXPECT_EQ(streams_.cuda.instantiate(&replayed_, graph, 0), 0);
  }
  // A replay gives the results of the first execution.
  bool right() const {
    c_.set(Matrix(wanted_[0].shape, perseid::bf16));
    out_.set(Matrix(wanted_[1].shape, perseid::bf16));
    if (streams_.cuda.graph_launch(replayed_, streams_[0]) != 0) return false;
    context_.synchronize(streams_[0]);
    return c_.get().bytes == wanted_[0].bytes && out_.get().bytes == wanted_[1].bytes;
  }

 private:
  static constexpr int64_t kRows = 256, kHeads = 4, kDim = 64;

  void enqueue() const {
    matmul_.execute(streams_[0], {.a = a_.tensor(), .b = b_.tensor(), .c = c_.tensor()},
                    first_.bytes());
    attention_.forward(streams_[0],
                       {.query = query_.tensor(),
                        .key = query_.tensor(),
                        .value = query_.tensor(),
                        .out = out_.tensor()},
                       second_.bytes());
  }

  const Context& context_;
  DriverStreams streams_;
  const perseid::Matmul matmul_;
  const perseid::Attention attention_;
  const GpuWorkspace first_, second_;
  const OnGpu a_, b_, c_, out_, query_;
  std::vector<Matrix> wanted_;
  void* replayed_ = nullptr;
};

// Right after the failure, in the group of those that are left, and when the memory of the dead
// rank is unmapped.
TEST_P(GpuRankProcesses, ReplayTheirGraphsAfterADeath) {
  for (const bool attention : {false, true})
    kill_one({.ranks = GetParam(),
              .attention = attention,
              .to_meet = GetParam() == 2 ? std::chrono::nanoseconds(200ms) : 10s,
              .beside = [](const Context& context) {
                const auto captured = std::make_shared<Captured>(context);
                if (!captured->right()) throw std::runtime_error("a replay is wrong");
                return [captured](int stage) {
                  const bool right = captured->right();
                  if (!right) fprintf(stderr, "the replay of stage %d is wrong\n", stage);
                  return right;
                };
              }});
}

// Nothing is enqueued, the capture goes on, and so does the group.
TEST_P(GpuRankProcesses, RefuseAStreamThatIsCaptured) {
  start(GetParam(), [&](int32_t rank) {
    const Group group = group_of(rank, GetParam());
    const Context context = context_of(rank);
    const DriverStreams streams(1, device_of(rank));
    const int64_t rows = 128, heads = 2, dim = 64;
    const AllGatherMatmul gather(
        context, group, {.dtype = perseid::bf16, .m = rows, .k = rows, .products = {{.n = rows}}});
    const MatmulReduce reduce(
        context, group,
        {.dtype = perseid::bf16, .all_reduce = true, .m = rows, .n = rows, .k = rows});
    const ContextAttention attention(context, group,
                                     {.attention = {.dtype = perseid::bf16,
                                                    .heads = heads,
                                                    .q_len = rows,
                                                    .kv_len = rows,
                                                    .head_dim = dim,
                                                    .backward = true}});
    const OnGpu square(context, Matrix::random({rows, rows}, perseid::bf16, 1)),
        product(context, Matrix({rows, rows}, perseid::bf16)),
        all(context, Matrix({rows * group.size(), rows}, perseid::bf16)),
        query(context, Matrix::random({1, rows, heads, dim}, perseid::bf16, 2)),
        lse(context, Matrix({1, heads, rows}, perseid::f32));
    std::vector<OnGpu> results;
    for (int i = 0; i < 4; ++i)
      results.emplace_back(context, Matrix({1, rows, heads, dim}, perseid::bf16));
    const GpuWorkspace of_gather(context, gather), of_reduce(context, reduce),
        of_forward(context, attention),
        of_backward(context, attention, perseid::Direction::kBackward);
    const std::array<std::function<void()>, 4> executions = {
        [&] {
          gather.execute(streams[0],
                         {.a = square.tensor(), .b = {square.tensor()}, .c = {all.tensor()}},
                         of_gather.bytes());
        },
        [&] {
          reduce.execute(streams[0],
                         {.a = square.tensor(), .b = square.tensor(), .c = product.tensor()},
                         of_reduce.bytes());
        },
        [&] {
          attention.forward(streams[0],
                            {.query = query.tensor(),
                             .key = query.tensor(),
                             .value = query.tensor(),
                             .out = results[0].tensor(),
                             .lse = lse.tensor()},
                            of_forward.bytes());
        },
        [&] {
          attention.backward(streams[0],
                             {.query = query.tensor(),
                              .key = query.tensor(),
                              .value = query.tensor(),
                              .out = results[0].tensor(),
                              .lse = lse.tensor(),
                              .grad_out = query.tensor(),
                              .grad_query = results[1].tensor(),
                              .grad_key = results[2].tensor(),
                              .grad_value = results[3].tensor()},
                             of_backward.bytes());
        }};
    for (int round = 0; round < 2; ++round) {
      EXPECT_EQ(streams.cuda.capture_begin(streams[0], 2), 0);
      for (const auto& execute : executions) {
        const Ended end = ended(execute);
        EXPECT_EQ(end.status, PERSEID_UNSUPPORTED) << end.sentence;
        EXPECT_NE(end.sentence.find("the stream is being captured"), std::string::npos)
            << end.sentence;
      }
      void* graph = nullptr;
      EXPECT_EQ(streams.cuda.capture_end(streams[0], &graph), 0);
      for (const auto& execute : executions) execute();
      context.synchronize(streams[0]);
      const auto whole = gpu_product(context, square.get(), square.get(), perseid::bf16);
      EXPECT_TRUE(part_of(all.get(), 0, rank * rows, (rank + 1) * rows).bytes == whole.bytes);
    }
    return !testing::Test::HasFailure();
  });
  expect_all_well();
}

// ---- Ranks that come and go

// After a rank was killed all meet again where they met, a new process in its place.
TEST_P(GpuRankProcesses, GoOnWithAReplacement) {
  const int32_t ranks = GetParam(), victim = ranks - 2;
  const auto meet_and_work = [&](int32_t rank, int32_t done) {
    const Group group = group_of(rank, ranks);
    const Context context = context_of(rank);
    // Who has missed nothing says where to go on.
    Matrix mine({1}, perseid::f32);
    const auto steps = static_cast<float>(done);
    std::memcpy(mine.at(0), &steps, sizeof steps);
    const OnGpu own(context, mine), all(context, Matrix({ranks}, perseid::f32));
    group.all_gather(own.tensor(), all.tensor());
    const Matrix everybody = all.get();
    for (int32_t r = 0; r < ranks; ++r)
      if (everybody.value(static_cast<size_t>(r)) != (r == victim ? 0 : 7)) return false;
    for (const bool attention : {false, true})
      if (!make_work(attention, context, group)->once()) return false;
    return true;
  };
  start(ranks, [&](int32_t rank) {
    {
      const Group group = group_of(rank, ranks);
      const Context context = context_of(rank);
      const Products work(context, group);
      if (!work.once()) return false;
      ++board_->ready;
      const Ended end = ended([&] {
        while (work.once()) {
        }
      });
      if (end.status != PERSEID_PEER_LOST) return false;
    }
    return meet_and_work(rank, 7);
  });
  while (board_->ready < ranks) usleep(100);
  usleep(2000);
  kill(children_[static_cast<size_t>(victim)], SIGKILL);
  start(1, [&](int32_t) { return meet_and_work(victim, 0); });
  const std::vector<int> codes = join();
  for (int32_t rank = 0; rank <= ranks; ++rank)
    EXPECT_EQ(codes[static_cast<size_t>(rank)], rank == victim ? -SIGKILL : 0) << rank;
}

int64_t entries_of(const char* folder) {
  DIR* opened = opendir(folder);
  int64_t count = 0;
  while (readdir(opened) != nullptr) ++count;
  closedir(opened);
  return count;
}

// Descriptors and threads are as many as before. Memory of the GPU is counted where no rank does
// anything, since ranks may share the GPU. A leak shows after most groups. Where there is less
// after one of them, another process has freed it, and the counts say nothing.
TEST_P(GpuRankProcesses, LeaveNothingOfTwentyGroups) {
  constexpr size_t kGroups = 20;
  const int32_t ranks = GetParam();
  start(ranks, [&](int32_t rank) {
    alarm(120);  // where another rank fails before it comes to a meeting
    SCOPED_TRACE("rank " + std::to_string(rank));
    const Context context = context_of(rank);
    const DriverStreams streams(1, device_of(rank));
    const OnGpu numbers(context, Matrix({64}, perseid::f32, 0));
    int32_t meetings = 0;
    const auto meet = [&] {  // without a group
      ++board_->ready;
      ++meetings;
      while (board_->ready < meetings * ranks) usleep(1000);
    };
    const auto once = [&] {
      const Group group = group_of(rank, ranks);
      group.all_reduce(numbers.tensor(), numbers.tensor());
      for (const bool attention : {false, true})
        if (!make_work(attention, context, group)->once()) throw std::runtime_error("wrong result");
      meet();  // a rank that leaves is lost for those that still work
    };
    const auto used = [&] {
      meet();
      size_t free = 0, total = 0;
      EXPECT_EQ(streams.cuda.memory_info(&free, &total), 0);
      meet();
      return static_cast<double>(total - free) / (1 << 20);
    };
    once();
    once();
    std::array<double, kGroups> grown{};
    double before = used();
    const int64_t descriptors = entries_of("/proc/self/fd"),
                  threads = entries_of("/proc/self/task");
    for (double& each : grown) {
      once();
      const double after = used();
      each = after - before;
      before = after;
    }
    EXPECT_EQ(entries_of("/proc/self/fd"), descriptors);
    EXPECT_EQ(entries_of("/proc/self/task"), threads);
    std::sort(grown.begin(), grown.end());
    const bool alone = grown[0] >= 0;
    EXPECT_TRUE(!alone || grown[kGroups / 4] < 1) << testing::PrintToString(grown) << " MiB";
    return !testing::Test::HasFailure();
  });
  expect_all_well();
}

// ---- Two groups on the same GPUs

// The second numbers the ranks the other way round.
struct TwoGroups {
  const Group one, other;
  const Context context;
  const Products of_one, of_other;

  TwoGroups(int32_t rank, int32_t ranks, const std::function<Group(int32_t, const char*)>& open)
      : one(open(rank, "one")),
        other(open(ranks - 1 - rank, "other")),
        context(context_of(rank)),
        of_one(context, one),
        of_other(context, other) {}
};

// Executions of both are in the same order on all ranks, which are late by random times.
TEST_P(GpuRankProcesses, InterleaveTwoGroups) {
  const int32_t ranks = GetParam();
  start(ranks, [&](int32_t rank) {
    const TwoGroups groups(rank, ranks, [&](int32_t number, const char* name) {
      return group_of(number, ranks, name);
    });
    std::mt19937 order(1), delays(static_cast<uint32_t>(10 + rank));
    for (int round = 0; round < 60; ++round) {
      for (int i = 0; i < 4; ++i) {
        if (delays() % 2 == 0) usleep(static_cast<useconds_t>(delays() % 2000));
        (order() % 2 == 0 ? groups.of_one : groups.of_other).enqueue(20s);
      }
      if (order() % 2 == 0) groups.of_one.enqueue(20s);
      groups.of_other.enqueue(20s);
      groups.context.synchronize();
      if (!groups.of_other.right() || (round > 2 && !groups.of_one.right())) return false;
    }
    const bool right = groups.of_one.once() && groups.of_other.once();
    groups.one.barrier();
    return right;
  });
  expect_all_well();
}

// In different orders on one stream, each waits for what the other has not begun. It ends at the
// deadline, with a rank to blame.
TEST_F(GpuProcesses, TwoGroupsInDifferentOrdersEndAtTheDeadline) {
  start(2, [&](int32_t rank) {
    alarm(60);  // instead of waiting for ever
    const TwoGroups groups(
        rank, 2, [&](int32_t number, const char* name) { return group_of(number, 2, name); });
    if (!groups.of_one.once() || !groups.of_other.once()) return false;
    groups.one.barrier();
    const Ended end = ended([&] {
      (rank == 0 ? groups.of_one : groups.of_other).enqueue(500ms);
      (rank == 0 ? groups.of_other : groups.of_one).enqueue(500ms);
      groups.context.synchronize();
    });
    fprintf(stderr, "rank %d ended after %.2f s: %s\n", rank, end.seconds, end.sentence.c_str());
    // Nobody leaves before the other knows.
    ++board_->ready;
    while (board_->ready < 2) usleep(1000);
    return end.status == PERSEID_TIMEOUT && end.seconds < 10;
  });
  expect_all_well();
}

}  // namespace
