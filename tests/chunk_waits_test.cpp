// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// How long kernels of GPUs wait for chunks, without a GPU: what their blocks note, on an emulated
// one (emulated_gpu.hpp), and what the overlap report makes of it, with a fake driver, whose folder
// must be in LD_LIBRARY_PATH, as ctest sets it.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "emulated_gpu.hpp"
// Device code.
#include "collective/overlap_report.hpp"
#include "cuda/device/chunk_waits.hpp"
#include "cuda/runtime/cache.hpp"
#include "cuda/runtime/signals.hpp"
#include "fake_driver.hpp"

namespace perseid::internal {
namespace {

using cuda::ArrivalWaits;
using cuda::ChunkWait;
using emulated_gpu::timer;

constexpr int32_t kChunks = 6, kRows = 10;  // of each chunk
constexpr uint32_t kEpoch = 3;
constexpr uint64_t kPoll = 100;  // how much later an arrival may be seen, in nanoseconds

class ChunkWaits : public testing::Test {
 protected:
  void SetUp() override {
    timer = {};
    begin_ = timer.nanoseconds;
    for (int32_t chunk = 0; chunk <= kChunks; ++chunk) table_[chunk] = chunk * kRows;
    cuda::DeviceArrival& arrival = arguments_.arrivals[0];
    arrival.signals = signals_;
    arrival.deadline_ns = 1'000'000'000;
    arrival.chunks = {table_, kChunks, 2};
    arrival.epoch = kEpoch;
    arrival.waits = waits_;
    timer.slept = [this] { deliver(); };
  }
  void TearDown() override { timer = {}; }

  // Chunks arrive so many nanoseconds after the begin; the others are there.
  void arrive(const std::map<int32_t, uint64_t>& times) {
    times_ = times;
    timer.nanoseconds = begin_;
    deliver();
  }
  void deliver() {
    for (int32_t chunk = 0; chunk < kChunks; ++chunk)
      signals_[chunk] =
          times_.count(chunk) == 0 || timer.nanoseconds >= begin_ + times_[chunk] ? kEpoch : 0;
  }
  // Runs work(waits) by every thread of one warp, or of one thread.
  template <int kWaiters = 1, class Work>
  void run(const Work& work, int block_number = 0, int blocks = 1) {
    emulated_gpu::Block block(block_number, 32, 0, blocks);
    block.run([&] {
      ArrivalWaits<kWaiters> waits(arguments_, 0);
      waits.start();
      work(waits);
    });
  }
  void expect_wait(int32_t chunk, uint64_t from, uint64_t until, uint64_t waited,
                   uint64_t waiters = 1) const {
    SCOPED_TRACE(chunk);
    const ChunkWait& wait = waits_[chunk];
    EXPECT_NEAR(static_cast<double>(wait.waited), static_cast<double>(waited),
                static_cast<double>(kPoll * waiters));
    EXPECT_NEAR(static_cast<double>(~wait.not_before - begin_), static_cast<double>(from), kPoll);
    EXPECT_NEAR(static_cast<double>(wait.until - begin_), static_cast<double>(until), kPoll);
    EXPECT_EQ(wait.waiters, waiters);
  }
  void expect_none(int32_t chunk) const {
    EXPECT_EQ(waits_[chunk].waited, 0u) << chunk;
    EXPECT_EQ(waits_[chunk].waiters, 0u) << chunk;
  }

