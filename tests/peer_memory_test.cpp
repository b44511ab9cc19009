// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Memory of GPUs that ranks map, by VMM and by CUDA IPC, with a fake driver, whose folder must be
// in LD_LIBRARY_PATH, as ctest sets it. gpu_collective_process_test has real GPUs.
#include "collective/gpu_windows.hpp"

#include <thread>

#include "fake_driver.hpp"
#include "host_ranks.hpp"

namespace {

using namespace host_ranks;

constexpr int kMemory = 2, kNotSupported = 801;
constexpr size_t kBytes = 3 << 20, kWords = 16;
constexpr uint32_t kInitial = 41;

template <class Function>
Function* of_driver(const char* name, Function*) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(dlsym(library, name));
}
void fail_from_now_on(const char* name, int result) {
  of_driver("fake_fail", &fake_fail)(name, result, 1, 1);
}
int64_t alive() { return of_driver("fake_alive", &fake_alive)(); }

class PeerMemoryTest : public HostRanks {
 protected:
  void enter(int32_t) override { alarm(60); }
  void expect_codes(const std::vector<int>& wanted) { EXPECT_EQ(join(), wanted); }
  void expect_all_well(int32_t size) {
    expect_codes(std::vector<int>(static_cast<size_t>(size), 0));
  }
};

void set_wish(const char* wish) { setenv("PERSEID_PEER_MEMORY", wish, 1); }

Status make(Group& group, std::shared_ptr<cuda::Gpu> gpu, std::unique_ptr<GpuWindows>* windows) {
  return GpuWindows::make(group, Operation("windows", kDeadline), std::move(gpu), kBytes, kWords,
                          kInitial, windows);
}
Status exchange(Group& group) {
  return group.exchange(Operation("meeting", kDeadline), Status(), "", nullptr);
}
void meet_again(Group& group) {
  if (const Status status = exchange(group); !status.ok())
    throw std::runtime_error(status.sentence());
}
// What others have closed is freed with the next memory that is made or freed.
bool is_all_freed(const std::shared_ptr<cuda::Gpu>& gpu, int64_t before) {
  for (int turn = 0; turn < 200 && alive() != before; ++turn) {
    std::this_thread::sleep_for(5ms);
    std::unique_ptr<cuda::PeerMemory> memory;
    cuda::PeerOffer offer;
    (void)cuda::PeerMemory::make(cuda::PeerSharing::kIpc, false, gpu, kBytes, &memory, &offer);
  }
  return alive() == before;
}

// Every rank writes into the windows of all, and finds there what all have written.
bool writes_arrive(Group& group, const GpuWindows& windows) {
  const int32_t own = group.rank(), size = group.size();
  bool right = true;
  const size_t last = kBytes / sizeof(uint32_t) - kWords;
  for (int32_t rank = 0; rank < size; ++rank)
    for (size_t word = static_cast<size_t>(size); word < kWords; ++word)
      right = right && windows.words(rank)[word] == kInitial;
  const auto value = [](int32_t from, int32_t to) {
    return static_cast<uint32_t>(100 + 10 * from + to);
  };
  for (int32_t rank = 0; rank < size; ++rank)
    for (const size_t at : {size_t{0}, last})
      windows.words(rank)[at + static_cast<size_t>(own)] = value(own, rank);
  meet_again(group);
  for (int32_t rank = 0; rank < size; ++rank)
    for (const size_t at : {size_t{0}, last})
      for (int32_t from = 0; from < size; ++from)
        right = right && windows.words(rank)[at + static_cast<size_t>(from)] == value(from, rank);
  meet_again(group);
  return right;
}

TEST_F(PeerMemoryTest, IsThatOfAllProcesses) {
  for (const char* wish : {"", "vmm", "ipc"})
    for (const int32_t size : {2, 3}) {
      SCOPED_TRACE(testing::Message() << wish << " " << size);
      start(size, [&](int32_t rank) {
        set_wish(rank == 0 ? wish : "");  // that of one rank is that of all
        const Member member(rank, size);
        const int64_t before = alive();
        bool right = true;
        for (int repeat = 0; repeat < 3; ++repeat) {
          std::unique_ptr<GpuWindows> windows;
          const Status status = make(*member.group, member.device->gpu, &windows);
          if (!status.ok()) throw std::runtime_error(status.sentence());
          right = right && writes_arrive(*member.group, *windows);
        }
        meet_again(*member.group);  // nobody has anything open
        return right && is_all_freed(member.device->gpu, before);
      });
      expect_all_well(size);
    }
}

// What one rank cannot do, all do by IPC, but where VMM is asked for.
TEST_F(PeerMemoryTest, IsSharedByIpcWhereVmmCannotBe) {
  for (const char* call : {"cuMemCreate", "cuMemExportToShareableHandle",
                           "cuMemImportFromShareableHandle", "cuMemSetAccess"})
    for (const char* wish : {"", "vmm"}) {
      SCOPED_TRACE(testing::Message() << call << " " << wish);
      start(3, [&](int32_t rank) {
        set_wish(wish);
        const Member member(rank, 3);
        if (rank == 1) fail_from_now_on(call, kNotSupported);
        std::unique_ptr<GpuWindows> windows;
        const Status status = make(*member.group, member.device->gpu, &windows);
        if (*wish == '\0') return status.ok() && writes_arrive(*member.group, *windows);
        fprintf(stderr, "%s\n", status.sentence().c_str());
        return status.code() == PERSEID_DEVICE_ERROR && windows == nullptr &&
               status.sentence().find("rank 1: ") != std::string::npos;
      });
      expect_all_well(3);
    }
}

