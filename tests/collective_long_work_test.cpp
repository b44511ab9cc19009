// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that are killed or stopped while the others are in local work that takes seconds: those end
// within it, not after it.
#include <signal.h>
#include <unistd.h>

#include "group_processes.hpp"

namespace {

using namespace collective_tools;

enum class Kind { kGather, kReduce, kUnfused, kForward, kBackward };

// One execution that takes several seconds of a core: the kernels are those of plain C++, which
// have the tiles of all others.
class LongWork {
 public:
  LongWork(const Context& context, const Group& group, Kind kind)
      : kind_(kind),
        a_({kSide, kSide}, perseid::f32, 0),
        c_({kSide * (kind == Kind::kGather ? group.size() : 1), kSide}, perseid::f32),
        rows_({1, kRows, kHeads, kDim}, perseid::f32, 0),
        results_(4, rows_),
        lse_({1, kHeads, kRows}, perseid::f32, 0) {
    const perseid::Fusion fusion =
        kind == Kind::kUnfused ? perseid::Fusion::kUnfused : perseid::Fusion::kFused;
    if (kind == Kind::kGather) {
      gather_ = std::make_unique<AllGatherMatmul>(
          context, group,
          perseid::AllGatherMatmulOptions{
              .m = kSide, .k = kSide, .products = {{.n = kSide}}, .fusion = fusion});
      gather_->reserve(workspace_);
    } else if (kind == Kind::kReduce || kind == Kind::kUnfused) {
      reduce_ = std::make_unique<MatmulReduce>(
          context, group,
          perseid::MatmulReduceOptions{
              .all_reduce = true, .m = kSide, .n = kSide, .k = kSide, .fusion = fusion});
      reduce_->reserve(workspace_);
    } else {
      attention_ = std::make_unique<perseid::ContextAttention>(
          context, group,
          perseid::ContextAttentionOptions{.attention = {.heads = kHeads,
                                                         .q_len = kRows,
                                                         .kv_len = kRows,
                                                         .head_dim = kDim,
                                                         .backward = true}});
      attention_->reserve(workspace_);
    }
  }

  void execute(std::chrono::nanoseconds deadline) {
    const Tensor a = a_.tensor(), rows = rows_.tensor(), lse = lse_.tensor();
    if (gather_ != nullptr) {
      gather_->execute({.a = a, .b = {a}, .c = {c_.tensor()}, .deadline = deadline}, workspace_);
    } else if (reduce_ != nullptr) {
      reduce_->execute({.a = a, .b = a, .c = c_.tensor(), .deadline = deadline}, workspace_);
    } else if (kind_ == Kind::kForward) {
      attention_->forward(
          nullptr,
          {.query = rows, .key = rows, .value = rows, .out = results_[0].tensor(), .lse = lse},
          workspace_, deadline);
    } else {
      attention_->backward(nullptr,
                           {.query = rows,
                            .key = rows,
                            .value = rows,
                            .out = results_[0].tensor(),
                            .lse = lse,
                            .grad_out = rows,
                            .grad_query = results_[1].tensor(),
                            .grad_key = results_[2].tensor(),
                            .grad_value = results_[3].tensor()},
                           workspace_, deadline);
    }
  }

 private:
  static constexpr int64_t kSide = 2000, kRows = 2500, kHeads = 4, kDim = 128;

  const Kind kind_;
  Matrix a_, c_, rows_;
  std::vector<Matrix> results_;
  Matrix lse_;
  std::unique_ptr<AllGatherMatmul> gather_;
  std::unique_ptr<MatmulReduce> reduce_;
  std::unique_ptr<perseid::ContextAttention> attention_;
  Workspace workspace_;
};

class LongProducts : public Processes {
 protected:
  // The last rank is harmed early in an execution; the seconds of its end count from then on.
  void lose(Kind kind, int32_t size, int signal, std::chrono::milliseconds deadline) {
    SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << ", " << size
                                    << " ranks, signal " << signal);
    renew();
    start(size, [&](int32_t rank) {
      setenv("PERSEID_CPU_ISA", "scalar", 1);
      const Group group(place(rank, size));
      const Context context = Context::cpu(2);
      LongWork work(context, group, kind);
      group.barrier();
      ++board_->ready;
      const Ended end = ended([&] { work.execute(deadline); });
      Board::Rank& mine = board_->ranks[rank];
      mine.seconds = since(board_->killed_at);
      mine.status = end.status;
      end.sentence.copy(mine.sentence, sizeof mine.sentence - 1);
      mine.named = group.info().failed_rank;
      const Group survivors = group.shrink(300ms);
      const bool right = Products(context, survivors).once() && survivors.size() == size - 1;
      survivors.barrier();
      return right;
    });
    while (board_->ready < size) usleep(100);
    usleep(150'000);
    const int32_t victim = size - 1;
    board_->killed_at = now();
    kill(children_[static_cast<size_t>(victim)], signal);
    const pid_t stopped = children_.back();
    if (signal == SIGSTOP) children_.pop_back();
    const std::vector<int> codes = join();
    if (signal == SIGSTOP) {
      kill(stopped, SIGKILL);
      waitpid(stopped, nullptr, 0);
    }
    for (int32_t rank = 0; rank < victim; ++rank) {
      const Board::Rank& its = board_->ranks[rank];
      EXPECT_EQ(codes[static_cast<size_t>(rank)], 0) << "rank " << rank;
      EXPECT_EQ(its.status, signal == SIGSTOP ? PERSEID_TIMEOUT : PERSEID_PEER_LOST)
          << its.sentence;
      EXPECT_EQ(its.named, victim) << its.sentence;
      const double allowed =
          1 + (signal == SIGSTOP ? 1e-3 * static_cast<double>(deadline.count()) : 0.0);
      EXPECT_LT(its.seconds, allowed) << its.sentence;
      longest_ = std::max(longest_, its.seconds);
    }
  }
  void report() const { printf("the others know after at most %.0f ms\n", longest_ * 1e3); }

 private:
  double longest_ = 0;
};

TEST_F(LongProducts, EndWhereARankIsKilled) {
  for (const Kind kind :
       {Kind::kGather, Kind::kReduce, Kind::kUnfused, Kind::kForward, Kind::kBackward})
    lose(kind, 2, SIGKILL, 20s);
  report();
}

TEST_F(LongProducts, EndAtTheDeadlineWhereARankIsStopped) {
  for (const Kind kind : {Kind::kReduce, Kind::kBackward}) lose(kind, 2, SIGSTOP, 400ms);
  report();
}

// The others compute at their deadlines: none of them is silent.
TEST_F(LongProducts, NameTheRankThatIsStoppedAmongSeveral) {
  lose(Kind::kUnfused, 3, SIGSTOP, 400ms);
}

}  // namespace
