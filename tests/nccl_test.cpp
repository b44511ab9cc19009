// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What goes through NCCL between GPUs of several hosts, with a fake NCCL and a fake driver, whose
// folder must be in LD_LIBRARY_PATH, as ctest sets it: where shards arrive, how ranks choose, and
// what happens where one refuses, is silent or dies. gpu_collective_process_test has the real ones.
#include "collective/nccl.hpp"
#include "host_ranks.hpp"

namespace {

using namespace host_ranks;

class Nccl : public HostRanks {
 protected:
  void SetUp() override {
    HostRanks::SetUp();
    setenv("PERSEID_TRANSPORT", "nccl", 1);
  }
  void TearDown() override {
    unsetenv("PERSEID_TRANSPORT");
    HostRanks::TearDown();
  }
  static Status agree(const Member& member, uint64_t deadline_ns = kDeadline) {
    return NcclLinks::agree(*member.group, Operation("plan", deadline_ns), member.device->gpu);
  }
  static bool carries(const Member& member) { return NcclLinks::carry(*member.group); }
};

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

// Within an exchange, when all have come to it.
TEST_F(Nccl, EndsAtTheDeadlineWhereARankSendsNothing) {
  start(2, [&](int32_t rank) {
    if (rank == 1) setenv("FAKE_NCCL", "silent", 1);
    const Member member(rank, 2);
    Group& group = *member.group;
    if (!agree(member).ok() || !carries(member)) return false;
    std::vector<std::byte> in(1 << 16), out(in.size());
    const NcclLinks::Part part{1 - rank, in.data(), in.size(), out.data(), out.size()};
    const Operation operation("all-gather", rank == 0 ? 500'000'000 : kDeadline);
    const auto start = Clock::now();
    const Turn turn(group, operation);
    const Status status = group.nccl()->exchange(operation, {&part, 1}, nullptr);
    if (rank == 0)
      return status.code() == PERSEID_TIMEOUT && group.failed() == 1 && Clock::now() - start < 2s;
    return Clock::now() - start < 3s;
  });
  EXPECT_EQ(join(), std::vector<int>(2, 0));
}

TEST_F(Nccl, NamesARankThatDies) {
  for (const bool within : {false, true}) {
    start(2, [&](int32_t rank) {
      if (rank == 1 && within) setenv("FAKE_NCCL", "silent", 1);
      const Member member(rank, 2);
      Group& group = *member.group;
      if (!agree(member).ok() || !carries(member)) return false;
      std::vector<std::byte> in(1 << 16), out(in.size());
      const NcclLinks::Part part{1 - rank, in.data(), in.size(), out.data(), out.size()};
      const Operation operation("all-gather", kDeadline);
      if (rank == 1) {
        std::thread([&] {
          std::this_thread::sleep_for(200ms);
          kill(getpid(), SIGKILL);
        }).detach();
        if (!within) std::this_thread::sleep_for(1s);
      }
      const auto start = Clock::now();
      const Turn turn(group, operation);
      const Status status = group.nccl()->exchange(operation, {&part, 1}, nullptr);
      if (status.code() != PERSEID_PEER_LOST || group.failed() != 1)
        fprintf(stderr, "%s\n", status.sentence().c_str());
      // The survivor goes on alone.
      std::shared_ptr<Group> alone;
      const bool shrunk = group.shrink(Operation("shrink", 200'000'000), &alone).ok();
      return status.code() == PERSEID_PEER_LOST && group.failed() == 1 &&
             Clock::now() - start < 1500ms && shrunk &&
             NcclLinks::agree(*alone, operation, member.device->gpu).ok();
    });
    EXPECT_EQ(join(), (std::vector<int>{0, -SIGKILL})) << within;
  }
}

}  // namespace
