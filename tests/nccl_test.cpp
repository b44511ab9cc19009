// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What goes through NCCL between GPUs of several hosts, with a fake NCCL and a fake driver, whose
// folder must be in LD_LIBRARY_PATH, as ctest sets it: where and when shards arrive, how ranks
// choose, and what happens where one refuses, is silent or dies. gpu_collective_process_test has
// the real ones.
#include "collective/nccl.hpp"
#include <filesystem>
#include <fstream>

#include "collective/gpu_rank.hpp"
#include "nccl_ranks.hpp"

namespace {

using namespace host_ranks;

class Nccl : public NcclRanks {};

TEST_F(Nccl, BringsShardsAndPartsToTheirRanks) {
  for (const int32_t size : {2, 3}) {
    start(size, [&](int32_t rank) {
      const Member member(rank, size);
      bool right = agree(member).ok() && carries(member);
      // A later plan does not connect again.
      right = right && agree(member).ok() && carries(member);
      for (const int64_t outer : {1, 3})
        right = right && gathers(member, outer) && gathers_scales(member, outer) &&
                reduces(member, outer);
      return right;
    });
    EXPECT_EQ(join(), std::vector<int>(static_cast<size_t>(size), 0));
  }
}

TEST_F(Nccl, IsLeftUnlessItIsAskedFor) {
  unsetenv("PERSEID_TRANSPORT");
  start(3, [&](int32_t rank) {
    const Member member(rank, 3);
    return agree(member).ok() && !carries(member) && gathers(member, 3) && reduces(member, 1);
  });
  EXPECT_EQ(join(), std::vector<int>(3, 0));
}

// All ranks choose the same.
TEST_F(Nccl, IsRefusedOnAllRanksWhereOneCannot) {
  for (const auto& [name, value] : {std::pair{"PERSEID_TRANSPORT", "sockets"},
                                    {"PERSEID_TRANSPORT", "mpi"},
                                    {"FAKE_NCCL", "refuse"}}) {
    start(3, [&](int32_t rank) {
      const Member member(rank, 3);
      if (rank == 1) setenv(name, value, 1);
      const Status status = agree(member);
      const bool told = name == std::string_view("FAKE_NCCL") ||
                        status.sentence().find("not all ranks can use NCCL") != std::string::npos;
      return !status.ok() && told && !carries(member);
    });
    EXPECT_EQ(join(), std::vector<int>(3, 0)) << name << "=" << value;
  }
}

// The kernel is there before the data is, and finds each chunk behind its word.
TEST_F(Nccl, BringsChunksInTheOrderOfTheProductWordsBehindThem) {
  start(4, [&](int32_t rank) {
    const Member member(rank, 4);
    if (!agree(member).ok()) return false;
    setenv("FAKE_NCCL", "slow", 1);
    for (const int64_t outer : {1, 3}) {
      Gathering gathering(member, outer);
      for (uint32_t epoch = 1; epoch <= 2; ++epoch) {
        std::atomic<bool> right{true};
        const Operation operation("all-gather", kDeadline);
        const int64_t count = gathering.chunks().count();
        const uint32_t* const words = gathering.transport().signals();
        const auto has_come = [&](int64_t visit) {
          return cpu::load_acquire(words + gathering.visited(visit)) == epoch;
        };
        const Status status = gathering.execute(operation, epoch, [&] {
          for (int64_t visit = 0; visit < count;) {
            // What comes later is not there before.
            for (int64_t later = count; --later > visit;)
              if (has_come(later) && !has_come(visit)) right = false;
            if (!has_come(visit)) continue;
            if (!gathering.is_right(gathering.visited(visit), epoch)) right = false;
            ++visit;
          }
        });
        const bool early = !has_come(count - 1);
        if (!status.ok() || !early || !ended(member) || !right) {
          fprintf(stderr, "rank %d: %s%s%s\n", rank, status.sentence().c_str(),
                  early ? "" : "waited", right ? "" : "wrong");
          return false;
        }
      }
    }
    return true;
  });
  EXPECT_EQ(join(), std::vector<int>(4, 0));
}

// Chunks leave when they are signalled, and no earlier.
TEST_F(Nccl, SendsPartsAsTheyAreComputed) {
  start(3, [&](int32_t rank) {
    const Member member(rank, 3);
    if (!agree(member).ok()) return false;
    const Operation operation("reduce-scatter", kDeadline);
    std::atomic<bool> right{true};
    for (const int64_t outer : {1, 3}) {
      Reducing reducing(member, outer);
      for (uint32_t epoch = 1; epoch <= 2; ++epoch) {
        const Status status = reducing.execute(
            operation, epoch,
            [](int64_t) {
              usleep(5000);
              return true;
            },
            &right);
        if (!status.ok() || !ended(member)) return false;
      }
    }
    return right.load();
  });
  EXPECT_EQ(join(), std::vector<int>(3, 0));
}

// The data of an execution stays until its kernels have read it.
TEST_F(Nccl, QueuesExecutionsBehindOneAnother) {
  start(3, [&](int32_t rank) {
    const Member member(rank, 3);
    if (!agree(member).ok()) return false;
    Gathering gathering(member, 1), other(member, 3);
    Reducing reducing(member, 1);
    std::atomic<bool> right{true};
    Status status;
    // On two streams in turn.
    int second = 0;
    void* stream = nullptr;
    const auto next = [&] { return stream = stream == nullptr ? &second : nullptr; };
    for (uint32_t epoch = 1; status.ok() && epoch <= 6; ++epoch) {
      for (Gathering* each : {&gathering, &other}) {
        if (!status.ok()) break;
        const auto check = [=, &right] {
          for (int64_t chunk = 0; chunk < each->chunks().count(); ++chunk)
            while (!epoch_reached(cpu::load_acquire(each->transport().signals() + chunk), epoch))
              usleep(20);
          usleep(2000);
          for (int64_t chunk = 0; chunk < each->chunks().count(); ++chunk)
            if (!each->is_right(chunk, epoch)) right = false;
        };
        status = each->execute(Operation("all-gather", kDeadline), epoch, check, next());
      }
      if (status.ok())
        status = reducing.execute(
            Operation("reduce-scatter", kDeadline), epoch, [](int64_t) { return true; }, &right,
            next());
    }
    if (status.ok()) status = cuda::synchronize(*member.device->gpu, &second);
    return status.ok() && ended(member) && right;
  });
  EXPECT_EQ(join(), std::vector<int>(3, 0));
}

// Of one plan on two streams in turn, whose kernels are slow: what they read is not overwritten.
TEST_F(Nccl, QueuesExecutionsOfTwoStreams) {
  start(2, [&](int32_t rank) {
    const Member member(rank, 2);
    if (!agree(member).ok()) return false;
    Gathering gathering(member, 1);
    std::atomic<bool> right{true};
    int second = 0;
    Status status;
    for (uint32_t epoch = 1; status.ok() && epoch <= 6; ++epoch)
      status = gathering.execute(
          Operation("all-gather", kDeadline), epoch,
          [&, epoch] {
            const int64_t count = gathering.chunks().count();
            const uint32_t* const words = gathering.transport().signals();
            for (int64_t chunk = 0; chunk < count; ++chunk)
              while (!epoch_reached(cpu::load_acquire(words + chunk), epoch)) usleep(20);
            usleep(5000);
            for (int64_t chunk = 0; chunk < count; ++chunk)
              if (!gathering.is_right(chunk, epoch)) right = false;
          },
          epoch % 2 == 0 ? &second : nullptr);
    if (status.ok()) status = cuda::synchronize(*member.device->gpu, &second);
    return status.ok() && ended(member) && right;
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

// A kernel of NCCL takes milliseconds to find that it is aborted.
TEST_F(Nccl, QueuesFewExchanges) {
  start(2, [&](int32_t rank) {
    const Member member(rank, 2);
    if (!agree(member).ok()) return false;
    setenv("FAKE_NCCL", "slow", 1);
    Gathering gathering(member, 1);
    Status status;
    for (uint32_t epoch = 1; status.ok() && epoch <= 15; ++epoch)
      status = gathering.execute(Operation("all-gather", kDeadline), epoch, [] {});
    const int most = reinterpret_cast<int (*)()>(
        dlsym(dlopen("libnccl.so.2", RTLD_NOW), "fake_nccl_most_queued"))();
    if (most != NcclLinks::kMostQueued) fprintf(stderr, "%d were queued\n", most);
    return status.ok() && ended(member) && most == NcclLinks::kMostQueued;
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

// Work of the caller before the executions may wait for what the caller does after them.
TEST_F(Nccl, QueuesExchangesThatTheStreamHoldsUp) {
  start(2, [&](int32_t rank) {
    const Member member(rank, 2);
    if (!agree(member).ok()) return false;
    Gathering gathering(member, 1);
    std::atomic<bool> go{rank == 1};
    launch(nullptr, [&] {
      while (!go) usleep(100);
    });
    Status status;
    for (uint32_t epoch = 1; status.ok() && epoch <= 15; ++epoch)
      status = gathering.execute(Operation("all-gather", kDeadline), epoch, [] {});
    go = true;
    status = outcome_of(member, std::move(status));
    if (!status.ok()) fprintf(stderr, "rank %d: %s\n", rank, status.sentence().c_str());
    return status.ok();
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

// ---- Failures ----

// Kernels, the queue and NCCL itself wait for a rank whose data does not come.
TEST_F(Nccl, EndsAtTheDeadlineWhereARankSendsNothing) {
  for (const bool sum : {false, true}) {
    start(2, [&](int32_t rank) {
      if (rank == 1) setenv("FAKE_NCCL", "silent", 1);
      const Member member(rank, 2);
      if (!agree(member).ok() || !carries(member)) return false;
      Gathering gathering(member, 1);
      Reducing reducing(member, 1);
      const auto start = Clock::now();
      const Operation operation("work", rank == 0 ? 500'000'000 : kDeadline);
      std::atomic<bool> right{true};
      Status status;
      // Several are in flight.
      for (uint32_t epoch = 1; status.ok() && epoch <= 3; ++epoch)
        status = sum ? reducing.execute(
                           operation, epoch, [](int64_t) { return true; }, &right)
                     : gathering.execute(operation, epoch, [&] { await(gathering.arrival(), 2); });
      status = outcome_of(member, std::move(status));
      if (rank == 0 && (status.code() != PERSEID_TIMEOUT || member.group->failed() != 1))
        fprintf(stderr, "rank %d: %s\n", rank, status.sentence().c_str());
      return status.code() == PERSEID_TIMEOUT && member.group->failed() == 1 &&
             Clock::now() - start < 2s;
    });
    EXPECT_EQ(join(), std::vector<int>(2, 0)) << sum;
  }
}

// A queue that waits for the own product is released, and sends nothing of what it waited for.
TEST_F(Nccl, EndsAtTheDeadlineWhereNothingIsComputed) {
  start(2, [&](int32_t rank) {
    const Member member(rank, 2);
    if (!agree(member).ok()) return false;
    Reducing reducing(member, 1);
    constexpr uint32_t kNothing = 0xdeadbeef;
    if (rank == 0) reducing.fill(kNothing);
    std::atomic<bool> right{true};
    const auto start = Clock::now();
    const Operation operation("reduce-scatter", rank == 0 ? 300'000'000 : kDeadline);
    Status status = reducing.execute(
        operation, 1, [&](int64_t) { return rank == 1; }, &right);
    status = outcome_of(member, std::move(status));
    return status.code() == PERSEID_TIMEOUT && right && Clock::now() - start < 2s &&
           (rank == 0 || !reducing.has(kNothing, 0));
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

// Not rank 1, whose shard is empty: the others would need nothing of it. The survivors go on, also
// where a call has failed, and no synchronisation has returned what became of those before.
TEST_F(Nccl, NamesARankThatDies) {
  constexpr int32_t kVictim = 2;
  for (const auto& [within, synchronizes] : {std::pair{false, true}, {true, true}, {true, false}}) {
    start(3, [&](int32_t rank) {
      if (rank == kVictim && within) setenv("FAKE_NCCL", "silent", 1);
      const Member member(rank, 3);
      if (!agree(member).ok() || !carries(member)) return false;
      auto gathering = std::make_unique<Gathering>(member, 1);
      if (rank == kVictim) {
        std::thread([&] {
          std::this_thread::sleep_for(200ms);
          kill(getpid(), SIGKILL);
        }).detach();
        if (!within) std::this_thread::sleep_for(1s);
      }
      const auto start = Clock::now();
      const Operation operation("all-gather", kDeadline);
      Status status;
      for (uint32_t epoch = 1; status.ok() && (epoch <= 3 || !synchronizes); ++epoch) {
        // The kernel may run while the pointer is reset.
        status = gathering->execute(operation, epoch, [plan = gathering.get()] {
          for (int64_t i = 0; i < plan->chunks().count(); ++i) await(plan->arrival(), i);
        });
        if (!synchronizes) usleep(10000);
      }
      if (synchronizes) status = outcome_of(member, std::move(status));
      if (status.code() != PERSEID_PEER_LOST || member.group->failed() != kVictim)
        fprintf(stderr, "rank %d: %s\n", rank, status.sentence().c_str());
      const bool soon = Clock::now() - start < 1500ms;
      gathering.reset();
      return status.code() == PERSEID_PEER_LOST && member.group->failed() == kVictim && soon &&
             goes_on(member, 2);
    });
    EXPECT_EQ(join(), (std::vector<int>{0, 0, -SIGKILL})) << within << " " << synchronizes;
  }
}

// Rank 2 cannot send to the stopped one, and so receives nothing of rank 0 either. It alone comes
// to its deadline.
TEST_F(Nccl, NamesARankThatIsStopped) {
  start(3, [&](int32_t rank) {
    if (rank == 1) setenv("FAKE_NCCL", "hung", 1);
    const Member member(rank, 3);
    if (!agree(member).ok()) return false;
    Gathering gathering(member, 1, 1 << 16);
    const auto start = Clock::now();
    Status status =
        gathering.execute(Operation("all-gather", rank == 2 ? 500'000'000 : kDeadline), 1, [&] {
          for (int64_t i = 0; i < gathering.chunks().count(); ++i) await(gathering.arrival(), i);
        });
    if (rank == 1) {
      usleep(100000);
      raise(SIGSTOP);
    }
    status = outcome_of(member, std::move(status));
    if (member.group->failed() != 1) fprintf(stderr, "%s\n", status.sentence().c_str());
    return status.code() == PERSEID_TIMEOUT && member.group->failed() == 1 &&
           Clock::now() - start < 2s;
  });
  for (const size_t rank : {0u, 2u}) {
    int status = 0;
    ASSERT_EQ(waitpid(children_[rank], &status, 0), children_[rank]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << rank;
  }
  kill(children_[1], SIGKILL);
  waitpid(children_[1], nullptr, 0);
  children_.clear();
}

TEST_F(Nccl, LeavesAnAbortThatDoesNotReturn) {
  start(2, [&](int32_t rank) {
    std::optional<Member> member(std::in_place, rank, 2);
    if (!agree(*member).ok()) return false;
    setenv("FAKE_NCCL", "stuck", 1);
    const auto start = Clock::now();
    member.reset();
    return Clock::now() - start < 4s;
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

// Whatever call fails on one rank, the other one ends too.
TEST_F(Nccl, EndsWhereACallFails) {
  for (const std::string call :
       {"nccl 2", "nccl 3", "cuStreamWriteValue32_v2", "cuStreamBatchMemOp_v2", "cuEventRecord",
        "cuStreamWaitEvent", "cuStreamWaitValue32_v2", "cuMemcpyAsync"}) {
    start(2, [&](int32_t rank) {
      const Member member(rank, 2);
      if (!agree(member).ok()) return false;
      Gathering gathering(member, 1);
      Reducing reducing(member, 1);
      if (rank == 1 && call.starts_with("nccl")) {
        setenv("FAKE_NCCL", ("fail" + call.substr(4)).c_str(), 1);
      } else if (rank == 1) {
        fake<decltype(&fake_fail)>("fake_fail")(call.c_str(), 700, 1, 0);
      }
      const auto start = Clock::now();
      const Operation operation("work", 300'000'000);
      std::atomic<bool> right{true};
      Status status = gathering.execute(operation, 1, [&] {
        for (int64_t i = 0; i < gathering.chunks().count(); ++i) await(gathering.arrival(), i);
      });
      if (status.ok())
        status = reducing.execute(
            operation, 1, [](int64_t) { return true; }, &right);
      status = outcome_of(member, std::move(status));
      const bool expected = !status.ok();
      if (!expected) fprintf(stderr, "rank %d: %s\n", rank, status.sentence().c_str());
      return expected && Clock::now() - start < 3s;
    });
    EXPECT_EQ(join(), std::vector<int>(2, 0)) << call;
  }
}

}  // namespace
