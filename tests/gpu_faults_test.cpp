// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Every call of a CUDA driver fails in turn, once or for ever: each ends in a status with a
// sentence, nothing leaks, and what works again is used again. The driver is a fake one, so that
// this needs no GPU; its folder must be in LD_LIBRARY_PATH, as ctest sets it.
#include <dlfcn.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cuda/runtime/cache.hpp"
#include "cuda/runtime/copy_queue.hpp"
#include "cuda/runtime/signals.hpp"
#include "cuda/softmax.hpp"
#include "fake_driver.hpp"
#include "gpu_tools.hpp"
#include "perseid/perseid.h"

namespace perseid::internal::cuda {
namespace {

constexpr int kMemory = 2, kIllegalAddress = 700;

struct Fake {
  decltype(&fake_fail) fail = nullptr;
  decltype(&fake_calls) calls = nullptr;
  decltype(&fake_alive) alive = nullptr;
  decltype(&fake_launches) launches = nullptr;
  decltype(&fake_capture) capture = nullptr;

  Fake() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto find = [&](const char* name, auto& function) {
      if (library != nullptr)
        function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    };
    find("fake_fail", fail);
    find("fake_calls", calls);
    find("fake_alive", alive);
    find("fake_launches", launches);
    find("fake_capture", capture);
  }
};

class Faults : public testing::Test {
 protected:
  void SetUp() override {
    if (fake_.launches == nullptr) GTEST_SKIP() << "libcuda.so.1 is not the fake driver";
    write_pack();
    fake_.fail("", 0, 0, 0);
    before_ = fake_.alive();
  }
  void TearDown() override {
    if (fake_.launches == nullptr) return;
    fake_.fail("", 0, 0, 0);
    EXPECT_EQ(fake_.alive(), before_) << "something of the driver was not given back";
  }

