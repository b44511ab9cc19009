// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes on GPUs, or on one GPU: what they work at, and what those that are left
// do when one is killed or stopped. The parent uses no GPU, so that it may fork.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "gpu_collective_tools.hpp"
#include "rank_processes.hpp"

namespace collective_tools {

using perseid::AllGatherMatmul;
using perseid::ContextAttention;
using perseid::GroupOptions;
using perseid::MatmulReduce;

// Operations over the ranks of a group, of which all operands are ones.
class Work {
 public:
  virtual ~Work() = default;
  virtual void enqueue(std::chrono::nanoseconds deadline) const = 0;
  virtual bool right() const = 0;  // once they are done
  bool once(std::chrono::nanoseconds deadline = 20s) const {
    enqueue(deadline);
    context_.synchronize();
    return right();
  }

 protected:
  explicit Work(const Context& context) : context_(context) {}
  static uint16_t bits_of(int64_t value) { return round_to_bf16(static_cast<float>(value)); }
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
};

// Both products.
class Products final : public Work {
 public:
  Products(const Context& context, const Group& group)
      : Work(context),
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

  void enqueue(std::chrono::nanoseconds deadline) const override {
    gather_.execute(
        {.a = a_.tensor(), .b = {b_.tensor()}, .c = {gathered_.tensor()}, .deadline = deadline},
        first_.bytes());
    reduce_.execute(
        {.a = a_.tensor(), .b = b_.tensor(), .c = reduced_.tensor(), .deadline = deadline},
        second_.bytes());
  }
  bool right() const override {
    return all_are(gathered_.get(), kDepth) && all_are(reduced_.get(), kDepth * size_);
  }

 private:
  static constexpr int64_t kRows = 512, kColumns = 256, kDepth = 64;

  int32_t size_;
  AllGatherMatmul gather_;
  MatmulReduce reduce_;
  GpuWorkspace first_, second_;
  OnGpu a_, b_, gathered_, reduced_;
};

// Attention and its gradients. Averages of ones are ones.
class Attending final : public Work {
 public:
  Attending(const Context& context, const Group& group)
      : Work(context),
        plan_(context, group,
              {.attention = {.dtype = perseid::bf16,
                             .heads = kHeads,
                             .q_len = kRows,
                             .kv_len = kRows,
                             .head_dim = kDim,
                             .mask = perseid::causal_bottom_right(),
                             .backward = true},
               .placement = perseid::Sharding::kZigzag,
               .chunks = 2}),
        first_(context, plan_),
        second_(context, plan_, perseid::Direction::kBackward),
        ones_(context, ones({1, kRows, kHeads, kDim})),
        out_(context, Matrix({1, kRows, kHeads, kDim}, perseid::bf16)),
        grad_query_(context, Matrix({1, kRows, kHeads, kDim}, perseid::bf16)),
        grad_key_(context, Matrix({1, kRows, kHeads, kDim}, perseid::bf16)),
        grad_value_(context, Matrix({1, kRows, kHeads, kDim}, perseid::bf16)),
        lse_(context, Matrix({1, kHeads, kRows}, perseid::f32)) {}

  void enqueue(std::chrono::nanoseconds deadline) const override {
    plan_.forward(nullptr,
                  {.query = ones_.tensor(),
                   .key = ones_.tensor(),
                   .value = ones_.tensor(),
                   .out = out_.tensor(),
                   .lse = lse_.tensor()},
                  first_.bytes(), deadline);
    plan_.backward(nullptr,
                   {.query = ones_.tensor(),
                    .key = ones_.tensor(),
                    .value = ones_.tensor(),
                    .out = out_.tensor(),
                    .lse = lse_.tensor(),
                    .grad_out = ones_.tensor(),
                    .grad_query = grad_query_.tensor(),
                    .grad_key = grad_key_.tensor(),
                    .grad_value = grad_value_.tensor()},
                   second_.bytes(), deadline);
  }
  bool right() const override { return all_are(out_.get(), 1); }

 private:
  static constexpr int64_t kRows = 512, kHeads = 4, kDim = 64;

  ContextAttention plan_;
  GpuWorkspace first_, second_;
  OnGpu ones_, out_, grad_query_, grad_key_, grad_value_, lse_;
};

inline std::unique_ptr<Work> make_work(bool attention, const Context& context, const Group& group) {
  if (attention) return std::make_unique<Attending>(context, group);
  return std::make_unique<Products>(context, group);
}

class GpuProcesses : public RankProcesses {
 protected:
  void SetUp() override {
    if (count_gpus() == 0) GTEST_SKIP() << "needs a GPU";
  }

