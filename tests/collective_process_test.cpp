// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Groups of processes: the rendezvous, and who it refuses.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "collective/rendezvous.hpp"
#include "group_processes.hpp"

namespace {

using namespace collective_tools;

TEST_F(Processes, ComputeTogether) {
  for (const int32_t size : {1, 2, 3, 4}) {
    renew();
    const int64_t start_at = now();
    start(size, [&](int32_t rank) {
      const Group group(place(rank, size));
      const double opened = since(start_at);
      const Context context = Context::cpu(1);
      Products work(context, group);
      bool right = true;
      for (int i = 0; i < 50; ++i) right = work.once() && right;
      group.barrier();
      return right && opened < 1.5;
    });
    for (const int code : join()) EXPECT_EQ(code, 0);
    EXPECT_FALSE(std::filesystem::exists(path())) << "the socket is left over";
  }
}

std::string free_address() { return "tcp:127.0.0.1:" + std::to_string(free_port()); }

// Whether the process has a connection by TCP.
bool has_tcp() {
  bool found = false;
  for (int number = 0; number < 256; ++number) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    found = found || (getpeername(number, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
                      address.ss_family == AF_INET);
  }
  return found;
}

// They go on by Unix sockets.
TEST_F(Processes, MeetByTcpOfThisHost) {
  const std::string address = free_address();
  start(3, [&](int32_t rank) {
    GroupOptions options = place(rank, 3);
    options.rendezvous = address;
    const Group group(options);
    const Context context = Context::cpu(1);
    return Products(context, group).once() && has_tcp() == are_hosts();
  });
  for (const int code : join()) EXPECT_EQ(code, 0);
}

TEST_F(Processes, RefuseAStranger) {
  start(2, [&](int32_t rank) {
    if (rank == 1)
      while (!board_->go) usleep(1000);
    const Group group(place(rank, 2));
    group.barrier();
    return true;
  });
  while (!std::filesystem::exists(path())) usleep(1000);
  struct stat found {};
  ASSERT_EQ(stat(path().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  // One that knows the place, but not the token; one that says nothing; one that talks nonsense.
  GroupOptions stranger = place(1, 2);
  stranger.token = "a secreT";
  const Ended end = ended([&] { const Group group(stranger); });
  EXPECT_EQ(end.status, PERSEID_INVALID_ARGUMENT);
  EXPECT_NE(end.sentence.find("the token is not that of the group"), std::string::npos)
      << end.sentence;
  EXPECT_LT(end.seconds, 2);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path().copy(name.sun_path, sizeof name.sun_path - 1);
  int sockets[2];
  for (int& number : sockets) {
    number = socket(AF_UNIX, SOCK_STREAM, 0);
    ASSERT_EQ(connect(number, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  }
  ASSERT_EQ(send(sockets[1], "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
  board_->go = true;
  for (const int code : join()) EXPECT_EQ(code, 0);
  for (const int number : sockets) close(number);
}

// More connections than may wait, of which none says anything. Rank 0 does not spin meanwhile.
TEST_F(Processes, ComePastACrowdOfSilentStrangers) {
  start(2, [&](int32_t rank) {
    if (rank == 1)
      while (!board_->go) usleep(1000);
    const int64_t start_at = now();
    const Group group(place(rank, 2));
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    const double busy = static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                        static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
    if (busy > 0.5) fprintf(stderr, "rank %d: %.2f s of CPU\n", rank, busy);
    group.barrier();
    return busy < 0.5 && (rank == 0 || since(start_at) < 2);
  });
  while (!std::filesystem::exists(path())) usleep(1000);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path().copy(name.sun_path, sizeof name.sun_path - 1);
  std::vector<int> sockets(130);
  for (int& number : sockets) {
    number = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    // Rank 0 may not listen yet.
    while (connect(number, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0)
      ASSERT_EQ(errno, ECONNREFUSED);
  }
  usleep(1'000'000);
  board_->go = true;
  for (const int code : join()) EXPECT_EQ(code, 0);
  for (const int number : sockets) close(number);
}

// A rank that dies as it meets the others is started again: its socket is left over, and rank 0 may
// have heard of it.
TEST_F(Processes, MeetAgainAfterOneHasDied) {
  for (const int32_t dies : {0, 1, 2}) {
    renew();
    const auto meets = [&](int32_t rank) {
      const Group group(place(rank, 3));
      group.barrier();
      return true;
    };
    const std::string socket = path() + (dies == 0 ? "" : "." + std::to_string(dies));
    start(1, [&](int32_t) { return meets(dies); });
    while (!std::filesystem::exists(socket)) usleep(1000);
    if (dies == 2) {
      start(1, meets);  // rank 0
      usleep(200'000);
    }
    kill(children_[0], SIGKILL);
    waitpid(children_[0], nullptr, 0);
    children_.erase(children_.begin());
    EXPECT_TRUE(std::filesystem::exists(socket));
    for (const int32_t rank : {0, 1, 2})
      if (dies != 2 || rank != 0) start(1, [&](int32_t) { return meets(rank); });
    for (const int code : join()) EXPECT_EQ(code, 0) << dies;
    EXPECT_FALSE(std::filesystem::exists(socket));
  }
}

// What is no socket, or one that somebody listens at.
TEST_F(Processes, TakeNoFileThatIsInUse) {
  const auto refused = [&](int32_t) {
    const Ended end = ended([&] { const Group group(place(0, 2)); });
    return end.status == PERSEID_IO_ERROR &&
           end.sentence.find("is another group there") != std::string::npos;
  };
  std::ofstream(path()) << "mine";
  start(1, refused);
  EXPECT_EQ(join()[0], 0);
  EXPECT_EQ(std::filesystem::file_size(path()), 4u);
  std::filesystem::remove(path());
  const auto meets = [&](int32_t rank) {
    const Group group(place(rank, 2));
    return true;
  };
  start(1, meets);
  while (!std::filesystem::exists(path())) usleep(1000);
  start(1, refused);
  usleep(100'000);
  start(1, [&](int32_t) { return meets(1); });
  for (const int code : join()) EXPECT_EQ(code, 0);
}

TEST_F(Processes, RefuseAStrangerByTcp) {
  const std::string address = free_address();
  start(2, [&](int32_t rank) {
    if (rank == 1)
      while (!board_->go) usleep(1000);
    GroupOptions options = place(rank, 2);
    options.rendezvous = address;
    const Group group(options);
    group.barrier();
    return true;
  });
  GroupOptions stranger = place(1, 2);
  stranger.rendezvous = address;
  stranger.token = "";
  EXPECT_EQ(ended([&] { const Group group(stranger); }).status, PERSEID_INVALID_ARGUMENT);
  stranger.token = "a secre";
  const Ended end = ended([&] { const Group group(stranger); });
  EXPECT_NE(end.sentence.find("the token is not that of the group"), std::string::npos)
      << end.sentence;
  board_->go = true;
  for (const int code : join()) EXPECT_EQ(code, 0);
}

int64_t entries_of(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

int64_t mappings() {
  std::ifstream maps("/proc/self/maps");
  return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
}

// Descriptors, threads and mappings of a process are as many as before.
TEST_F(Processes, SweepLeaveNothingBehindAfterTwoHundredGroups) {
  start(2, [&](int32_t rank) {
    const Context context = Context::cpu(1);
    int64_t descriptors = 0, threads = 0, mapped = 0;
    bool right = true;
    for (int i = 0; i < 200; ++i) {
      GroupOptions options = place(rank, 2);
      options.rendezvous += "." + std::to_string(i);
      {
        const Group group(options);
        right = Products(context, group).once() && right;
        group.barrier();
      }
      if (i > 0) continue;
      descriptors = entries_of("/proc/self/fd");
      threads = entries_of("/proc/self/task");
      mapped = mappings();
    }
    return right && entries_of("/proc/self/fd") == descriptors &&
           entries_of("/proc/self/task") <= threads && mappings() <= mapped + 16;
  });
  for (const int code : join()) EXPECT_EQ(code, 0);
}

// Shared memory has no name: a full /dev/shm is none of its concern. Where memory cannot be had,
// all ranks say so.
TEST_F(Processes, NeedNoRoomInDevShm) {
  const auto mount_a_small_one = [](int32_t) {
    return unshare(CLONE_NEWNS) == 0 &&
           mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount("none", "/dev/shm", "tmpfs", 0, "size=4k") == 0;
  };
  start(1, mount_a_small_one);
  if (join()[0] != 0) GTEST_SKIP() << "this machine allows no namespaces of mounts";
  start(2, [&](int32_t rank) {
    if (!mount_a_small_one(rank)) return false;
    std::ofstream("/dev/shm/full") << std::string(8192, 'x');
    const Group group(place(rank, 2));
    const Context context = Context::cpu(1);
    return Products(context, group).once();
  });
  for (const int code : join()) EXPECT_EQ(code, 0);
}

TEST_F(Processes, AreRefusedWithoutMemory) {
  start(2, [&](int32_t rank) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit little{65536, 65536};
    if (rank == 0 && setrlimit(RLIMIT_FSIZE, &little) != 0) return false;
    const Ended end = ended([&] { const Group group(place(rank, 2)); });
    if (end.status != PERSEID_OUT_OF_MEMORY) fprintf(stderr, "%s\n", end.sentence.c_str());
    return end.status == PERSEID_OUT_OF_MEMORY &&
           end.sentence.find("rank 0: cannot share") != std::string::npos;
  });
  for (const int code : join()) EXPECT_EQ(code, 0);
}

TEST_F(Processes, SayWhoDidNotCome) {
  start(1, [&](int32_t rank) {
    GroupOptions options = place(rank, 3);
    options.deadline = 200ms;
    const Ended end = ended([&] { const Group group(options); });
    return end.status == PERSEID_TIMEOUT && end.seconds < 1 &&
           end.sentence.find("did not come to the rendezvous before the deadline: 1, 2") !=
               std::string::npos;
  });
  EXPECT_EQ(join()[0], 0);
}

// One that has met the others, but does not open the group with them.
TEST_F(Processes, SayWhoseMemoryDidNotCome) {
  namespace collective = perseid::internal::collective;
  start(2, [&](int32_t rank) {
    GroupOptions options = place(rank, 2);
    options.deadline = 500ms;
    if (rank == 1) {
      std::vector<perseid::internal::Descriptor> sockets;
      const auto met = collective::meet({rank, 2, options.rendezvous, options.token},
                                        Clock::now() + 10s, &sockets);
      while (board_->ready < 1) usleep(1000);
      return met.ok();
    }
    const Ended end = ended([&] { const Group group(options); });
    ++board_->ready;
    if (end.status != PERSEID_TIMEOUT) fprintf(stderr, "%s\n", end.sentence.c_str());
    return end.status == PERSEID_TIMEOUT && end.seconds < 2 &&
           end.sentence.find("rank 1 has not taken part within 500 ms") != std::string::npos;
  });
  for (const int code : join()) EXPECT_EQ(code, 0);
}

TEST_F(Processes, AgreeOnTheirNumber) {
  start(2, [&](int32_t rank) {
    const Ended end = ended([&] { const Group group(place(rank, 2 + rank)); });
    return end.status == PERSEID_INVALID_ARGUMENT &&
           end.sentence.find("rank 1 expects 3 ranks, rank 0 expects 2") != std::string::npos;
  });
  for (const int code : join()) EXPECT_EQ(code, 0);
}

// Variables of the own launcher, OpenMPI and torchrun.
TEST_F(Processes, FindTheirPlaceInTheEnvironment) {
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);
  };
  for (const int launcher : {0, 1, 2}) {
    renew();
    const int32_t port = free_port();
    start(2, [&](int32_t rank) {
      const std::string number = std::to_string(rank);
      if (launcher == 0) {
        set("PERSEID_RANK", number);
        set("PERSEID_WORLD_SIZE", "2");
        set("PERSEID_RENDEZVOUS", "unix:" + path());
        set("RANK", "17");  // of another launcher, around this one
      } else if (launcher == 1) {
        set("OMPI_COMM_WORLD_RANK", number);
        set("OMPI_COMM_WORLD_SIZE", "2");
        set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
        set("PMIX_NAMESPACE", "job" + std::to_string(getppid()));
        set("XDG_RUNTIME_DIR", testing::TempDir());
      } else {
        set("RANK", number);
        set("WORLD_SIZE", "2");
        set("MASTER_ADDR", "127.0.0.1");
        set("MASTER_PORT", std::to_string(port - 1));
        set("PERSEID_TOKEN", "a secret");
      }
      const Group group;
      group.barrier();
      return group.rank() == rank && group.size() == 2;
    });
    for (const int code : join()) EXPECT_EQ(code, 0) << "launcher " << launcher;
  }
}

TEST_F(Processes, SayWhatTheEnvironmentLacks) {
  const auto refused = [&](const std::vector<std::pair<const char*, const char*>>& variables,
                           const std::string& part) {
    start(1, [&](int32_t) {
      for (const auto& [name, value] : variables) setenv(name, value, 1);
      const Ended end = ended([&] { const Group group; });
      if (end.sentence.find(part) == std::string::npos)
        fprintf(stderr, "got: %s\n", end.sentence.c_str());
      // Where this machine has no plug-in for MPI.
      return (end.status == PERSEID_INVALID_ARGUMENT || end.status == PERSEID_UNSUPPORTED) &&
             end.sentence.find(part) != std::string::npos;
    });
    EXPECT_EQ(join()[0], 0) << part;
  };
  refused({}, "no ranks were started: PERSEID_RANK is not set");
  refused({{"PERSEID_RANK", "0"}}, "PERSEID_WORLD_SIZE is \"\", expected a number from 1 to 64");
  refused({{"PERSEID_RANK", "2"}, {"PERSEID_WORLD_SIZE", "2"}},
          "PERSEID_RANK is \"2\", expected a number from 0 to 1");
  refused({{"PERSEID_RANK", "1"}, {"PERSEID_WORLD_SIZE", "2"}}, "PERSEID_RENDEZVOUS is not set");
  refused({{"PERSEID_RANK", "1"}, {"PERSEID_WORLD_SIZE", "2"}, {"PERSEID_RENDEZVOUS", "here"}},
          "expected unix:PATH or tcp:HOST:PORT");
  refused({{"PERSEID_RANK", "1"},
           {"PERSEID_WORLD_SIZE", "2"},
           {"PERSEID_RENDEZVOUS", "tcp:127.0.0.1:9"}},
          "a rendezvous by TCP needs a token");
  refused({{"OMPI_COMM_WORLD_RANK", "0"},
           {"OMPI_COMM_WORLD_SIZE", "4"},
           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
           {"PMIX_NAMESPACE", "job"}},
          "MPI");  // on several hosts
  refused({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, "MPI");
  refused({{"PERSEID_RANK", "0"}, {"PERSEID_WORLD_SIZE", "2"}, {"PERSEID_RENDEZVOUS", "mpi:lam"}},
          "is \"mpi:lam\", expected mpi:openmpi or mpi:mpich");
  for (const char* port : {"0", "65536", "99999", "-1", "9999999999999999999"}) {
    const std::string rendezvous = std::string("tcp:127.0.0.1:") + port;
    refused({{"PERSEID_RANK", "0"},
             {"PERSEID_WORLD_SIZE", "2"},
             {"PERSEID_TOKEN", "secret"},
             {"PERSEID_RENDEZVOUS", rendezvous.c_str()}},
            "expected a port from 1 to 65535");
  }
  // One rank too, which needs nothing of them.
  refused({{"PERSEID_RANK", "0"}, {"PERSEID_WORLD_SIZE", "1"}, {"PERSEID_SHARED_MEMORY", "maybe"}},
          "PERSEID_SHARED_MEMORY is \"maybe\", expected 0 or 1");
  refused({{"PERSEID_RANK", "0"}, {"PERSEID_WORLD_SIZE", "1"}, {"PERSEID_TRANSPORT", "bogus"}},
          "PERSEID_TRANSPORT is \"bogus\", expected mpi, sockets or nccl");
}

// An all-gather of three ranks by pipes: everyone writes to everyone.
class Pipes {
 public:
  Pipes() {
    for (auto& row : pipes_)
      for (auto& pair : row) EXPECT_EQ(pipe(pair), 0);
  }
  ~Pipes() {
    for (auto& row : pipes_)
      for (auto& pair : row) close(pair[0]), close(pair[1]);
  }
  Pipes(const Pipes&) = delete;
  Pipes& operator=(const Pipes&) = delete;

  bool pass(int32_t rank, const void* mine, size_t bytes, void* all) const {
    const auto count = static_cast<ssize_t>(bytes);
    for (int to = 0; to < 3; ++to)
      if (write(pipes_[rank][to][1], mine, bytes) != count) return false;
    for (int from = 0; from < 3; ++from)
      if (read(pipes_[from][rank][0], static_cast<char*>(all) + from * count, bytes) != count)
        return false;
    return true;
  }

 private:
  int pipes_[3][3][2];
};

TEST_F(Processes, MeetByACallback) {
  const Pipes pipes;
  struct State {
    int32_t rank;
    const Pipes* pipes;
  };
  // Rank and size are given, or those of mpirun, whose MPI is not asked.
  for (const bool by_mpirun : {false, true}) {
    start(3, [&](int32_t rank) {
      State state{rank, &pipes};
      auto options = perseid::detail::sized<perseid_group_options>();
      options.rank = rank;
      options.size = by_mpirun ? 0 : 3;
      if (by_mpirun) {
        setenv("OMPI_COMM_WORLD_RANK", std::to_string(rank).c_str(), 1);
        setenv("OMPI_COMM_WORLD_SIZE", "3", 1);
        setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1", 1);
      }
      options.user = &state;
      options.all_gather = [](void* user, const void* mine, size_t bytes, void* all) {
        const auto* of = static_cast<const State*>(user);
        return of->pipes->pass(of->rank, mine, bytes, all) ? 0 : 1;
      };
      perseid_group_t group = nullptr;
      if (perseid_group_create(&options, &group) != PERSEID_OK) return false;
      bool right = true;
      for (int i = 0; i < 10; ++i) right = perseid_group_barrier(group, 0) == PERSEID_OK && right;
      perseid_group_destroy(group);
      return right;
    });
    for (const int code : join()) EXPECT_EQ(code, 0);
  }
}

TEST_F(Processes, MeetByAFunction) {
  const Pipes pipes;
  start(3, [&](int32_t rank) {
    const auto pass = [&](const void* mine, size_t bytes, void* all) {
      if (!pipes.pass(rank, mine, bytes, all)) throw std::runtime_error("no pipe");
    };
    const Group group({.rank = rank, .size = 3, .all_gather = pass});
    const Context context = Context::cpu(1);
    const bool right = Products(context, group).once() && group.rank() == rank;
    const Ended end = ended([&] {
      const Group none({.rank = 0, .size = 2, .all_gather = [](const void*, size_t, void*) {
                          throw std::runtime_error("never seen");
                        }});
    });
    group.barrier();
    return right && end.status == PERSEID_PEER_LOST &&
           end.sentence.find("the caller's all-gather failed") != std::string::npos;
  });
  for (const int code : join()) EXPECT_EQ(code, 0);
}

}  // namespace