  // A pack of no real code for the problems below. The library reads it once.
  static void write_pack() {
    static const std::string kPath = testing::TempDir() + "/fake.pack";
    if (std::getenv("PERSEID_PACK") != nullptr) return;
    std::ofstream file(kPath, std::ios::binary);
    // What others may write is no pack.
    std::filesystem::permissions(
        kPath, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    GpuFacts facts;
    facts.architecture = "sm_90a";
    for (const int64_t length : {kLength, kLongLength})
      for (const bool backward : {false, true}) {
        const SoftmaxProblem problem{.rank = 2, .dim = 1, .shape = {kRows, length}};
        const SoftmaxKind kind = length == kLength ? SoftmaxKind::kRows : SoftmaxKind::kSplit;
        const SoftmaxChoice choice = choose_softmax(kind, problem, backward, facts);
        const std::vector<std::string> kernels = softmax_kernels(choice, backward);
        file << write_entry(
            key_of({softmax_header(choice.kind), kernels, facts.architecture}, nullptr),
            {kernels, "code"});
      }
    const Program lacking = both_directions();
    file << write_entry(key_of(lacking, nullptr), {{lacking.kernels[0]}, "code"});
    setenv("PERSEID_PACK", kPath.c_str(), 1);
    // The real one asks the driver for what the fake one has not, and dies.
    setenv("PERSEID_NVRTC", "/nowhere/libnvrtc.so", 1);
  }

  // Kernels of short rows. The pack has the name of the first kernel alone.
  static Program both_directions() {
    GpuFacts facts;
    facts.architecture = "sm_90a";
    const SoftmaxProblem problem{.rank = 2, .dim = 1, .shape = {kRows, kLength}};
    Program program{"", {}, facts.architecture};
    for (const bool backward : {false, true}) {
      const SoftmaxChoice choice = choose_softmax(SoftmaxKind::kRows, problem, backward, facts);
      program.header = softmax_header(choice.kind);
      for (const std::string& kernel : softmax_kernels(choice, backward))
        program.kernels.push_back(kernel);
    }
    return program;
  }

  // Statuses of a program's calls, from opening the device to copying the result. Those after the
  // first failure are made as well where they can be.
  struct Run {
    std::vector<perseid_status> statuses;
    void add(perseid_status status) {
      statuses.push_back(status);
      const std::string sentence = status == PERSEID_OK ? "" : perseid_last_error();
      EXPECT_TRUE(status == PERSEID_OK || sentence.size() > 30) << sentence;
    }
    bool ok() const {
      return std::all_of(statuses.begin(), statuses.end(),
                         [](perseid_status status) { return status == PERSEID_OK; });
    }
  };
  static Run run_program(int64_t length = kLength) {
    Run run;
    perseid_context_options options{};
    options.struct_size = sizeof options;
    options.device_type = kDLCUDA;
    perseid_context_t context = nullptr;
    run.add(perseid_context_create(&options, &context));
    if (context == nullptr) return run;
    perseid_timer_t timer = nullptr;
    run.add(perseid_timer_create(context, &timer));
    perseid_softmax_desc desc{};
    desc.struct_size = sizeof desc;
    desc.dtype = PERSEID_F32;
    desc.ndim = 2;
    desc.dim = -1;
    desc.shape[0] = kRows;
    desc.shape[1] = length;
    desc.implementation = length == kLength ? "cuda:rows" : "cuda:split";
    perseid_plan_t plan = nullptr;
    run.add(perseid_softmax_plan_create(context, &desc, &plan));
    const size_t bytes = static_cast<size_t>(4 * kRows * length);
    void *x = nullptr, *y = nullptr, *workspace = nullptr;
    run.add(perseid_memory_allocate(context, bytes, &x));
    run.add(perseid_memory_allocate(context, bytes, &y));
    size_t needed = 0;
    if (plan != nullptr) run.add(perseid_plan_workspace_size(plan, PERSEID_FORWARD, &needed));
    run.add(perseid_memory_allocate(context, needed, &workspace));
    std::vector<std::byte> host(bytes);
    if (x != nullptr) run.add(perseid_memory_copy(context, x, host.data(), bytes, nullptr));
    if (timer != nullptr) run.add(perseid_timer_start(timer, nullptr));
    if (plan != nullptr && x != nullptr && y != nullptr && (workspace != nullptr || needed == 0)) {
      int64_t shape[] = {kRows, length};
      DLTensor input{};
      input.data = x;
      input.device = {kDLCUDA, 0};
      input.ndim = 2;
      input.dtype = {kDLFloat, 32, 1};
      input.shape = shape;
      DLTensor output = input;
      output.data = y;
      perseid_softmax_forward_args args{};
      args.struct_size = sizeof args;
      args.input = &input;
      args.output = &output;
      run.add(perseid_softmax_forward(plan, &args, workspace, needed, nullptr));
    }
    double seconds = 0;
    if (timer != nullptr) {
      run.add(perseid_timer_stop(timer, nullptr));
      run.add(perseid_timer_seconds(timer, &seconds));
    }
    run.add(perseid_stream_synchronize(context, nullptr));
    if (y != nullptr) run.add(perseid_memory_copy(context, host.data(), y, bytes, nullptr));
    double rate = 0;
    run.add(perseid_context_ceiling(context, PERSEID_CEILING_COPY, 4096, &rate));
    for (void* memory : {x, y, workspace}) perseid_memory_free(context, memory);
    perseid_context_destroy(context);
    perseid_plan_destroy(plan);
    perseid_timer_destroy(timer);
    return run;
  }

  static constexpr int64_t kRows = 64, kLength = 128, kLongLength = 4096;
  const Fake fake_;
  int64_t before_ = 0;
};

TEST_F(Faults, NoneMeansSuccess) {
  for (const int64_t length : {kLength, kLongLength}) {
    const int64_t launches = fake_.launches();
    const Run run = run_program(length);
    EXPECT_TRUE(run.ok()) << perseid_last_error();
    EXPECT_EQ(fake_.launches() - launches, length == kLength ? 1 : 2);
  }
}

// It is passed over: the compiler is asked, and there is none.
TEST_F(Faults, OfAPackThatLacksKernels) {
  const Program program = both_directions();
  std::shared_ptr<Gpu> gpu;
  ASSERT_TRUE(Gpu::open(0, &gpu, program.architecture).ok());
  std::vector<Kernel> kernels;
  const Status status = gpu->load(program.header, program.kernels, &kernels);
  EXPECT_EQ(status.code(), PERSEID_UNSUPPORTED);
  EXPECT_NE(status.sentence().find("tried /nowhere/libnvrtc.so"), std::string::npos)
      << status.sentence();
}

// Whatever call it is that fails, once. Not that which makes the context current: what cannot be
// reached cannot be given back.
TEST_F(Faults, OfAnyCallAreTold) {
  for (const int64_t length : {kLength, kLongLength}) {
    int64_t begin = fake_.calls();
    run_program(length);
    const int64_t calls = fake_.calls() - begin;
    ASSERT_GT(calls, 50);
    size_t told = 0;
    for (int after = 1; after <= static_cast<int>(min(calls, int64_t{200})); ++after) {
      SCOPED_TRACE(after);
      fake_.fail("*", kIllegalAddress, after, 0);
      const Run run = run_program(length);
      told += !run.ok();
      for (const perseid_status status : run.statuses)
        EXPECT_TRUE(status == PERSEID_OK || status == PERSEID_DEVICE_ERROR) << status;
      fake_.fail("", 0, 0, 0);
      ASSERT_EQ(fake_.alive(), before_) << "call " << after << " failed, and something is left";
    }
    // What is asked for facts alone may fail unnoticed.
    EXPECT_GT(told, 30u);
    EXPECT_TRUE(run_program(length).ok()) << perseid_last_error();
  }
}

// From some call on all fail: the device is lost.
TEST_F(Faults, OfALostDeviceAreTold) {
  for (int after = 1; after <= 120; ++after) {
    SCOPED_TRACE(after);
    fake_.fail("*", kIllegalAddress, after, 1);
    const Run run = run_program();
    EXPECT_FALSE(run.ok());
    fake_.fail("", 0, 0, 0);
    // What a lost context held is the driver's; nothing of it was given back.
    before_ = fake_.alive();
  }
  EXPECT_TRUE(run_program().ok()) << perseid_last_error();
}

// Also where only the context is gone.
TEST_F(Faults, OfTheContextAreTold) {
  for (int after = 1; after <= 40; ++after) {
    SCOPED_TRACE(after);
    fake_.fail("cuCtxPushCurrent_v2", kIllegalAddress, after, 1);
    run_program();
    fake_.fail("", 0, 0, 0);
    before_ = fake_.alive();
  }
  EXPECT_TRUE(run_program().ok()) << perseid_last_error();
}

// The fixture of tests on a GPU.
class SetUpAlone : public testing_gpu::GpuTest {
 public:
  void TestBody() override {}
  using GpuTest::SetUp;
};

// Else the tests' bodies would go on without a GPU.
TEST_F(Faults, OfOpeningTheGpuAreFatalToItsTests) {
  fake_.fail("cuDevicePrimaryCtxRetain", kMemory, 1, 1);
  EXPECT_FATAL_FAILURE(SetUpAlone().SetUp(), "opening the GPU's context failed");
}

TEST_F(Faults, OfFullMemoryAreTold) {
  for (const char* name : {"cuMemAlloc_v2", "cuModuleLoadData", "cuLaunchKernelEx"}) {
    fake_.fail(name, kMemory, 1, 1);
    const Run run = run_program();
    EXPECT_FALSE(run.ok()) << name;
    for (const perseid_status status : run.statuses)
      EXPECT_TRUE(status == PERSEID_OK || status == PERSEID_OUT_OF_MEMORY) << name << status;
    fake_.fail("", 0, 0, 0);
  }
}

// Threads that run while calls fail now and then.
TEST_F(Faults, InManyThreadsAreTold) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int turn = 0; turn < 20; ++turn) {
        fake_.fail("*", kIllegalAddress, 37, 0);
        run_program();
      }
    });
  for (std::thread& thread : threads) thread.join();
  fake_.fail("", 0, 0, 0);
  EXPECT_TRUE(run_program().ok()) << perseid_last_error();
}

