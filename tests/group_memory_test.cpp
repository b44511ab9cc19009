// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Memory of GPUs that the ranks of a group share, without GPUs: processes and threads with the fake
// driver, whose folder must be in LD_LIBRARY_PATH, as ctest sets it. gpu_group_memory_test has real
// GPUs.
#include <dlfcn.h>

#include <cstring>
#include <thread>

#include "fake_driver.hpp"
#include "perseid/collective.hpp"
#include "rank_processes.hpp"

namespace {

using perseid::Context;
using perseid::Group;
using perseid::GroupMemory;
using namespace std::chrono_literals;

constexpr int32_t kRanks = 3;

struct Fake {
  decltype(&fake_fail) fail = nullptr;
  decltype(&fake_alive) alive = nullptr;

  Fake() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    fail = reinterpret_cast<decltype(fail)>(dlsym(library, "fake_fail"));
    alive = reinterpret_cast<decltype(alive)>(dlsym(library, "fake_alive"));
  }
};

class GroupMemories : public collective_tools::RankProcesses {
 protected:
  void SetUp() override {
    if (fake_.alive == nullptr) GTEST_SKIP() << "libcuda.so.1 is not the fake driver";
  }
  void enter(int32_t) override { alarm(60); }  // instead of waiting for ever

  // body(group) in a process for each rank.
  void on_ranks(const std::function<bool(const Group&)>& body) {
    const std::string rendezvous =
        "unix:" + testing::TempDir() + "memory" + std::to_string(groups_++);
    start(kRanks, [&](int32_t rank) {
      return body(Group({.rank = rank,
                         .size = kRanks,
                         .rendezvous = rendezvous,
                         .token = "a secret",
                         .deadline = 20s}));
    });
    EXPECT_EQ(join(), std::vector<int>(kRanks, 0));
  }
  static std::string sentence_of(const std::function<void()>& body) {
    try {
      body();
    } catch (const perseid::Error& error) {
      return error.what();
    }
    return "";
  }
  static bool holds(const std::string& sentence, const char* part) {
    if (sentence.find(part) != std::string::npos) return true;
    fprintf(stderr, "'%s' lacks '%s'\n", sentence.c_str(), part);
    return false;
  }

  const Fake fake_;
  int groups_ = 0;
};

size_t bytes_of(int32_t rank) { return rank == 0 ? 0 : rank == 1 ? 5 : 20'000'003; }

// Zeros at first; then every rank writes a byte into the memory of each, where that has one.
bool exchanges(const Context& context, const Group& group) {
  const int32_t own = group.rank();
  const GroupMemory memory(context, group, bytes_of(own));
  bool right = true;
  const auto* mine = static_cast<const unsigned char*>(memory.data());
  for (size_t i = 0; i < bytes_of(own); ++i) right = right && mine[i] == 0;
  group.barrier();
  for (int32_t rank = 0; rank < kRanks; ++rank)
    if (bytes_of(rank) > static_cast<size_t>(own))
      static_cast<unsigned char*>(
          memory.peer(rank))[bytes_of(rank) - 1 - static_cast<size_t>(own)] =
          static_cast<unsigned char>(10 + own);
  group.barrier();
  for (int32_t rank = 0; rank < kRanks; ++rank)
    if (bytes_of(own) > static_cast<size_t>(rank))
      right = right && mine[bytes_of(own) - 1 - static_cast<size_t>(rank)] == 10 + rank;
  return right && memory.peer(own) == memory.data();
}

TEST_F(GroupMemories, EveryRankReachesThatOfAll) {
  on_ranks([&](const Group& group) {
    const Context context = Context::cuda(0);
    const int64_t before = fake_.alive();
    bool right = exchanges(context, group) && exchanges(context, group);
    return right && fake_.alive() == before;
  });
}

TEST_F(GroupMemories, OfThreadsToo) {
  const std::vector<Group> groups = Group::threads(kRanks);
  std::vector<std::thread> threads;
  std::vector<int> right(kRanks);
  for (int32_t rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      right[static_cast<size_t>(rank)] =
          exchanges(Context::cuda(0), groups[static_cast<size_t>(rank)]);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, std::vector<int>(kRanks, 1));
}

// What a rank has freed, the others still have; a rank frees the first of two before the second or
// after it, or leaves both to the group.
TEST_F(GroupMemories, IsFreedInAnyOrder) {
  on_ranks([&](const Group& group) {
    const Context context = Context::cuda(0);
    const int64_t before = fake_.alive();
    bool right = true;
    {
      auto first = std::make_unique<GroupMemory>(context, group, 100);
      auto second = std::make_unique<GroupMemory>(context, group, 100);
      std::memset(second->peer((group.rank() + 1) % kRanks), 7, 100);
      group.barrier();
      if (group.rank() == 0) first.reset(), second.reset();
      if (group.rank() == 1) second.reset(), first.reset();
      group.barrier();
      if (group.rank() == 2) {
        for (int32_t rank = 0; rank < kRanks; ++rank)
          right = right && static_cast<const char*>(second->peer(rank))[99] == 7;
        std::memset(second->peer(0), 8, 100);  // where nobody looks
      }
      right = right && exchanges(context, group);
    }
    return right && fake_.alive() == before;
  });
  on_ranks([&](const Group& group) {
    const Context context = Context::cuda(0);
    void* data = nullptr;
    return perseid_group_memory_allocate_on(context.get(), group.get(), 9, 0, &data) == PERSEID_OK;
  });
}

// By all ranks, with the same sentence; the group goes on.
TEST_F(GroupMemories, IsRefusedOnAllRanks) {
  on_ranks([&](const Group& group) {
    const Context gpu = Context::cuda(0), cpu = Context::cpu(1);
    const int64_t before = fake_.alive();
    const auto sentence = [&](const Context& context) {
      return sentence_of([&] { const GroupMemory memory(context, group, 4); });
    };
    bool right = holds(sentence(group.rank() == 1 ? cpu : gpu),
                       "rank 1 allocates memory of the host and rank 0 of its GPU");
    for (const char* call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemcpyAsync",
                             "cuMemExportToShareableHandle", "cuMemAddressReserve"}) {
      if (group.rank() == 1) fake_.fail(call, 2, 1, 0);
      right = right && holds(sentence(gpu), "rank 1");
      fake_.fail("", 0, 0, 0);
    }
    right = right && fake_.alive() == before && exchanges(gpu, group) && exchanges(cpu, group);
    const GroupMemory memory(gpu, group, 4);
    return right && holds(sentence_of([&] { memory.peer(kRanks); }), "rank is 3, expected 0 to 2");
  });
}

TEST_F(GroupMemories, IsNoneOfSeveralHosts) {
  setenv("PERSEID_SHARED_MEMORY", "0", 1);
  on_ranks([](const Group& group) {
    const Context context = Context::cuda(0);
    return holds(sentence_of([&] { const GroupMemory memory(context, group, 4); }),
                 "the ranks are on several hosts and share no memory");
  });
  unsetenv("PERSEID_SHARED_MEMORY");
}

}  // namespace