  cuda::AsyncArguments arguments_;
  uint32_t signals_[kChunks] = {};
  int32_t table_[kChunks + 1] = {};
  ChunkWait waits_[kChunks] = {};
  std::map<int32_t, uint64_t> times_;
  uint64_t begin_ = 0;
};

TEST_F(ChunkWaits, OfAWarpAreNotedForEachChunk) {
  // Visits 0 to 5 are of chunks 2, 3, 4, 5, 0, 1.
  arrive({{3, 5'000}, {4, 4'000}, {0, 20'000}, {1, 21'000}});
  run([&](auto& waits) {
    for (int32_t visit = 0; visit < kChunks; ++visit) {
      const int32_t chunk = arguments_.arrivals[0].chunks.chunk_of_visit(visit);
      waits.await({chunk, chunk}, {});
    }
  });
  for (const int32_t chunk : {2, 4, 5}) expect_none(chunk);  // there, when they were asked for
  expect_wait(3, 0, 5'000, 5'000);
  expect_wait(0, 5'000, 20'000, 15'000);
  expect_wait(1, 20'000, 21'000, 1'000);
}

TEST_F(ChunkWaits, OfARangeAreThoseForItsFirstMissingChunks) {
  arrive({{4, 5'000}, {5, 2'000}, {0, 9'000}, {1, 9'000}});
  run([](auto& waits) { waits.await({}, {0, kChunks - 1}); });
  expect_wait(4, 0, 5'000, 5'000);
  expect_wait(0, 5'000, 9'000, 4'000);
  for (const int32_t chunk : {1, 2, 3, 5}) expect_none(chunk);
}

TEST_F(ChunkWaits, OfRows) {
  arrive({{1, 3'000}, {2, 7'000}});
  run([this](auto& waits) {
    const ChunkRange<int32_t> known = waits.await_rows(arguments_.arrivals[0], 5, 25, {0, 0});
    EXPECT_EQ(known.first, 0);
    EXPECT_GE(known.last, 30);
  });
  expect_none(0);
  expect_wait(1, 0, 3'000, 3'000);
  expect_wait(2, 3'000, 7'000, 4'000);
}

TEST_F(ChunkWaits, OfOneThread) {
  arguments_.arrivals[0].along_k = true;
  arguments_.arrivals[0].chunks.first = 0;
  arrive({{1, 3'000}, {4, 7'000}});
  run([](auto& waits) {
    if (threadIdx.x != 0) return;
    for (int depth = 1; depth <= kChunks * kRows; ++depth) waits.await_depth(depth);
  });
  expect_wait(1, 0, 3'000, 3'000);
  expect_wait(4, 3'000, 7'000, 4'000);
  for (const int32_t chunk : {0, 2, 3, 5}) expect_none(chunk);
}

TEST_F(ChunkWaits, OfAllBlocksAddUp) {
  for (int block = 0; block < 3; ++block) {
    arrive({{1, 3'000 + 1'000 * static_cast<uint64_t>(block)}});
    run([](auto& waits) { waits.await({1, 1}, {}); }, block, 3);
  }
  expect_wait(1, 0, 5'000, 12'000, 3);
}

// A fast path with a timer would make every tile slower.
TEST_F(ChunkWaits, ReadNoTimerWithoutNeed) {
  const auto everything = [&](auto& waits) {
    waits.await({0, 3}, {0, kChunks - 1});
    waits.await_rows(arguments_.arrivals[0], 0, kRows * kChunks, {0, 0});
    if (threadIdx.x == 0)
      for (int chunk = 0; chunk < kChunks; ++chunk) waits.await_chunk(chunk);
  };
  arrive({});
  run(everything);
  EXPECT_EQ(timer.reads, 32);  // start() of each thread
  // Nobody asks.
  arguments_.arrivals[0].waits = nullptr;
  timer.reads = 0;
  arrive({{3, 300}, {5, 600}});
  run(everything);
  EXPECT_EQ(timer.reads, 32);
  // Who runs ahead of the block's work.
  arguments_.arrivals[0].waits = waits_;
  timer.reads = 0;
  arrive({{3, 300}, {5, 600}});
  run<0>(everything);
  EXPECT_EQ(timer.reads, 32);
  for (int32_t chunk = 0; chunk < kChunks; ++chunk) expect_none(chunk);
}

// ---- The report ----

using collective::OverlapReport;
using Kind = OverlapReport::Kind;

class ReportsOfGpus : public testing::Test {
 protected:
  void SetUp() override {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    const auto find = [&](const char* name, auto& function) {
      function = library == nullptr
                     ? nullptr
                     : reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    };
    find("fake_fail", fail_);
    find("fake_elapsed", elapsed_);
    if (fail_ == nullptr) GTEST_SKIP() << "needs the fake driver in LD_LIBRARY_PATH";
    write_pack();
    if (const Status status = dispatch::open_cuda(0, {}, &device_); !status.ok())
      GTEST_SKIP() << status.sentence();
    ASSERT_TRUE(collective::Group::open_threads(2, {}, &groups_).ok());
    report_ = std::make_unique<OverlapReport>("an operation", *groups_[0], chunks_, *device_);
  }
  // The kernel of no real code. The library reads the pack once, and never compiles: the compiler
  // asks the driver for what the fake one has not.
  static void write_pack() {
    static const std::string kPath = testing::TempDir() + "/fake.pack";
    if (std::getenv("PERSEID_PACK") != nullptr) return;
    const std::vector<std::string> kernels = {cuda::kChunkWaitsKernel};
    std::ofstream file(kPath, std::ios::binary);
    // What others may write is no pack.
    std::filesystem::permissions(
        kPath, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    file << cuda::write_entry(cuda::key_of({cuda::kSignalWaitHeader, kernels, "sm_90a"}, nullptr),
                              {kernels, "code"});
    setenv("PERSEID_PACK", kPath.c_str(), 1);
    setenv("PERSEID_NVRTC", "/nowhere/libnvrtc.so", 1);
  }
  // As kernels write it: nanoseconds after the execution began, of blocks together.
  static ChunkWait wait(uint64_t from, uint64_t until, uint64_t waited, uint64_t blocks) {
    return {waited, ~(kBegan + from), kBegan + until, blocks};
  }
  // As begin() writes it.
  void clear(ChunkWait* waits) const {
    for (int64_t i = 0; i < kCapacity; ++i) waits[i] = {};
    waits[kCapacity].until = kBegan;
  }
  nlohmann::json give() const {
    const char* json = nullptr;
    const Status status = report_->give(&json);
    EXPECT_TRUE(status.ok()) << status.sentence();
    return status.ok() ? nlohmann::json::parse(json) : nlohmann::json();
  }

  decltype(&fake_fail) fail_ = nullptr;
  decltype(&fake_elapsed) elapsed_ = nullptr;
  static constexpr uint64_t kBegan = 7'000'000'000;
  // Four chunks, and two of each rank.
  static constexpr int64_t kCapacity = 4 + 2 * 2;
  const collective::Shards shards_{
      .dtype = DType::kF32, .outer = 1, .inner = 1, .begin = {0, 8, 16}};
  const collective::ShardChunks chunks_{shards_, 2, 2};
  std::shared_ptr<const dispatch::Device> device_;
  std::vector<std::shared_ptr<collective::Group>> groups_;
  std::unique_ptr<OverlapReport> report_;
};

TEST_F(ReportsOfGpus, WaitsAreNoComputing) {
  for (int execution = 0; execution < 2; ++execution) {
    report_->begin(nullptr);
    const int64_t begin = report_->point(nullptr);
    ChunkWait* const waits = report_->waits();
    ASSERT_NE(waits, nullptr);
    clear(waits);
    report_->add(Kind::kCompute, OverlapReport::kNoChunk, 0, begin);
    const int64_t second = report_->point(nullptr);
    ChunkWait* const sums = report_->waits(2, [](int64_t) { return OverlapReport::Awaited{0, 1}; });
    ASSERT_EQ(sums, waits + 4);
    report_->add(Kind::kCompute, 0, 0, second);
    report_->end(nullptr);
    // A kernel from 1 ms to 5 ms, another one from 5 ms to 6 ms.
    waits[2] = wait(1'500'000, 2'500'000, 66'000'000, 132);
    waits[3] = wait(3'000'000, 4'000'000, 132'000'000, 132);
    sums[1] = wait(5'000'000, 5'300'000, 2'400'000, 8);
    const float milliseconds[] = {1, 5, 5, 6, 7};
    elapsed_(milliseconds, 5);
    const nlohmann::json report = give();
    SCOPED_TRACE(report.dump(1));
    EXPECT_NEAR(report["seconds"].get<double>(), 7e-3, 1e-8);
    EXPECT_NEAR(report["waited_seconds"].get<double>(), 1.8e-3, 1e-8);
    EXPECT_NEAR(report["compute_seconds"].get<double>(), 5e-3 - 1.8e-3, 1e-8);
    const double expected[5][2] = {{2.5e-3, 0}, {0.7e-3, 0.3e-3}, {0, 0}, {0, 0.5e-3}, {0, 1e-3}};
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_NEAR(report["chunks"][i]["compute_seconds"].get<double>(), expected[i][0], 1e-8) << i;
      EXPECT_NEAR(report["chunks"][i]["waited_seconds"].get<double>(), expected[i][1], 1e-8) << i;
    }
    double begin_of_wait = 0, first = 1e300;
    for (const auto& event : report["traceEvents"]) {
      if (event["ph"] != "X") continue;
      first = std::min(first, event["ts"].get<double>());
      if (event["name"] == "wait" && event["args"]["chunk"] == 2) {
        begin_of_wait = event["ts"];
        EXPECT_EQ(event["args"]["rank"], 1);
        EXPECT_NEAR(event["dur"].get<double>(), 1000, 1);
      }
    }
    EXPECT_NEAR(begin_of_wait - first, 500, 1);  // after the first kernel's begin
  }
}

// Clocks of kernels and of streams differ.
TEST_F(ReportsOfGpus, WaitsLieWithinTheKernel) {
  report_->begin(nullptr);
  const int64_t begin = report_->point(nullptr);
  ChunkWait* const waits = report_->waits();
  ASSERT_NE(waits, nullptr);
  clear(waits);
  report_->add(Kind::kCompute, OverlapReport::kNoChunk, 0, begin);
  report_->end(nullptr);
  waits[2] = wait(900'000, 2'010'000, 1'110'000, 1);
  const float milliseconds[] = {1, 2, 2};
  elapsed_(milliseconds, 3);
  const nlohmann::json report = give();
  SCOPED_TRACE(report.dump(1));
  EXPECT_NEAR(report["waited_seconds"].get<double>(), 1e-3, 1e-8);
  EXPECT_NEAR(report["compute_seconds"].get<double>(), 0, 1e-8);
}

TEST_F(ReportsOfGpus, NoMoreWaitsThanThereIsMemoryFor) {
  report_->begin(nullptr);
  const auto of_all = [](int64_t) { return OverlapReport::Awaited{0, 0}; };
  EXPECT_NE(report_->waits(kCapacity, of_all), nullptr);
  EXPECT_EQ(report_->waits(1, of_all), nullptr);
  report_->begin(nullptr);
  EXPECT_NE(report_->waits(1, of_all), nullptr);
}

// A report that cannot be had says so, and the execution goes on.
TEST_F(ReportsOfGpus, AFailureIsOneOfTheReport) {
  for (const bool of_memory : {true, false}) {
    fail_(of_memory ? "cuMemAlloc_v2" : "", 2, 1, 0);
    OverlapReport report("an operation", *groups_[0], chunks_, *device_);
    fail_(of_memory ? "" : "cuLaunchKernelEx", 2, 1, 0);
    report.begin(nullptr);
    EXPECT_EQ(report.waits(), nullptr);
    report.end(nullptr);
    const char* json = nullptr;
    EXPECT_FALSE(report.give(&json).ok());
    EXPECT_EQ(json, nullptr);
  }
}

}  // namespace
}  // namespace perseid::internal