// The host time of an execution but for the driver's.
TEST_F(Faults, LeaveLaunchesQuick) {
  perseid_context_options options{};
  options.struct_size = sizeof options;
  options.device_type = kDLCUDA;
  perseid_context_t context = nullptr;
  ASSERT_EQ(perseid_context_create(&options, &context), PERSEID_OK) << perseid_last_error();
  perseid_softmax_desc desc{};
  desc.struct_size = sizeof desc;
  desc.dtype = PERSEID_F32;
  desc.ndim = 2;
  desc.dim = -1;
  desc.shape[0] = kRows;
  desc.shape[1] = kLength;
  perseid_plan_t plan = nullptr;
  ASSERT_EQ(perseid_softmax_plan_create(context, &desc, &plan), PERSEID_OK) << perseid_last_error();
  std::vector<float> x(kRows * kLength), y(kRows * kLength);
  int64_t shape[] = {kRows, kLength};
  DLTensor input{};
  input.data = x.data();
  input.device = {kDLCUDA, 0};
  input.ndim = 2;
  input.dtype = {kDLFloat, 32, 1};
  input.shape = shape;
  DLTensor output = input;
  output.data = y.data();
  perseid_softmax_forward_args args{};
  args.struct_size = sizeof args;
  args.input = &input;
  args.output = &output;
  double best = 1;
  for (int round = 0; round < 50; ++round) {
    constexpr int kTurns = 1000;
    const auto start = std::chrono::steady_clock::now();
    for (int turn = 0; turn < kTurns; ++turn)
      perseid_softmax_forward(plan, &args, nullptr, 0, nullptr);
    const auto end = std::chrono::steady_clock::now();
    best = std::min(best, std::chrono::duration<double>(end - start).count() / kTurns);
  }
  std::printf("  host time of an execution without the driver's: %.2f us\n", best * 1e6);
  EXPECT_LT(best, 1e-4);  // a sanitizer or an emulator slows it down
  perseid_plan_destroy(plan);
  perseid_context_destroy(context);
}

