// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that are killed, stopped or cut off, the operations that the others complete afterwards,
// and a process that takes the place of one.
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "collective/group.hpp"
#include "group_processes.hpp"

namespace {

using namespace collective_tools;

// ---- Killed and stopped ranks

class Kills : public Processes {
 protected:
  // Kills a rank at a random moment of endless work, which of two seeds for two is attention.
  void kill_one(int32_t size, uint64_t seed, double within) {
    const bool attention = seed / 2 % 2 == 1;
    SCOPED_TRACE(testing::Message()
                 << size << " ranks, seed " << seed << (attention ? ", attention" : ""));
    renew();
    std::mt19937_64 engine(seed);
    const auto victim = static_cast<int32_t>(engine() % static_cast<uint64_t>(size));
    start(size, [&](int32_t rank) {
      const Group group(place(rank, size));
      const Context context = Context::cpu(1);
      const std::unique_ptr<Work> work = make_work(attention, context, group);
      bool right = work->once();
      ++board_->ready;
      const Ended end = ended([&] {
        for (;;) right = work->once() && right;
      });
      Board::Rank& mine = board_->ranks[rank];
      mine.seconds = since(board_->killed_at);
      mine.status = end.status;
      end.sentence.copy(mine.sentence, sizeof mine.sentence - 1);
      mine.named = group.info().failed_rank;
      const int64_t then = now();
      const Group survivors = group.shrink(10s);
      const std::unique_ptr<Work> again = make_work(attention, context, survivors);
      right = again->once() && survivors.size() == size - 1 && right;
      mine.seconds_on = since(then);
      survivors.barrier();
      return right;
    });
    while (board_->ready < size) usleep(100);
    usleep(static_cast<useconds_t>(engine() % 5000));
    board_->killed_at = now();
    kill(children_[static_cast<size_t>(victim)], SIGKILL);
    const std::vector<int> codes = join();
    for (int32_t rank = 0; rank < size; ++rank) {
      const Board::Rank& its = board_->ranks[rank];
      EXPECT_EQ(codes[static_cast<size_t>(rank)], rank == victim ? -SIGKILL : 0) << "rank " << rank;
      if (rank == victim) continue;
      EXPECT_EQ(its.status, PERSEID_PEER_LOST) << its.sentence;
      EXPECT_EQ(its.named, victim) << its.sentence;
      EXPECT_NE(std::string(its.sentence).find("rank " + std::to_string(victim) + " is lost"),
                std::string::npos)
          << its.sentence;
      EXPECT_LT(its.seconds, within);
      // Two cores are enough for so many ranks.
      if (size <= 3) {
        EXPECT_LT(its.seconds_on, 0.1);
      }
      longest_ = std::max(longest_, its.seconds);
      longest_on_ = std::max(longest_on_, its.seconds_on);
    }
  }
  void report(int kills) {
    printf(
        "%d kills: at most %.1f ms until the others know, %.1f ms more until they have "
        "completed an operation\n",
        kills, longest_ * 1e3, longest_on_ * 1e3);
  }

