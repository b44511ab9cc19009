// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// GPUs of one host that write into each other's memory, with the fake driver, whose streams are
// threads: what waits for whom, and whom the others name where a rank is silent.
#include "nccl_ranks.hpp"

namespace {

using namespace host_ranks;

class CopyEngineRanks : public NcclRanks {
 protected:
  void SetUp() override { HostRanks::SetUp(); }
  void enter(int32_t rank) override {
    NcclRanks::enter(rank);
    unsetenv("PERSEID_SHARED_MEMORY");
  }
  // The kernel of an execution waits for all chunks.
  static std::function<void()> waits(const Gathering& gathering, uint32_t epoch) {
    return [&gathering, epoch] {
      perseid_arrival own = gathering.arrival();
      own.epoch = epoch;
      for (int64_t i = 0; i < gathering.chunks().count(); ++i) await(own, i);
    };
  }
};

TEST_F(CopyEngineRanks, BringShardsAndPartsToTheirRanks) {
  for (const int32_t size : {2, 3, 4}) {
    start(size, [&](int32_t rank) {
      const Member member(rank, size);
      return executes(member, 1) && executes(member, 3) && gathers(member, 3) &&
             gathers_scales(member, 3) && reduces(member, 1);
    });
    EXPECT_EQ(join(), std::vector<int>(static_cast<size_t>(size), 0)) << size;
  }
}

// Of one execution after the other, on two streams, one rank has a slow kernel, while the others
// and its own host go on.
TEST_F(CopyEngineRanks, WriteNothingThatAKernelStillReads) {
  start(3, [&](int32_t rank) {
    const Member member(rank, 3);
    Gathering gathering(member, 1);
    std::atomic<bool> right{true};
    int second = 0;
    Status status;
    for (uint32_t epoch = 1; status.ok() && epoch <= 6; ++epoch) {
      const auto kernel = [&, epoch] {
        waits(gathering, epoch)();
        if (static_cast<int32_t>(epoch % 3) == rank) usleep(20'000);
        for (int64_t chunk = 0; chunk < gathering.chunks().count(); ++chunk)
          if (!gathering.is_right(chunk, epoch)) right = false;
      };
      status = gathering.execute(Operation("all-gather", kDeadline), epoch, kernel,
                                 epoch % 2 == 0 ? &second : nullptr);
    }
    if (status.ok()) status = cuda::synchronize(*member.device->gpu, &second);
    return status.ok() && ended(member) && right;
  });
  EXPECT_EQ(join(), std::vector<int>(3, 0));
}

// Their signals are ahead of the epoch, also after 2^32 of them.
TEST_F(CopyEngineRanks, FindTheirOwnChunksAtAnyEpoch) {
  start(2, [&](int32_t rank) {
    const Member member(rank, 2);
    Gathering gathering(member, 1);
    const Operation operation("all-gather", 2'000'000'000);
    Status status;
    for (uint32_t i = 0, epoch = 1; status.ok() && i < 10; ++i, epoch += 0x1fffffff)
      status = gathering.execute(operation, epoch, waits(gathering, epoch));
    return outcome_of(member, std::move(status)).ok();
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

// What follows are exchanges. The next transport is made by all.
TEST_F(CopyEngineRanks, FailTogetherWhereOneCannotTakePart) {
  start(2, [&](int32_t rank) {
    const Member member(rank, 2);
    if (!gathers(member, 1)) return false;
    constexpr int kLaunchFailed = 719;
    if (rank == 1)
      fake<decltype(&fake_fail)>("fake_fail")("cuCtxPushCurrent_v2", kLaunchFailed, 1, 0);
    const Clock::time_point start = Clock::now();
    std::string failure;
    try {
      const Gathering refused(member, 1);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    const bool together = failure.starts_with("rank 1: ") && Clock::now() - start < 5s;
    if (!together) fprintf(stderr, "\"%s\"\n", failure.c_str());
    return together && gathers(member, 1);
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

// Longer than a time can be. A kernel waits a little longer than that.
TEST_F(CopyEngineRanks, WaitForEverWhereTheyMay) {
  start(2, [&](int32_t rank) {
    const Member member(rank, 2);
    Gathering gathering(member, 1);
    const Operation operation("all-gather", UINT64_MAX);
    if (rank == 1) usleep(200'000);
    const Status status = outcome_of(member, gathering.execute(operation, 1, waits(gathering, 1)));
    if (!status.ok()) fprintf(stderr, "rank %d: %s\n", rank, status.sentence().c_str());
    return status.ok() && gathering.arrival().deadline_ns > operation.deadline_ns &&
           operation.deadline_ns > uint64_t{1} << 61;
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

TEST_F(CopyEngineRanks, HaveOneGpuEach) {
  start(2, [&](int32_t rank) {
    setenv("FAKE_GPUS", "2", 1);
    Member member(rank, 2);
    if (!gathers(member, 1)) return false;
    std::shared_ptr<const dispatch::Device> other;
    Status status = dispatch::open_cuda(rank, {}, &other);
    if (!status.ok()) return false;
    GpuRank* own = nullptr;
    status = GpuRank::of(*member.group, Operation("plan", kDeadline), other->gpu, &own);
    return status.code() == PERSEID_UNSUPPORTED && status.sentence().starts_with("rank 1: ") &&
           own == nullptr && gathers(member, 1);
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

// A rank that has ended one operation gets the data of the next one before it begins that.
TEST_F(CopyEngineRanks, SendToOneThatHasNotBegun) {
  start(3, [&](int32_t rank) {
    const Member member(rank, 3);
    for (const int64_t outer : {1, 3}) {
      Gathering gathering(member, outer);
      const Operation operation("all-gather", kDeadline);
      Status status = gathering.execute(operation, 1, waits(gathering, 1));
      const Clock::time_point start = Clock::now();
      const auto come = [&](int32_t from) {
        for (int64_t chunk = 0; chunk < gathering.chunks().count(); ++chunk)
          if (gathering.chunks().owner(chunk) == from)
            while (status.ok() && cpu::load_acquire(gathering.transport().signals() + chunk) != 2)
              if (Clock::now() - start > 5s) return false;
        return true;
      };
      // Rank 1 begins after the data of the others has come.
      if (rank == 1 && !(come(0) && come(2))) return false;
      if (status.ok()) status = gathering.execute(operation, 2, waits(gathering, 2));
      if (!status.ok() || !ended(member) || !have_looked(*member.group)) return false;
    }
    return true;
  });
  EXPECT_EQ(join(), std::vector<int>(3, 0));
}

// The stream waits for work of the caller before the first of more operations than may be in
// flight.
TEST_F(CopyEngineRanks, WaitForRoomUntilTheDeadline) {
  start(1, [&](int32_t) {
    const Member member(0, 1);
    Gathering gathering(member, 1);
    std::atomic<bool> go{false};
    launch(nullptr, [&] {
      while (!go) usleep(100);
    });
    Status status;
    for (uint32_t epoch = 1; status.ok() && epoch <= 256; ++epoch)
      status = gathering.execute(Operation("all-gather", kDeadline), epoch, [] {});
    const Clock::time_point start = Clock::now();
    bool refused = status.ok();
    for (int repeat = 0; repeat < 2; ++repeat) {
      status = gathering.execute(Operation("all-gather", 300'000'000), 257, [] {});
      refused = refused && status.code() == PERSEID_TIMEOUT;
      if (!refused) fprintf(stderr, "got: %s\n", status.sentence().c_str());
    }
    const auto waited = Clock::now() - start;
    go = true;
    return refused && waited > 250ms && waited < 2s && ended(member);
  });
  EXPECT_EQ(join(), std::vector<int>(1, 0));
}

// One that does not begin, and one whose operation does not end: the others wait for its word.
// Rank 1 has no shard, so that they miss those of others that wait for it.
TEST_F(CopyEngineRanks, NameTheOneThatIsSilent) {
  for (const auto& [silent, begins] : {std::pair{2, false}, {2, true}, {1, false}}) {
    start(3, [&, silent = silent, begins = begins](int32_t rank) {
      const Member member(rank, 3);
      Gathering gathering(member, 1);
      const Clock::time_point start = Clock::now();
      const Operation operation("all-gather", 500'000'000);
      Status status = gathering.execute(operation, 1, [&, kernel = waits(gathering, 1)] {
        kernel();
        if (rank == silent && begins) usleep(1'500'000);
      });
      if (rank == silent) {
        while (member.group->failed() < 0 && Clock::now() - start < 2s) usleep(1000);
        status = member.group->failure(operation);
      } else {
        for (uint32_t epoch = 2; status.ok() && epoch <= 4; ++epoch)
          status = gathering.execute(operation, epoch, waits(gathering, epoch));
      }
      status = outcome_of(member, std::move(status));
      const bool named = status.code() == PERSEID_TIMEOUT && member.group->failed() == silent;
      if (!named) fprintf(stderr, "rank %d: %s\n", rank, status.sentence().c_str());
      return named && Clock::now() - start < 2s;
    });
    EXPECT_EQ(join(), std::vector<int>(3, 0)) << silent << begins;
  }
}

// A kernel reports the end of its wait before the thread has looked, as where the process was
// stopped, and the plan goes before the stream is synchronized.
TEST_F(CopyEngineRanks, ReadReportsBeforeThePlanGoes) {
  start(2, [&](int32_t rank) {
    const Member member(rank, 2);
    auto gathering = std::make_unique<Gathering>(member, 1);
    const Operation operation("all-gather", kDeadline);
    std::atomic<perseid_wait_record*> report{nullptr};
    Status status = gathering->execute(operation, 1, [&, arrive = waits(*gathering, 1)] {
      while (report == nullptr) usleep(100);
      arrive();
      if (rank == 0) __atomic_store_n(&report.load()->status, PERSEID_TIMEOUT, __ATOMIC_RELEASE);
    });
    report = gathering->arrival().record;
    if (!have_looked(*member.group)) return false;
    gathering.reset();
    const bool known = rank == 1 || member.group->failed() >= 0;
    status = outcome_of(member, std::move(status));
    return known && (rank == 1 || status.code() == PERSEID_TIMEOUT);
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

TEST_F(CopyEngineRanks, EndWithoutOneThatDies) {
  start(3, [&](int32_t rank) {
    const Member member(rank, 3);
    auto gathering = std::make_unique<Gathering>(member, 1);
    const Operation operation("all-gather", kDeadline);
    Status status = outcome_of(member, gathering->execute(operation, 1, waits(*gathering, 1)));
    if (rank == 1) raise(SIGKILL);
    const Clock::time_point start = Clock::now();
    for (uint32_t epoch = 2; status.ok() && epoch <= 4; ++epoch)
      status = gathering->execute(operation, epoch, waits(*gathering, epoch));
    status = outcome_of(member, std::move(status));
    const bool told = status.code() == PERSEID_PEER_LOST && member.group->failed() == 1;
    if (!told) fprintf(stderr, "rank %d: %s\n", rank, status.sentence().c_str());
    gathering.reset();
    return told && Clock::now() - start < 1500ms;
  });
  EXPECT_EQ(join(), (std::vector<int>{0, -SIGKILL, 0}));
}

}  // namespace