// What a kernel has reported is returned once, by the next synchronisation of its stream alone.
TEST_F(Faults, ReportsOfWaits) {
  std::shared_ptr<Gpu> gpu;
  ASSERT_TRUE(Gpu::open(0, &gpu).ok());
  char streams[2];
  const WaitingExecution execution{.operation = "matmul", .deadline_ns = {5'000'000, 7'000'000}};
  WaitReport* report = nullptr;
  fake_.fail("cuMemHostAlloc", kMemory, 1, 0);
  EXPECT_EQ(gpu->wait_reports().draw(execution, streams, &report).code(), PERSEID_OUT_OF_MEMORY);
  for (int turn = 0; turn < 3000; ++turn) {
    ASSERT_TRUE(gpu->wait_reports().draw(execution, streams, &report).ok());
    ASSERT_EQ(report->status, PERSEID_OK);
    if (turn % 1000 != 999) continue;
    *report = {kReportedTimeout, -1, 1, 4, 9, 8};
    EXPECT_TRUE(synchronize(*gpu, streams + 1).ok());
    const Status status = synchronize(*gpu, streams);
    EXPECT_EQ(status.code(), PERSEID_TIMEOUT);
    EXPECT_EQ(status.sentence().substr(0, 72),
              "matmul: chunk 4 of b: not arrived within 7 ms (its signal is 8, the epoc");
    EXPECT_TRUE(synchronize(*gpu, streams).ok());
  }
  // The older of two comes first.
  WaitReport* second = nullptr;
  ASSERT_TRUE(gpu->wait_reports().draw(execution, streams, &report).ok());
  ASSERT_TRUE(gpu->wait_reports().draw(execution, streams, &second).ok());
  *second = {kReportedTimeout, -1, 0, 2, 9, 8};
  *report = {kReportedPeerLost, -1, 0, 1, 9, 8};
  EXPECT_EQ(synchronize(*gpu, streams).code(), PERSEID_PEER_LOST);
  EXPECT_EQ(synchronize(*gpu, streams).code(), PERSEID_TIMEOUT);
  // Reports of this stream that somebody knows of.
  ASSERT_TRUE(gpu->wait_reports().draw(execution, streams, &report).ok());
  ASSERT_TRUE(gpu->wait_reports().draw(execution, streams + 1, &second).ok());
  *report = *second = {kReportedPeerLost, -1, 0, 1, 9, 8};
  gpu->wait_reports().forget(streams);
  EXPECT_TRUE(synchronize(*gpu, streams).ok());
  EXPECT_EQ(synchronize(*gpu, streams + 1).code(), PERSEID_PEER_LOST);
}