  // `name` is that of one of several groups.
  static Group group_of(int32_t rank, int32_t size = 2, const std::string& name = "gpus") {
    return Group(
        GroupOptions{.rank = rank,
                     .size = size,
                     .rendezvous = "unix:" + testing::TempDir() + name + std::to_string(getppid()),
                     .token = "a secret",
                     .deadline = 30s});
  }
  void expect_all_well() {
    const std::vector<int> codes = join();
    EXPECT_EQ(codes, std::vector<int>(codes.size(), 0));
  }

  struct Loss {
    int32_t ranks = 2, victim = 1;
    bool attention = false;
    bool synchronizes = true;  // else a call fails, and nothing says what became of those before
    bool warm = false;         // the one rank that is left has its kernels at hand
    std::chrono::nanoseconds deadline = 20s;
    std::chrono::nanoseconds to_meet = 200ms;  // of the survivors
    // On each that is left: before the work begins, what is right then, and `stage` counts on after
    // the failure, in the smaller group, and when all of the larger one is gone.
    std::function<std::function<bool(int stage)>(const Context&)> beside = {};
  };
  // All work until an operation fails, then go on without the victim, to which the parent does
  // `harm`.
  void lose(const Loss& loss, const std::function<void()>& harm) {
    start(loss.ranks, [&](int32_t rank) {
      alarm(180);
      std::optional<Group> group = group_of(rank, loss.ranks);
      const Context context = context_of(rank);
      if (loss.warm) {
        const Group alone = std::move(Group::threads(1)[0]);
        if (!make_work(loss.attention, context, alone)->once()) return false;
      }
      std::unique_ptr<Work> work = make_work(loss.attention, context, *group);
      const auto beside = loss.beside ? loss.beside(context) : [](int) { return true; };
      if (!work->once()) return false;
      ++board_->ready;
      Board::Rank& mine = board_->ranks[rank];
      const auto note = [&](const char* step) {
        const size_t length = std::strlen(mine.steps);
        std::snprintf(mine.steps + length, sizeof mine.steps - length, "%s %.0f ms, ", step,
                      1e3 * since(board_->killed_at));
      };
      for (;;) {
        // Several are in flight, so that waits of every kind are met.
        const Ended end = ended([&] {
          for (int i = 0; i < 4; ++i) work->enqueue(loss.deadline);
          if (loss.synchronizes && !work->once(loss.deadline))
            throw std::runtime_error("wrong result");
        });
        if (end.status == PERSEID_OK) continue;
        mine.seconds = since(board_->killed_at);
        mine.status = end.status;
        mine.named = group->info().failed_rank;
        std::snprintf(mine.sentence, sizeof mine.sentence, "%s", end.sentence.c_str());
        break;
      }
      note("failed");
      if (!beside(0)) return false;
      const int64_t from = now();
      const Group left = group->shrink(loss.to_meet);
      note("shrunk");
      const std::unique_ptr<Work> again = make_work(loss.attention, context, left);
      note("made");
      const bool right = again->once() && again->once();
      mine.seconds_on = since(from);
      note(right ? "right" : "wrong");
      if (!beside(1)) return false;
      work.reset();
      note("plans gone");
      group.reset();
      note("group gone");
      const bool still_right = beside(2) && again->once() && beside(3);
      note(still_right ? "right" : "wrong");
      left.barrier();
      return right && still_right && left.size() == loss.ranks - 1;
    });
    while (board_->ready < loss.ranks) usleep(1000);
    usleep(static_cast<useconds_t>(std::random_device()() % 100000));  // at any moment of its work
    board_->killed_at = now();
    harm();
  }
  void kill_one(const Loss& loss) {
    new (board_) Board;
    lose(loss, [&] { kill(children_[static_cast<size_t>(loss.victim)], SIGKILL); });
    const std::vector<int> codes = join();
    for (int32_t rank = 0; rank < loss.ranks; ++rank) {
      const Board::Rank& its = board_->ranks[rank];
      EXPECT_EQ(codes[static_cast<size_t>(rank)], rank == loss.victim ? -SIGKILL : 0)
          << rank << ": " << its.steps;
      if (rank == loss.victim) continue;
      EXPECT_EQ(its.status, PERSEID_PEER_LOST) << its.sentence;
      EXPECT_EQ(its.named, loss.victim) << its.sentence;
      EXPECT_LT(its.seconds, 1) << its.sentence;
      printf("PEER_LOST after %.1f ms, a right operation %.0f ms later (%s): %s\n",
             1e3 * its.seconds, 1e3 * its.seconds_on, its.steps, its.sentence);
    }
  }
  // Rank 1 is still stopped when this returns.
  void stop_rank_one(std::chrono::nanoseconds deadline) {
    lose({.deadline = deadline}, [&] { kill(children_[1], SIGSTOP); });
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

}  // namespace collective_tools