  double longest_ = 0, longest_on_ = 0;
};

TEST_F(Kills, EndTheCallsOfTheOthersWithinASecond) {
  for (uint64_t seed = 0; seed < 20; ++seed) kill_one(seed % 2 == 0 ? 3 : 2, seed, 1);
  report(20);
}

TEST_F(Kills, Sweep) {
  for (uint64_t seed = 0; seed < 100; ++seed) kill_one(seed % 2 == 0 ? 3 : 2, 1000 + seed, 1);
  for (uint64_t seed = 0; seed < 10; ++seed) kill_one(seed % 2 == 0 ? 5 : 7, 2000 + seed, 5);
  report(110);
}

// A rank that is stopped between its proposal and the new group's memory is left behind, too, by
// all at once, and what it says late belongs to nothing.
TEST_F(Kills, GoOnWithoutOneThatFallsSilentAsItAgrees) {
  namespace collective = perseid::internal::collective;
  for (const int32_t silent : {0, 2}) {
    renew();
    start(3, [&](int32_t rank) {
      if (rank == silent) {
        const collective::Operation operation("group", 10'000'000'000);
        const GroupOptions options = place(rank, 3);
        std::vector<perseid::internal::Descriptor> sockets;
        auto status = collective::meet({rank, 3, options.rendezvous, options.token},
                                       operation.deadline, &sockets);
        const auto mesh = std::make_shared<collective::Mesh>(rank, std::move(sockets), nullptr);
        std::shared_ptr<collective::Group> group;
        if (status.ok()) status = collective::Group::open(mesh, operation, {}, &group);
        uint64_t survivors = 0;
        uint32_t generation = 0;
        if (!status.ok() || !mesh->agree(7, 0, operation.deadline, &survivors, &generation))
          return false;
        while (board_->ready < 1) usleep(1000);
        const collective::Frame late{collective::FrameType::kMessage, generation,
                                     collective::Writer().number(0, 4).text("").text("").take()};
        for (const int32_t other : {0, 1, 2})
          if (other != rank) mesh->send(other, late, operation.deadline);
        while (board_->ready < 3) usleep(1000);
        // The others went on without this rank, which knows it.
        return !mesh->agree(7, generation, std::chrono::steady_clock::now() + 2s, &survivors,
                            &generation);
      }
      const Group group(place(rank, 3));
      const int64_t then = now();
      // The first one to give up takes the other one with it.
      const Group survivors = group.shrink(rank == 1 ? 500ms : 8s);
      const double seconds = since(then);
      ++board_->ready;
      for (int i = 0; i < 100; ++i) survivors.barrier();
      const Context context = Context::cpu(1);
      const bool right = Products(context, survivors).once();
      ++board_->ready;
      if (seconds > 4) fprintf(stderr, "rank %d: %.1f s\n", rank, seconds);
      return right && survivors.size() == 2 && seconds < 4;
    });
    for (const int code : join()) EXPECT_EQ(code, 0) << silent;
  }
}

// After a rank was killed all meet again where they met, a new process in its place.
TEST_F(Kills, AReplacementTakesTheRank) {
  for (const int32_t victim : {0, 2}) {
    renew();
    const auto meet_and_work = [&](int32_t rank, int64_t done) {
      const Group group(place(rank, 3));
      // Who has missed nothing says where to go on.
      const auto mine = static_cast<double>(done);
      double all[3] = {};
      group.all_gather(Tensor(&mine, perseid::f64, {1}), Tensor(all, perseid::f64, {3}));
      const Context context = Context::cpu(1);
      Products work(context, group);
      return work.once() && *std::max_element(all, all + 3) == 7;
    };
    start(3, [&](int32_t rank) {
      {
        const Group group(place(rank, 3));
        const Context context = Context::cpu(1);
        Products work(context, group);
        ++board_->ready;
        const Ended end = ended([&] {
          for (;;) work.once();
        });
        if (end.status != PERSEID_PEER_LOST) return false;
      }
      return meet_and_work(rank, 7);
    });
    while (board_->ready < 3) usleep(100);
    usleep(2000);
    kill(children_[static_cast<size_t>(victim)], SIGKILL);
    start(1, [&](int32_t) { return meet_and_work(victim, 0); });
    const std::vector<int> codes = join();
    for (int32_t rank = 0; rank < 4; ++rank)
      EXPECT_EQ(codes[static_cast<size_t>(rank)], rank == victim ? -SIGKILL : 0) << "rank " << rank;
  }
}

// A rank that is stopped and goes on later is left behind, and disturbs nobody.
TEST_F(Kills, AStoppedRankIsGivenUp) {
  start(3, [&](int32_t rank) {
    const Group group(place(rank, 3));
    const Context context = Context::cpu(1);
    Products products(context, group);
    Attending attending(context, group);
    const auto once = [&](std::chrono::nanoseconds deadline) {
      return products.once(deadline) && attending.once(deadline);
    };
    bool right = once(20s);
    ++board_->ready;
    const Ended end = ended([&] {
      for (;;) right = once(1500ms) && right;
    });
    right = right && end.status == PERSEID_TIMEOUT && group.info().failed_rank == 2;
    if (!right) fprintf(stderr, "rank %d: %s\n", rank, end.sentence.c_str());
    if (rank == 2) {
      const Ended late = ended([&] { (void)group.shrink(5s); });
      if (late.status != PERSEID_PEER_LOST)
        fprintf(stderr, "rank 2 went on: %s\n", late.sentence.c_str());
      return right && late.status == PERSEID_PEER_LOST;
    }
    const Group survivors = group.shrink(1s);
    Products again(context, survivors);
    ++board_->ready;
    // While the stopped one goes on.
    for (int i = 0; i < 50; ++i) {
      right = again.once() && right;
      std::this_thread::sleep_for(20ms);
    }
    survivors.barrier();
    return right && survivors.size() == 2;
  });
  while (board_->ready < 3) usleep(100);
  kill(children_[2], SIGSTOP);
  while (board_->ready < 5) usleep(100);
  kill(children_[2], SIGCONT);
  for (const int code : join()) EXPECT_EQ(code, 0);
}

// ---- Several hosts: network namespaces, joined by a pair of virtual interfaces

class Hosts : public Kills {
 protected:
  void SetUp() override {
    const bool made =
        run("ip netns add " + name(0)) && run("ip netns add " + name(1)) &&
        run("ip link add pers0 netns " + name(0) + " type veth peer name pers1 netns " + name(1));
    bool up = made;
    for (const int host : {0, 1}) {
      const std::string link = "pers" + std::to_string(host), ip = "ip -n " + name(host);
      up = up && run(ip + " addr add 10.213.7." + std::to_string(host + 1) + "/24 dev " + link) &&
           run(ip + " link set " + link + " up") && run(ip + " link set lo up");
    }
    if (!up) GTEST_SKIP() << "this machine allows no network namespaces";
  }
  void TearDown() override {
    for (const int host : {0, 1}) (void)run("ip netns del " + name(host));
  }
  static bool run(const std::string& command) {
    return std::system((command + " 2>/dev/null").c_str()) == 0;
  }
  std::string name(int host) const {
    return "perseid-" + std::to_string(test_) + "-" + std::to_string(host);
  }
  // Ranks go round. Without /proc a rank finds no memory of another, as on another host.
  void enter(int32_t rank) override {
    const int file = open(("/run/netns/" + name(rank % 2)).c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0 || setns(file, CLONE_NEWNET) != 0 || unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("none", "/proc", "tmpfs", 0, nullptr) != 0)
      throw std::runtime_error("cannot enter the namespace");
    close(file);
  }
  GroupOptions place(int32_t rank, int32_t size) const override {
    GroupOptions options = Kills::place(rank, size);
    options.rendezvous = "tcp:10.213.7.1:" + std::to_string(5076 + meetings_);
    return options;
  }

  const pid_t test_ = getpid();
};

TEST_F(Hosts, ComputeTogether) {
  start(3, [&](int32_t rank) {
    const Group group(place(rank, 3));
    const Context context = Context::cpu(1);
    Products work(context, group);
    bool right = true;
    for (int i = 0; i < 50; ++i) right = work.once() && right;
    const AllGatherMatmul plan(context, group, {.m = 1, .k = 1, .products = {{.n = 1}}});
    return right && std::string_view(plan.info().implementation) == "cpu:sockets";
  });
  for (const int code : join()) EXPECT_EQ(code, 0);
}

TEST_F(Hosts, EndTheCallsOfTheOthersWithinASecond) {
  for (uint64_t seed = 0; seed < 4; ++seed) kill_one(seed % 2 == 0 ? 3 : 2, seed, 1);
  report(4);
}

// A link-local address leads to no other host, and an address of the default route to most.
TEST_F(Hosts, NameTheAddressThatOthersReach) {
  const std::string ip = "ip -n " + name(0) + " ";
  // Some time after it is set up.
  const auto runs = [&](const std::string& link) {
    return run("timeout 5 sh -c \"until " + ip + "link show " + link +
               " | grep -q 'state UP'; do sleep .02; done\"");
  };
  const auto add = [&](const std::string& link, const std::string& address) {
    return run(ip + "link add " + link + " type veth peer name " + link + "p") &&
           run(ip + "addr add " + address + " dev " + link) &&
           run(ip + "link set " + link + " up") && run(ip + "link set " + link + "p up") &&
           runs(link);
  };
  const auto expect_named = [&](const std::string& wanted) {
    start(1, [&](int32_t) {
      const std::string found = perseid::internal::collective::host_of_environment();
      if (found != wanted) fprintf(stderr, "found %s\n", found.c_str());
      return found == wanted;
    });
    EXPECT_EQ(join(), std::vector<int>{0}) << wanted;
  };
  ASSERT_TRUE(run(ip + "addr flush dev pers0") && run(ip + "addr add 169.254.7.1/16 dev pers0"));
  ASSERT_TRUE(add("bridge0", "172.17.0.1/16"));
  expect_named("172.17.0.1");
  ASSERT_TRUE(add("outside0", "10.9.9.9/24") && run(ip + "route add default dev outside0"));
  expect_named("10.9.9.9");
}

// Nothing tells the others that the host is gone but that it answers no more.
TEST_F(Hosts, AreLostWithTheirLink) {
  start(3, [&](int32_t rank) {
    const Group group(place(rank, 3));
    const Context context = Context::cpu(1);
    Products work(context, group);
    bool right = work.once();
    ++board_->ready;
    const Ended end = ended([&] {
      for (;;) right = work.once(6s) && right;
    });
    board_->ranks[rank].seconds = since(board_->killed_at);
    if (rank == 1) return right;
    if (group.info().failed_rank != 1) fprintf(stderr, "rank %d: %s\n", rank, end.sentence.c_str());
    right = right && group.info().failed_rank == 1;
    const Group survivors = group.shrink(2s);
    return Products(context, survivors).once() && right && survivors.size() == 2;
  });
  while (board_->ready < 3) usleep(100);
  board_->killed_at = now();
  EXPECT_TRUE(run("ip -n " + name(1) + " link set pers1 down"));
  const std::vector<int> codes = join();
  EXPECT_EQ(codes[0], 0);
  EXPECT_EQ(codes[2], 0);
  for (const int rank : {0, 2}) EXPECT_LT(board_->ranks[rank].seconds, 8);
}

}  // namespace