// Loading and freeing wait for all work of the context: what waits for other ranks ends before,
// whichever object of the device it is of.
TEST_F(Faults, LoadsAfterWhatWaitsForOtherRanks) {
  struct Waits : StreamObserver {
    const Fake& fake;
    int drained = 0;
    explicit Waits(const Fake& driver) : fake(driver) {}
    Status take(void*) override { return {}; }
    void drain() override {
      ++drained;
      fake.fail("cuModuleLoadData", kMemory, 1, 0);
    }
  } waits(fake_);
  std::shared_ptr<Gpu> gpu, other;
  ASSERT_TRUE(Gpu::open(0, &gpu).ok() && Gpu::open(0, &other).ok());
  other->wait_reports().observers().add(&waits);
  const SoftmaxProblem problem{.rank = 2, .dim = 1, .shape = {kRows, kLength}};
  const SoftmaxChoice choice = choose_softmax(SoftmaxKind::kRows, problem, false, gpu->facts());
  const auto load = [&] {
    std::vector<Kernel> kernels;
    return gpu->load(softmax_header(choice.kind), softmax_kernels(choice, false), &kernels);
  };
  EXPECT_EQ(load().code(), PERSEID_OUT_OF_MEMORY) << "the kernel was loaded first";
  EXPECT_EQ(waits.drained, 1);
  other->wait_reports().observers().remove(&waits);
  EXPECT_TRUE(load().ok());
  other->wait_reports().observers().add(&waits);
  EXPECT_TRUE(load().ok()) << "it is loaded";
  EXPECT_EQ(waits.drained, 1);
  void* memory = nullptr;
  ASSERT_TRUE(allocate(*gpu, 8, &memory).ok());
  EXPECT_EQ(waits.drained, 1);
  release(*gpu, memory);
  EXPECT_EQ(waits.drained, 2);
  other->wait_reports().observers().remove(&waits);
}

TEST_F(Faults, SignalsOfStreams) {
  std::shared_ptr<Gpu> gpu;
  ASSERT_TRUE(Gpu::open(0, &gpu).ok());
  uint32_t signal = 1;
  EXPECT_TRUE(set_signal(*gpu, &signal, 7, nullptr).ok());
  EXPECT_EQ(signal, 7u);
  fake_.fail("cuStreamWriteValue32_v2", kIllegalAddress, 1, 0);
  EXPECT_EQ(set_signal(*gpu, &signal, 8, nullptr).code(), PERSEID_DEVICE_ERROR);
  EXPECT_EQ(signal, 7u);
  void* address = nullptr;
  EXPECT_TRUE(device_address(*gpu, "abort", &signal, &address).ok());
  EXPECT_EQ(address, &signal);
  fake_.fail("cuPointerGetAttribute", 1, 1, 0);
  const Status status = device_address(*gpu, "abort", &signal, &address);
  EXPECT_EQ(status.code(), PERSEID_INVALID_ARGUMENT);
  EXPECT_EQ(status.sentence().substr(0, 46), "abort is in memory that the GPU does not reach");
}

// Executions over ranks ask first whether their stream is being captured.
TEST_F(Faults, CapturedStreamsAreRefused) {
  std::shared_ptr<Gpu> gpu;
  ASSERT_TRUE(Gpu::open(0, &gpu).ok());
  char streams[2];
  fake_.capture(streams);
  const Status status = refuse_capture(*gpu, "matmul-all-reduce", streams);
  EXPECT_EQ(status.code(), PERSEID_UNSUPPORTED);
  EXPECT_EQ(status.sentence().substr(0, 50), "matmul-all-reduce: the stream is being captured, b");
  EXPECT_TRUE(refuse_capture(*gpu, "matmul-all-reduce", streams + 1).ok());
  EXPECT_TRUE(refuse_capture(*gpu, "matmul-all-reduce", nullptr).ok());
  fake_.capture(nullptr);
  EXPECT_TRUE(refuse_capture(*gpu, "matmul-all-reduce", streams).ok());
  fake_.fail("cuStreamIsCapturing", kIllegalAddress, 1, 0);
  EXPECT_EQ(refuse_capture(*gpu, "matmul-all-reduce", streams).code(), PERSEID_DEVICE_ERROR);
}

