// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Epochs of groups: words that wrap at 2^32, many of them, two groups interleaved, random delays,
// and what is left of groups that are gone.
#include <dirent.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>

#include "collective/all_gather_matmul.hpp"
#include "collective/exchange.hpp"
#include "collective/matmul_reduce.hpp"
#include "collective/partial_gradients.hpp"
#include "collective/scale_gather.hpp"
#include "collective_tools.hpp"

namespace {

using namespace collective_tools;
namespace collective = perseid::internal::collective;
using collective::Operation;
using collective::sized;
using perseid::internal::Status;

// body(group) on a thread for each rank of a group whose first epoch is given.
void from_epoch(uint32_t first, int32_t size,
                const std::function<void(const collective::GroupPointer&)>& body) {
  std::vector<collective::GroupPointer> groups;
  ASSERT_TRUE(collective::Group::open_threads(size, {.first_epoch = first}, &groups).ok());
  std::vector<std::thread> threads;
  for (collective::GroupPointer& group : groups)
    threads.emplace_back([&body, group = std::move(group)] { body(group); });
  for (std::thread& thread : threads) thread.join();
}

#define EXPECT_OK(call)                              \
  do {                                               \
    const Status status_ = (call);                   \
    EXPECT_TRUE(status_.ok()) << status_.sentence(); \
    if (!status_.ok()) return;                       \
  } while (false)

// The scales of all ranks are there for as long as a product reads them, though one rank is late
// and the others are an epoch ahead of who reads for long.
TEST(Epochs, KeepScalesApart) {
  constexpr int32_t kRanks = 3;
  constexpr int64_t kRows = 4;
  std::shared_ptr<const perseid::internal::dispatch::Device> device;
  ASSERT_TRUE(perseid::internal::dispatch::open_cpu(nullptr, 1, {}, &device).ok());
  from_epoch(0xfffffffcu, kRanks, [&](const collective::GroupPointer& group) {
    const Operation operation("all-gather-matmul", 10'000'000'000);
    const collective::Shards shards{.inner = 1, .begin = {0, kRows, 2 * kRows, 3 * kRows}};
    const collective::ShardChunks chunks(shards, kRanks, 1);
    std::unique_ptr<collective::ScaleGather> gather;
    EXPECT_OK(collective::ScaleGather::make({*group, operation, *device}, 1, shards.begin, chunks,
                                            &gather));
    const auto rank = static_cast<uint32_t>(group->rank());
    const auto value = [](uint32_t of, uint32_t round) {
      return static_cast<float>(100 * round + of);
    };
    for (uint32_t round = 0; round < 9; ++round) {
      std::vector<float> own(kRows, value(rank, round));
      const collective::Sending sending{group->first_epoch() + round, nullptr, nullptr};
      if (round % kRanks == rank) std::this_thread::sleep_for(5ms);
      EXPECT_OK(gather->send(operation, sending,
                             {.data = own.data(),
                              .dtype = perseid::internal::DType::kF32,
                              .rank = 2,
                              .shape = {1, kRows},
                              .stride = {kRows, 1}}));
      EXPECT_OK(gather->await(operation, sending));
      if ((round + 1) % kRanks == rank) std::this_thread::sleep_for(5ms);
      const auto* all = static_cast<const float*>(gather->scales()->data);
      for (uint32_t row = 0; row < kRanks * kRows; ++row)
        EXPECT_EQ(all[row], value(row / kRows, round)) << "rank " << rank << ", row " << row;
      EXPECT_OK(gather->finish(sending));
    }
  });
}

TEST(Epochs, Wrap) {
  std::shared_ptr<const perseid::internal::dispatch::Device> device;
  ASSERT_TRUE(perseid::internal::dispatch::open_cpu(nullptr, 1, {}, &device).ok());
  for (const uint32_t first : {1u, 0xfffffffcu, 0x7ffffffcu})
    from_epoch(first, 3, [&](const collective::GroupPointer& group) {
      auto product = sized<perseid_gather_product>();
      product.n = 5;
      auto gather = sized<perseid_all_gather_matmul_desc>();
      gather.dtype = PERSEID_F32;
      gather.product_count = 1;
      gather.m = 2;
      gather.k = 4;
      gather.products = &product;
      auto reduce = sized<perseid_matmul_reduce_desc>();
      reduce.dtype = PERSEID_F32;
      reduce.all_reduce = 1;
      reduce.m = 2;
      reduce.n = 5;
      reduce.k = 4;
      collective::InnerPlan gathering, reducing;
      EXPECT_OK(collective::AllGatherMatmulPlan::make(device, group, gather, &gathering));
      EXPECT_OK(collective::MatmulReducePlan::make(device, group, reduce, &reducing));
      size_t bytes = 0, more = 0;
      EXPECT_OK(
          gathering->workspace_size(perseid::internal::dispatch::Direction::kForward, &bytes));
      EXPECT_OK(reducing->workspace_size(perseid::internal::dispatch::Direction::kForward, &more));
      std::vector<std::byte> memory(std::max(bytes, more));
      const perseid::internal::op::Workspace workspace{memory.data(), memory.size()};
      for (int i = 0; i < 12; ++i) {
        const float value = static_cast<float>(i + group->rank());
        const std::vector<float> a(8, value), b(20, 1);
        std::vector<float> c(30), sum(10);
        const Tensor of_a(a.data(), perseid::f32, {2, 4}), of_b(b.data(), perseid::f32, {4, 5});
        const Tensor of_c(c.data(), perseid::f32, {6, 5}), of_sum(sum.data(), perseid::f32, {2, 5});
        const DLTensor *bs[] = {of_b.dl()}, *cs[] = {of_c.dl()};
        auto args = sized<perseid_all_gather_matmul_args>();
        args.a = of_a.dl();
        args.b = bs;
        args.c = cs;
        EXPECT_OK(static_cast<const collective::AllGatherMatmulPlan&>(*gathering)
                      .execute(args, workspace, nullptr));
        for (size_t row = 0; row < 6; ++row)
          EXPECT_EQ(c[5 * row], 4 * static_cast<float>(i + static_cast<int>(row / 2)));
        auto to_reduce = sized<perseid_matmul_reduce_args>();
        to_reduce.a = of_a.dl();
        to_reduce.b = of_b.dl();
        to_reduce.c = of_sum.dl();
        EXPECT_OK(static_cast<const collective::MatmulReducePlan&>(*reducing).execute(
            to_reduce, workspace, nullptr));
        EXPECT_EQ(sum[9], 4 * static_cast<float>(3 * i + 3));
        float total = 0;
        const Tensor of_value(&value, perseid::f32, {1}), of_total(&total, perseid::f32, {1});
        EXPECT_OK(collective::all_reduce(*group, collective::Reduction::kSum, of_value.dl(),
                                         of_total.dl(), 0));
        EXPECT_EQ(total, static_cast<float>(3 * i + 3));
      }
    });
}

// What rank 1 signals is there before rank 0 looks.
constexpr auto kUntilSignalled = 20ms;

// Rank 1 signals another epoch than that of the operation: the one before, or one half of all
// numbers on, which counts as far behind. signals(group, operation, difference, record): what rank
// 1 does, and how the wait of rank 0 ends.
void expect_wrong_epochs_named(
    const std::function<Status(const collective::GroupPointer&, const Operation&, uint32_t,
                               perseid_wait_record*)>& signals) {
  for (const uint32_t difference : {0xffffffffu, 0x80000000u})
    from_epoch(7, 2, [&](const collective::GroupPointer& group) {
      const Operation operation("epochs", 150'000'000);
      perseid_wait_record record{};
      const Status status = signals(group, operation, difference, &record);
      if (group->rank() == 1) {
        std::this_thread::sleep_for(300ms);  // it has not left
        return;
      }
      EXPECT_EQ(status.code(), PERSEID_TIMEOUT);
      EXPECT_NE(status.sentence().find("epochs: rank 1 has not taken part within 150 ms"),
                std::string::npos)
          << status.sentence();
      EXPECT_EQ(group->failed(), 1);
      if (record.status == PERSEID_OK) return;  // an operation without one
      EXPECT_EQ(record.rank, 1);
      // A part of a sum leaves for another host once the epoch is reached.
      if (group->shares_memory()) {
        EXPECT_EQ(record.seen - record.expected, difference);
      }
    });
}

const collective::Shards& two_shards() {
  static const collective::Shards kShards{.inner = 3, .begin = {0, 4, 8}};
  return kShards;
}

TEST(WrongEpochs, OfGatheredChunksAreNamed) {
  std::shared_ptr<const perseid::internal::dispatch::Device> device;
  ASSERT_TRUE(perseid::internal::dispatch::open_cpu(nullptr, 1, {}, &device).ok());
  expect_wrong_epochs_named([&](const collective::GroupPointer& group, const Operation& operation,
                                uint32_t difference, perseid_wait_record* record) {
    const collective::ShardChunks chunks(two_shards(), 2, 2);
    std::unique_ptr<collective::GatherTransport> gather;
    Status status = collective::transport_of(*device, *group)
                        .make_gather({*group, operation, *device}, two_shards(), chunks, &gather);
    const collective::Turn turn(*group, operation);
    const int32_t rank = group->rank();
    const uint32_t epoch = 7 + (rank == 1 ? difference : 0);
    std::vector<float> shard(12, 1);
    std::vector<collective::SentPart> parts;
    collective::cut_shard(two_shards(), chunks, rank, gather->gathered(),
                          two_shards().view(reinterpret_cast<std::byte*>(shard.data()), 0, 4),
                          &parts);
    const collective::Sending sending{epoch, nullptr, record};
    if (status.ok()) status = gather->start(operation, 7);
    if (status.ok()) status = gather->send(operation, sending, parts);
    if (rank == 0) std::this_thread::sleep_for(kUntilSignalled);
    if (status.ok() && rank == 0)
      status = collective::await_chunks(*group, operation, chunks, gather->signals(), sending);
    if (rank == 0) {
      EXPECT_EQ(record->chunk, 2);  // the first of rank 1
    }
    return status;
  });
}

TEST(WrongEpochs, OfPartsOfASumAreNamed) {
  std::shared_ptr<const perseid::internal::dispatch::Device> device;
  ASSERT_TRUE(perseid::internal::dispatch::open_cpu(nullptr, 1, {}, &device).ok());
  expect_wrong_epochs_named([&](const collective::GroupPointer& group, const Operation& operation,
                                uint32_t difference, perseid_wait_record* record) {
    const collective::ShardChunks chunks(two_shards(), 2, 1);
    std::unique_ptr<collective::ReduceTransport> reduce;
    Status status = collective::transport_of(*device, *group)
                        .make_reduce({*group, operation, *device}, two_shards(), chunks, &reduce);
    const collective::Turn turn(*group, operation);
    const int32_t rank = group->rank();
    const collective::Sending sending{7, nullptr, record};
    if (status.ok()) status = reduce->start(operation, sending);
    for (int64_t chunk = 0; chunk < chunks.count(); ++chunk)
      group->signal(reduce->signals() + chunk, 7 + (rank == 1 ? difference : 0));
    if (status.ok()) status = reduce->send(sending);
    if (rank == 0) std::this_thread::sleep_for(kUntilSignalled);
    perseid::internal::Tensor part;
    for (int32_t of = 0; status.ok() && rank == 0 && of < 2; ++of)
      status = reduce->part(operation, sending, of, 0, &part);
    return status;
  });
}

TEST(WrongEpochs, OfAnInboxAreNamed) {
  expect_wrong_epochs_named([](const collective::GroupPointer& group, const Operation& operation,
                               uint32_t difference, perseid_wait_record*) {
    const collective::Turn turn(*group, operation);
    if (group->rank() == 0) {
      std::this_thread::sleep_for(kUntilSignalled);
      return collective::meet_within(*group, operation);
    }
    group->signal(&group->words(1).ready, 7 + difference);
    return Status();
  });
}

void count_up(int32_t ranks, int64_t operations) {
  on_threads(ranks, [&](const Group& group) {
    for (int64_t i = 0; i < operations; ++i) {
      const double mine = static_cast<double>(i * group.size() + group.rank());
      double sum = 0;
      group.all_reduce(Tensor(&mine, perseid::f64, {1}), Tensor(&sum, perseid::f64, {1}));
      const double ranks_sum = static_cast<double>(group.size() * (group.size() - 1) / 2);
      ASSERT_EQ(sum, static_cast<double>(i * group.size() * group.size()) + ranks_sum);
    }
  });
}

TEST(Epochs, AreMany) { count_up(2, 5000); }
TEST(Epochs, SweepAreAHundredThousand) { count_up(2, 34000); }  // three epochs each

// Each rank is in two groups, and late by random times.
void interleave(uint64_t seed) {
  const std::vector<Group> one = Group::threads(3), other = Group::threads(3);
  std::vector<std::thread> threads;
  std::vector<std::string> failures(3);
  for (size_t rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      std::mt19937_64 engine(seed * 3 + rank);
      const Ended end = ended([&] {
        for (int i = 0; i < 10; ++i) {
          for (const std::vector<Group>* groups : {&one, &other}) {
            if (engine() % 4 == 0)
              std::this_thread::sleep_for(std::chrono::microseconds(engine() % 300));
            // The other group's ranks are numbered the other way round.
            const size_t number = groups == &one ? rank : 2 - rank;
            const float mine = static_cast<float>(i + 10 * static_cast<int>(number));
            float all[3] = {}, sum = 0;
            const Group& group = (*groups)[number];
            group.all_gather(Tensor(&mine, perseid::f32, {1}), Tensor(all, perseid::f32, {3}));
            group.all_reduce(Tensor(&mine, perseid::f32, {1}), Tensor(&sum, perseid::f32, {1}));
            for (int r = 0; r < 3; ++r) ASSERT_EQ(all[r], static_cast<float>(i + 10 * r));
            ASSERT_EQ(sum, static_cast<float>(3 * i + 30));
          }
        }
      });
      failures[rank] = end.sentence;
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) EXPECT_EQ(failure, "") << "seed " << seed;
}

TEST(Epochs, OfTwoGroupsInterleave) {
  for (uint64_t seed = 0; seed < 20; ++seed) interleave(seed);
}
TEST(Epochs, SweepAThousandSeedsOfDelays) {
  for (uint64_t seed = 0; seed < 1000; ++seed) interleave(1000 + seed);
}

// Nothing else holds the ranks together here: a rank may be ready to write its next part while
// another one has not read the last, in place or in the window that was put into.
TEST(Epochs, OfPartialGradientsWaitForSlowReaders) {
  constexpr int64_t kRows = 4, kDim = 5;
  constexpr int32_t kRanks = 3;
  std::shared_ptr<const perseid::internal::dispatch::Device> device;
  ASSERT_TRUE(perseid::internal::dispatch::open_cpu(nullptr, 1, {}, &device).ok());
  from_epoch(0xfffffffcu, kRanks, [&](const collective::GroupPointer& group) {
    const Operation operation("gradients", 10'000'000'000);
    const collective::TransportSite site{*group, operation, *device};
    const collective::Shards shards{.inner = kDim, .begin = {0, kRanks * kRows}};
    std::unique_ptr<collective::PartialGradients> gradients;
    EXPECT_OK(collective::PartialGradients::make(
        site, shards, kRows, perseid::internal::DType::kF32, {false}, false, &gradients));
    const int32_t rank = group->rank();
    // Of the partial gradients of all rows, those that a rank sums.
    const auto rows_of = [&](int32_t of) {
      return perseid::internal::Tensor{
          .data = gradients->partial() + of * kRows * kDim * int64_t{sizeof(float)},
          .dtype = perseid::internal::DType::kF32,
          .rank = 3,
          .shape = {kRows, 1, kDim},
          .stride = {kDim, kDim, 1}};
    };
    for (int epoch = 0; epoch < 9; ++epoch) {
      const collective::Turn turn(*group, operation);
      EXPECT_OK(gradients->start(operation, {}));
      std::fill_n(reinterpret_cast<float*>(gradients->partial()), kRanks * kRows * kDim,
                  static_cast<float>(10 * epoch + rank));
      if (!group->shares_memory())
        group->for_each_other(
            [&](int32_t other) { EXPECT_OK(gradients->give(other, rows_of(other), 0)); });
      EXPECT_OK(gradients->share(operation));
      if (epoch % kRanks == rank) std::this_thread::sleep_for(5ms);
      std::vector<float> sum(kRows * kDim);
      perseid::internal::Tensor out = rows_of(rank);
      out.data = sum.data();
      gradients->sum({.out = out, .partial = rows_of(rank), .readers = ~uint64_t{0}});
      EXPECT_OK(gradients->sum_all(operation));
      EXPECT_EQ(sum, std::vector<float>(kRows * kDim, static_cast<float>(30 * epoch + 3)));
      EXPECT_OK(gradients->finish());
    }
  });
}

int64_t entries_of(const char* folder) {
  DIR* opened = opendir(folder);
  if (opened == nullptr) return -1;
  int64_t count = 0;
  while (readdir(opened) != nullptr) ++count;
  closedir(opened);
  return count;
}

// Descriptors, threads and mappings are as many as before.
void come_and_go(int groups) {
  const auto once = [] {
    on_threads(3, [](const Group& group) {
      std::optional<perseid::GroupMemory> memory;
      if (!are_hosts()) memory.emplace(group, 4096);
      group.barrier();
    });
  };
  once();
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  };
  const int64_t descriptors = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
  const auto before = mappings();
  for (int i = 0; i < groups; ++i) once();
  EXPECT_EQ(entries_of("/proc/self/fd"), descriptors);
  EXPECT_LE(entries_of("/proc/self/task"), threads);
  // AddressSanitizer maps memory of its own as the process goes on.
#ifdef __SANITIZE_ADDRESS__
  constexpr int64_t kMore = 64;
#else
  constexpr int64_t kMore = 16;
#endif
  EXPECT_LE(mappings(), before + kMore);
}

TEST(Groups, LeaveNothingBehind) { come_and_go(100); }
TEST(Groups, SweepLeaveNothingBehindAfterTenThousand) { come_and_go(10000); }

}  // namespace
