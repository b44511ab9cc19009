// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What goes through memory of the hosts between GPUs of several hosts, with a fake driver, whose
// folder must be in LD_LIBRARY_PATH, as ctest sets it. gpu_collective_test has real GPUs.
#include "host_ranks.hpp"

namespace {

using namespace host_ranks;

class HostStaging : public HostRanks {
 protected:
  void enter(int32_t rank) override {
    HostRanks::enter(rank);
    setenv("PERSEID_TRANSPORT", "sockets", 1);
  }
};

TEST_F(HostStaging, BringsShardsAndPartsToTheirRanks) {
  for (const int32_t size : {2, 3, 5}) {
    start(size, [&](int32_t rank) {
      const Member member(rank, size);
      bool right = &transport_of(*member.device, *member.group) == &kHostStaging;
      for (const int64_t outer : {1, 3})
        right = right && gathers(member, outer) && reduces(member, outer);
      return right;
    });
    EXPECT_EQ(join(), std::vector<int>(static_cast<size_t>(size), 0));
  }
}

// Rank 1 dies, or does nothing, while rank 0 waits for its shard.
TEST_F(HostStaging, NamesARankThatSendsNothing) {
  for (const bool dies : {false, true}) {
    start(2, [&](int32_t rank) {
      const Member member(rank, 2);
      Group& group = *member.group;
      const Operation making("plan", kDeadline);
      const Shards shards = shards_of(2, 1);
      const ShardChunks chunks(shards, 2, 2);
      std::unique_ptr<GatherTransport> transport;
      if (!kHostStaging.make_gather({group, making, *member.device}, shards, chunks, &transport)
               .ok())
        return false;
      if (rank == 1) {
        std::this_thread::sleep_for(dies ? 200ms : 1500ms);
        if (dies) kill(getpid(), SIGKILL);
        return true;
      }
      const Operation operation("all-gather", 500'000'000);
      std::vector<SentPart> parts;
      const Tensor own = shards.view(transport->gathered(), 0, shards.size(0));
      cut_shard(shards, chunks, 0, transport->gathered(), own, &parts);
      const auto start = Clock::now();
      const Turn turn(group, operation);
      perseid_wait_record record{};
      const Status status = transport->send(operation, {1, nullptr, &record}, parts);
      fprintf(stderr, "%s\n", status.sentence().c_str());
      return status.code() == (dies ? PERSEID_PEER_LOST : PERSEID_TIMEOUT) && group.failed() == 1 &&
             record.status == status.code() && record.rank == 1 && record.chunk >= 2 &&
             Clock::now() - start < 1300ms;
    });
    EXPECT_EQ(join(), (std::vector<int>{0, dies ? -SIGKILL : 0})) << dies;
  }
}

}  // namespace