// Words of a copy queue are written by the next call, by flush() and where there is room for no
// more, and whoever makes that call is told of a failure.
TEST_F(Faults, DeferredWords) {
  std::shared_ptr<Gpu> gpu;
  ASSERT_TRUE(Gpu::open(0, &gpu).ok());
  std::unique_ptr<CopyQueue> queue;
  ASSERT_TRUE(CopyQueue::make(gpu, &queue).ok());
  std::vector<uint32_t> words(200, 0), next(3, 0);
  EXPECT_TRUE(queue->defer_write(&words[0], 7).ok());
  EXPECT_EQ(words[0], 0u);
  EXPECT_TRUE(queue->write_word(&next[0], 1).ok());
  EXPECT_EQ(words[0], 7u);
  EXPECT_TRUE(queue->defer_write(&words[1], 8).ok());
  EXPECT_TRUE(queue->precede(nullptr).ok());
  EXPECT_EQ(words[1], 8u);
  for (uint32_t& word : words) EXPECT_TRUE(queue->defer_write(&word, 9).ok());
  EXPECT_EQ(words.front(), 9u);
  EXPECT_TRUE(queue->flush().ok());
  EXPECT_EQ(words, std::vector<uint32_t>(200, 9));
  const int64_t calls = fake_.calls();
  EXPECT_TRUE(queue->flush().ok());
  EXPECT_EQ(fake_.calls(), calls) << "nothing was deferred";
  EXPECT_TRUE(queue->defer_write(&words[2], 10).ok());
  fake_.fail("cuStreamBatchMemOp_v2", kIllegalAddress, 1, 0);
  EXPECT_FALSE(queue->follow(nullptr).ok());
  EXPECT_TRUE(queue->flush().ok());
  EXPECT_EQ(words[2], 9u);
}

// So are copies, between words. Long rows are copies of their own, short ones go in one at once.
TEST_F(Faults, DeferredCopies) {
  std::shared_ptr<Gpu> gpu;
  ASSERT_TRUE(Gpu::open(0, &gpu).ok());
  std::unique_ptr<CopyQueue> queue;
  ASSERT_TRUE(CopyQueue::make(gpu, &queue).ok());
  constexpr int64_t kRow = 1 << 15;
  std::vector<uint32_t> from(8 * kRow), to(8 * kRow, 0);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint32_t>(i + 1);
  uint32_t word = 0;
  const auto rows = [&](std::vector<uint32_t>& data, int64_t first, int64_t count, int64_t apart,
                        int64_t length) {
    return Tensor{.data = data.data() + first,
                  .dtype = DType::kF32,
                  .rank = 3,
                  .shape = {count, 1, length},
                  .stride = {apart, length, 1}};
  };
  const int64_t calls = fake_.calls();
  EXPECT_TRUE(queue->defer_write(&word, 5).ok());
  EXPECT_TRUE(
      queue->defer_copy(rows(from, 0, 2, 2 * kRow, kRow), rows(to, kRow, 2, kRow, kRow)).ok());
  EXPECT_EQ(word, 5u);
  EXPECT_TRUE(queue->defer_copy(rows(from, 7 * kRow, 1, 0, 3), rows(to, 5, 1, 0, 3)).ok());
  EXPECT_EQ(to, std::vector<uint32_t>(8 * kRow, 0));
  EXPECT_TRUE(queue->defer_write(&word, 6).ok());
  EXPECT_EQ(fake_.calls(), calls + 2) << "words, then copies";
  EXPECT_EQ(word, 5u);
  for (int64_t i = 0; i < 8 * kRow; ++i) {
    const int64_t row = i / kRow, in = i % kRow;
    const int64_t source = row == 1          ? in
                           : row == 2        ? 2 * kRow + in
                           : 5 <= i && i < 8 ? 7 * kRow + i - 5
                                             : -1;
    ASSERT_EQ(to[static_cast<size_t>(i)], source < 0 ? 0 : source + 1) << i;
  }
  EXPECT_TRUE(queue->defer_copy(rows(from, 0, 4, 10, 4), rows(to, 0, 4, 12, 4)).ok());
  EXPECT_EQ(word, 6u);
  EXPECT_EQ(to[39], from[33]);
  for (int64_t i = 0; i < 70; ++i)
    EXPECT_TRUE(queue->defer_copy(rows(from, i, 1, 0, 1), rows(to, 3 * kRow + i, 1, 0, 1)).ok());
  EXPECT_EQ(to[3 * kRow + 63], 64u);
  EXPECT_EQ(to[3 * kRow + 64], 0u);
  fake_.fail("cuMemcpyBatchAsync", kIllegalAddress, 1, 0);
  EXPECT_FALSE(queue->flush().ok());
  EXPECT_TRUE(queue->flush().ok());
  EXPECT_EQ(to[3 * kRow + 64], 0u);
}