// Memory that is full is no reason for another way, and what both refuse ends with a sentence.
TEST_F(PeerMemoryTest, FailsOnAllRanks) {
  struct Case {
    const char *wish, *call;
    int result;
    perseid_status status;
  };
  for (const Case& test :
       {Case{"", "cuMemCreate", kMemory, PERSEID_OUT_OF_MEMORY},
        Case{"ipc", "cuMemAlloc_v2", kMemory, PERSEID_OUT_OF_MEMORY},
        Case{"ipc", "cuIpcGetMemHandle", kNotSupported, PERSEID_DEVICE_ERROR},
        Case{"ipc", "cuIpcOpenMemHandle_v2", kNotSupported, PERSEID_DEVICE_ERROR}}) {
    SCOPED_TRACE(test.call);
    start(2, [&](int32_t rank) {
      set_wish(test.wish);
      const Member member(rank, 2);
      const int64_t before = alive();
      if (rank == 1) fail_from_now_on(test.call, test.result);
      std::unique_ptr<GpuWindows> windows;
      const Status status = make(*member.group, member.device->gpu, &windows);
      meet_again(*member.group);
      fail_from_now_on("", 0);
      return status.code() == test.status && windows == nullptr &&
             is_all_freed(member.device->gpu, before);
    });
    expect_all_well(2);
  }
}

TEST_F(PeerMemoryTest, RefusesOtherWishes) {
  for (const char* wish : {"vmm", "pipes"}) {
    start(2, [&](int32_t rank) {
      set_wish(rank == 0 ? "ipc" : wish);
      const Member member(rank, 2);
      std::unique_ptr<GpuWindows> windows;
      const Status status = make(*member.group, member.device->gpu, &windows);
      fprintf(stderr, "%s\n", status.sentence().c_str());
      return status.code() == PERSEID_INVALID_ARGUMENT;
    });
    expect_all_well(2);
  }
}

// The fake driver ends a process that frees what another one has open.
TEST_F(PeerMemoryTest, IsFreedWhenNobodyHasItOpen) {
  for (const bool dies : {false, true}) {
    start(2, [&](int32_t rank) {
      set_wish("ipc");
      const Member member(rank, 2);
      const std::shared_ptr<cuda::Gpu>& gpu = member.device->gpu;
      const int64_t before = alive();
      std::unique_ptr<GpuWindows> windows;
      if (!make(*member.group, gpu, &windows).ok()) return false;
      if (rank == 0) {
        windows->words(0)[1] = 7;
        windows.reset();
        if (alive() != before + 1) return false;  // the own memory, which rank 1 has open
        meet_again(*member.group);
        if (exchange(*member.group).ok() == dies) return false;
      } else {
        meet_again(*member.group);
        if (windows->words(0)[1] != 7) return false;
        if (dies) kill(getpid(), SIGKILL);
        windows.reset();
        meet_again(*member.group);
      }
      return is_all_freed(gpu, before);
    });
    expect_codes({0, dies ? -SIGKILL : 0});
  }
}

TEST_F(PeerMemoryTest, IsThatOfAllThreads) {
  for (const char* wish : {"", "ipc"}) {
    start(1, [&](int32_t) {
      set_wish(wish);
      std::vector<std::shared_ptr<Group>> groups;
      if (!Group::open_threads(3, {}, &groups).ok()) return false;
      std::shared_ptr<cuda::Gpu> gpu;
      if (!cuda::Gpu::open(0, &gpu).ok()) return false;
      const int64_t before = alive();
      std::atomic<int> right{0};
      std::vector<std::thread> threads;
      for (const std::shared_ptr<Group>& group : groups)
        threads.emplace_back([&] {
          std::unique_ptr<GpuWindows> windows;
          if (!make(*group, gpu, &windows).ok()) return;
          right += writes_arrive(*group, *windows);
          // In any order: the memory of each lives as long as any thread has it.
          if (group->rank() == 1) windows.reset();
          meet_again(*group);
          right += group->rank() == 1 || windows->words(1)[0] == 101;
        });
      for (std::thread& thread : threads) thread.join();
      return right == 6 && alive() == before;
    });
    expect_all_well(1);
  }
}

// Where no descriptor can be sent.
TEST_F(PeerMemoryTest, IsFoundByTheProcessThatMadeIt) {
  start(1, [&](int32_t) {
    std::shared_ptr<cuda::Gpu> gpu;
    if (!cuda::Gpu::open(0, &gpu).ok()) return false;
    std::unique_ptr<cuda::PeerMemory> memory;
    cuda::PeerOffer offer;
    constexpr auto kIpc = cuda::PeerSharing::kIpc;
    if (!cuda::PeerMemory::make(kIpc, false, gpu, kBytes, &memory, &offer).ok()) return false;
    const pid_t child = fork();
    if (child == 0) {
      std::unique_ptr<cuda::PeerMemory> opened;
      const Status status =
          cuda::PeerMemory::map(kIpc, false, gpu, kBytes, {offer.message, Descriptor()}, &opened);
      if (status.ok()) opened->data()[5] = std::byte{9};
      std::string wrong = offer.message;
      wrong.back() = static_cast<char>(wrong.back() ^ 1);  // another file
      std::unique_ptr<cuda::PeerMemory> none;
      const Status refused =
          cuda::PeerMemory::map(kIpc, false, gpu, kBytes, {wrong, Descriptor()}, &none);
      opened.reset();
      _exit(status.ok() && refused.code() == PERSEID_UNSUPPORTED ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 && memory->data()[5] == std::byte{9};
  });
  expect_all_well(1);
}

}  // namespace
