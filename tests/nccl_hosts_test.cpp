// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Groups in which some ranks share a host and others do not, with the fake NCCL and driver: what
// crosses hosts goes by NCCL and nothing else does, and both ways end where a rank is missing.
#include <optional>

#include "nccl_ranks.hpp"

namespace {

using namespace host_ranks;

class NcclHosts : public NcclRanks {
 protected:
  // hosts_[r]: that of rank r.
  void enter(int32_t rank) override {
    NcclRanks::enter(rank);
    setenv("PERSEID_HOSTID", std::string(1, hosts_[static_cast<size_t>(rank)]).c_str(), 1);
  }
  int32_t size() const { return static_cast<int32_t>(hosts_.size()); }
  // A bit for each rank of another host, or of all others.
  uint64_t others(int32_t rank, bool all = false) const {
    uint64_t mask = 0;
    for (int32_t other = 0; other < size(); ++other)
      if (other != rank &&
          (all || hosts_[static_cast<size_t>(other)] != hosts_[static_cast<size_t>(rank)]))
        mask |= uint64_t{1} << other;
    return mask;
  }
  static uint64_t exchanged() {
    return reinterpret_cast<uint64_t (*)()>(
        dlsym(dlopen("libnccl.so.2", RTLD_NOW), "fake_nccl_peers"))();
  }

  std::string hosts_;
};

TEST_F(NcclHosts, SendByNcclWhatCrossesAlone) {
  for (const char* const hosts : {"aabb", "abab", "aaab", "abc", "aa"}) {
    hosts_ = hosts;
    start(size(), [&](int32_t rank) {
      const Member member(rank, size());
      bool right = agree(member).ok() && carries(member);
      for (const int64_t outer : {1, 3})
        right = right && gathers(member, outer) && gathers_scales(member, outer) &&
                reduces(member, outer) && executes(member, outer);
      if (exchanged() != others(rank))
        fprintf(stderr, "rank %d exchanges with %lx\n", rank, exchanged());
      return right && exchanged() == others(rank);
    });
    EXPECT_EQ(join(), std::vector<int>(hosts_.size(), 0)) << hosts;
  }
}

// Then all of this host use NCCL.
TEST_F(NcclHosts, SendAllByNcclWhereAGpuSharesNoMemory) {
  hosts_ = "aabb";
  start(size(), [&](int32_t rank) {
    setenv("PERSEID_PEER_MEMORY", "vmm", 1);
    const Member member(rank, size());
    bool right = agree(member).ok();
    if (rank == 1) fake<decltype(&fake_fail)>("fake_fail")("cuMemCreate", 801, 1, 1);
    right = right && executes(member, 1) && executes(member, 3);
    return right && exchanged() == others(rank, rank < 2);
  });
  EXPECT_EQ(join(), std::vector<int>(4, 0));
}

// Rank 2 waits for rank 3 of its host, which does not come, and the others by NCCL.
TEST_F(NcclHosts, EndAtTheDeadlineWhereARankOfAHostIsSilent) {
  hosts_ = "aabb";
  for (const bool sum : {false, true}) {
    start(size(), [&](int32_t rank) {
      const Member member(rank, size());
      if (!agree(member).ok()) return false;
      Gathering gathering(member, 1);
      Reducing reducing(member, 1);
      const auto start = Clock::now();
      const Operation operation("work", 500'000'000);
      std::atomic<bool> right{true};
      Status status;
      if (rank == 3) {
        while (member.group->failed() < 0 && Clock::now() - start < 2s) usleep(1000);
        status = member.group->failure(operation);
      } else if (sum) {
        status = reducing.execute(
            operation, 1, [](int64_t) { return true; }, &right);
      } else {
        status = gathering.execute(operation, 1, [&] {
          for (int64_t i = 0; i < gathering.chunks().count(); ++i) await(gathering.arrival(), i);
        });
      }
      status = outcome_of(member, std::move(status));
      // It has no shard to sum, and may have sent what it computed.
      if (sum && rank == 1) return Clock::now() - start < 2s;
      if (member.group->failed() != 3)
        fprintf(stderr, "rank %d: %s\n", rank, status.sentence().c_str());
      return status.code() == PERSEID_TIMEOUT && member.group->failed() == 3 &&
             Clock::now() - start < 2s;
    });
    EXPECT_EQ(join(), std::vector<int>(4, 0)) << sum;
  }
}

// Whether the failure is returned by a synchronisation, or by an execution while others are in
// flight, whose own failures nobody asks for any more.
TEST_F(NcclHosts, GoOnWithoutARankThatDies) {
  hosts_ = "aabb";
  for (const auto& [victim, synchronizes] :
       {std::pair{1, true}, {2, true}, {1, false}, {2, false}}) {
    start(size(), [&](int32_t rank) {
      const Member member(rank, size());
      if (!agree(member).ok()) return false;
      auto gathering = std::make_unique<Gathering>(member, 1);
      auto reducing = std::make_unique<Reducing>(member, 1);
      if (rank == victim)
        std::thread([] {
          std::this_thread::sleep_for(100ms);
          kill(getpid(), SIGKILL);
        }).detach();
      const auto start = Clock::now();
      const Operation operation("work", kDeadline);
      std::atomic<bool> right{true};
      std::optional<perseid_arrival> arrival;
      Status status;
      for (uint32_t epoch = 1; status.ok(); ++epoch) {
        status = gathering->execute(operation, epoch, [&, epoch, plan = gathering.get()] {
          perseid_arrival own = arrival.value_or(plan->arrival());
          own.epoch = epoch;
          for (int64_t i = 0; i < plan->chunks().count(); ++i) await(own, i);
        });
        if (status.ok())
          status = reducing->execute(
              operation, epoch, [](int64_t) { return true; }, &right);
        if (synchronizes || !arrival) status = outcome_of(member, std::move(status));
        if (!arrival) arrival = gathering->arrival();
      }
      if (member.group->failed() != victim)
        fprintf(stderr, "rank %d: %s\n", rank, status.sentence().c_str());
      const bool soon = Clock::now() - start < 1500ms;
      gathering.reset();
      reducing.reset();
      return status.code() == PERSEID_PEER_LOST && member.group->failed() == victim && soon &&
             goes_on(member, 3);
    });
    std::vector<int> expected(4, 0);
    expected[static_cast<size_t>(victim)] = -SIGKILL;
    EXPECT_EQ(join(), expected) << victim << (synchronizes ? ", synchronized" : ", in flight");
  }
}

}  // namespace