// From the strides `from` to the strides `to` of a tensor: its elements arrive, and nothing else
// changes.
void expect_copied(const Gpu& gpu, const int64_t (&shape)[3], const int64_t (&from)[3],
                   const int64_t (&to)[3]) {
  constexpr size_t kRoom = 4096;
  std::vector<uint32_t> source(kRoom), target(kRoom, 0), wanted(kRoom, 0);
  for (size_t i = 0; i < kRoom; ++i) source[i] = static_cast<uint32_t>(i + 1);
  Tensor tensors[2];
  for (Tensor& tensor : tensors) {
    const bool is_source = &tensor == tensors;
    tensor.data = is_source ? source.data() : target.data();
    tensor.dtype = DType::kF32;
    tensor.rank = 3;
    std::copy(shape, shape + 3, tensor.shape);
    std::copy(is_source ? from : to, (is_source ? from : to) + 3, tensor.stride);
  }
  for (int64_t i = 0; i < shape[0]; ++i)
    for (int64_t j = 0; j < shape[1]; ++j)
      for (int64_t k = 0; k < shape[2]; ++k)
        wanted[static_cast<size_t>(i * to[0] + j * to[1] + k * to[2])] =
            source[static_cast<size_t>(i * from[0] + j * from[1] + k * from[2])];
  EXPECT_TRUE(copy_tensor(gpu, tensors[0], tensors[1], nullptr).ok());
  EXPECT_EQ(target, wanted) << shape[0] << " x " << shape[1] << " x " << shape[2];
}

// Without gaps, with gaps, a column alone, and what is contiguous in one of the two only.
TEST_F(Faults, CopiesOfAnyStrides) {
  std::shared_ptr<Gpu> gpu;
  ASSERT_TRUE(Gpu::open(0, &gpu).ok());
  expect_copied(*gpu, {2, 3, 5}, {15, 5, 1}, {15, 5, 1});
  expect_copied(*gpu, {2, 3, 5}, {40, 12, 1}, {15, 5, 1});
  expect_copied(*gpu, {9, 1, 1}, {24, 1, 1}, {6, 1, 1});
  expect_copied(*gpu, {9, 1, 1}, {24, 1, 1}, {1, 1, 1});
  expect_copied(*gpu, {1, 9, 1}, {9, 1, 1}, {60, 6, 1});
  expect_copied(*gpu, {4, 7, 1}, {100, 9, 1}, {28, 4, 1});
  expect_copied(*gpu, {3, 4, 5}, {200, 41, 2}, {60, 15, 3});
  expect_copied(*gpu, {2, 3, 5}, {15, 1, 3}, {15, 5, 1});
  expect_copied(*gpu, {1, 1, 1}, {7, 3, 5}, {1, 1, 1});
  expect_copied(*gpu, {0, 3, 5}, {15, 5, 1}, {15, 5, 1});
}

}  // namespace
}  // namespace perseid::internal::cuda
