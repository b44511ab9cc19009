// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Groups of threads: operations without a plan, what is refused and with which sentence, ranks that
// do not take part, leave, or go on without one another.
#include <atomic>

#include "collective_tools.hpp"

namespace {

using namespace collective_tools;
using perseid::Reduction;

class Ranks : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Ranks, testing::Values(1, 2, 3, 5));

TEST_P(Ranks, KnowWhoTheyAre) {
  const std::vector<Group> groups = Group::threads(GetParam());
  for (size_t rank = 0; rank < groups.size(); ++rank) {
    const perseid_group_info info = groups[rank].info();
    EXPECT_EQ(info.rank, static_cast<int32_t>(rank));
    EXPECT_EQ(info.size, GetParam());
    EXPECT_EQ(info.first_rank, static_cast<int32_t>(rank));
    EXPECT_EQ(info.failed_rank, -1);
  }
}

TEST_P(Ranks, MeetAtABarrier) {
  std::atomic<int32_t> come{0};
  on_threads(GetParam(), [&](const Group& group) {
    for (int32_t round = 1; round <= 200; ++round) {
      ++come;
      group.barrier();
      EXPECT_GE(come.load(), round * group.size());
      group.barrier();
    }
  });
}

// Shards of different sizes, some empty, longer than a piece.
TEST_P(Ranks, GatherUnevenShards) {
  for (const DType dtype : {perseid::f16, perseid::f32, perseid::f64}) {
    const auto rows = [](int32_t rank) { return rank % 3 == 1 ? int64_t{0} : 7 + 1000 * rank; };
    int64_t all = 0;
    for (int32_t rank = 0; rank < GetParam(); ++rank) all += rows(rank);
    const Matrix whole = Matrix::random({all, 33}, dtype, 1);
    on_threads(GetParam(), [&](const Group& group) {
      int64_t begin = 0;
      for (int32_t rank = 0; rank < group.rank(); ++rank) begin += rows(rank);
      const Tensor mine = whole.tensor().slice(0, begin, begin + rows(group.rank()));
      for (int repeat = 0; repeat < 3; ++repeat) {
        const Matrix gathered({all, 33}, dtype);
        group.all_gather(mine, gathered.tensor());
        EXPECT_EQ(gathered.bytes, whole.bytes);
      }
    });
  }
}

// The sum in the order of ranks, rounded once.
float sum_of(const std::vector<Matrix>& parts, size_t element, bool average) {
  float sum = 0;
  for (size_t rank = 0; rank < parts.size(); ++rank)
    sum = rank == 0 ? parts[rank].value(element) : sum + parts[rank].value(element);
  return average ? sum / static_cast<float>(parts.size()) : sum;
}

TEST_P(Ranks, ReduceInTheOrderOfRanks) {
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{1, 1}, {4, 3}, {0, 5}, {257, 129}, {3, 70001}}) {
    std::vector<Matrix> parts;
    for (int32_t rank = 0; rank < GetParam(); ++rank)
      parts.push_back(Matrix::random(shape, perseid::f32, static_cast<uint64_t>(rank) + 7));
    const auto rows = static_cast<size_t>(shape[0]), columns = static_cast<size_t>(shape[1]);
    on_threads(GetParam(), [&](const Group& group) {
      const auto rank = static_cast<size_t>(group.rank()), size = parts.size();
      for (const bool average : {false, true}) {
        const auto reduction = average ? Reduction::kAverage : Reduction::kSum;
        const Matrix all(shape, perseid::f32);
        group.all_reduce(parts[rank].tensor(), all.tensor(), reduction);
        const size_t begin = rank * rows / size, end = (rank + 1) * rows / size;
        const Matrix mine({static_cast<int64_t>(end - begin), shape[1]}, perseid::f32);
        group.reduce_scatter(parts[rank].tensor(), mine.tensor(), reduction);
        for (size_t i = 0; i < rows * columns; ++i)
          ASSERT_EQ(all.value(i), sum_of(parts, i, average)) << i;
        for (size_t i = 0; i < (end - begin) * columns; ++i)
          ASSERT_EQ(mine.value(i), sum_of(parts, begin * columns + i, average)) << i;
      }
      Matrix in_place = parts[rank];
      group.all_reduce(in_place.tensor(), in_place.tensor());
      for (size_t i = 0; i < rows * columns; ++i)
        ASSERT_EQ(in_place.value(i), sum_of(parts, i, false)) << i;
    });
  }
}

TEST(Refusals, AreTheSameOnAllRanks) {
  std::vector<Ended> ends(3);
  on_threads(3, [&](const Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    const Matrix four = Matrix::random({4}, perseid::f32, 1), five({5}, perseid::f32, 0);
    const Matrix& input = rank == 1 ? five : four;
    ends[rank] = ended([&] { group.all_reduce(input.tensor(), input.tensor()); });
    // The group goes on.
    group.barrier();
  });
  for (const Ended& end : ends) {
    EXPECT_EQ(end.status, PERSEID_INVALID_ARGUMENT);
    EXPECT_EQ(end.sentence, ends[0].sentence);
    EXPECT_NE(end.sentence.find("rank 1 calls all-reduce of 5 elements of f32 in 5 rows"),
              std::string::npos)
        << end.sentence;
  }
  on_threads(2, [&](const Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    const Matrix input = Matrix::random({4}, perseid::f32, 1), output({8}, perseid::f32);
    ends[rank] = ended([&] {
      if (rank == 0) {
        group.all_gather(input.tensor(), output.tensor());
      } else {
        group.barrier();
      }
    });
  });
  for (size_t rank : {0, 1}) {
    EXPECT_NE(ends[rank].sentence.find("rank 1 calls barrier, rank 0 all-gather of 4 elements"),
              std::string::npos)
        << ends[rank].sentence;
  }
}

TEST(Refusals, NameTheArgument) {
  const std::vector<Group> groups = Group::threads(1);
  const Group& group = groups[0];
  const Matrix square({4, 4}, perseid::f32, 0), other({4, 4}, perseid::f32, 0);
  const auto refused = [&](const Tensor& input, const Tensor& output, const std::string& part) {
    const Ended end = ended([&] { group.all_reduce(input, output); });
    EXPECT_EQ(end.status, PERSEID_INVALID_ARGUMENT);
    EXPECT_NE(end.sentence.find(part), std::string::npos) << end.sentence;
  };
  refused(square.tensor().transposed(0, 1), other.tensor(), "input does not lie row-major");
  refused({}, other.tensor(), "input is NULL");
  refused(square.tensor(), {}, "output is NULL");
  refused(square.tensor(), other.tensor().slice(0, 0, 3), "output has 12 elements, expected 16");
  refused(square.tensor(), Matrix({4, 4}, perseid::f64).tensor(), "output");
  refused(square.tensor().slice(0, 0, 2), square.tensor().slice(0, 1, 3),
          "output is written, but shares memory with input");
}

// What rank 1 alone gets wrong, all return. The group goes on with the next operation.
TEST(Refusals, OfOneRankAreThoseOfAll) {
  enum Kind { kGather, kScatter, kReduce };
  const auto call = [](const Group& group, Kind kind, const Tensor& input, const Tensor& output) {
    if (kind == kGather) group.all_gather(input, output, 5s);
    if (kind == kScatter) group.reduce_scatter(input, output, Reduction::kSum, 5s);
    if (kind == kReduce) group.all_reduce(input, output, Reduction::kSum, 5s);
  };
  const Matrix square = Matrix::random({4, 4}, perseid::f32, 1), long_one({12, 4}, perseid::f32);
  const Tensor input = square.tensor(), whole = long_one.tensor();
  struct Case {
    Kind kind;
    Tensor input, output;
    const char* part;
  };
  for (const Case& wrong :
       {Case{kScatter, input, whole, "output has 48 elements"},
        {kScatter, {}, whole, "reduce-scatter: input is NULL"},
        {kScatter, input.transposed(0, 1), whole, "input does not lie row-major"},
        {kReduce, input, whole, "output has 48 elements, expected 16"},
        {kReduce, input, {}, "all-reduce: output is NULL"},
        {kReduce, input.slice(0, 0, 3), input.slice(0, 1, 4),
         "output is written, but shares memory with input"},
        {kGather, input, {}, "all-gather: output is NULL"}}) {
    std::vector<Ended> ends(3);
    on_threads(3, [&](const Group& group) {
      const auto rank = static_cast<size_t>(group.rank());
      const int64_t rows[] = {12, rank == 2 ? 2 : 1, 4};  // by kind
      const Matrix output({rows[wrong.kind], 4}, perseid::f32);
      ends[rank] = ended([&] {
        if (rank == 1) return call(group, wrong.kind, wrong.input, wrong.output);
        call(group, wrong.kind, input, output.tensor());
      });
      for (int repeat = 0; repeat < 3; ++repeat) {
        const Ended end = ended([&] { call(group, wrong.kind, input, output.tensor()); });
        EXPECT_EQ(end.status, PERSEID_OK) << end.sentence;
      }
      const size_t first = wrong.kind == kScatter ? 4 * rank : 0;
      for (size_t i = 0; i < 4; ++i) {
        const float one = square.value(first + i);
        EXPECT_EQ(output.value(i), wrong.kind == kGather ? one : one + one + one);
      }
    });
    for (const Ended& end : ends) {
      EXPECT_EQ(end.status, PERSEID_INVALID_ARGUMENT) << wrong.part;
      EXPECT_LT(end.seconds, 3);
      EXPECT_EQ(end.sentence, ends[0].sentence);
      EXPECT_NE(end.sentence.find("rank 1: "), std::string::npos) << end.sentence;
      EXPECT_NE(end.sentence.find(wrong.part), std::string::npos) << end.sentence;
    }
  }
}

// So does a descriptor that is none.
TEST(Refusals, OfOneDescriptorAreThoseOfAll) {
  const perseid::Context context = perseid::Context::cpu(1);
  std::vector<std::string> sentences(2);
  on_threads(2, [&](const Group& group) {
    auto desc = perseid::detail::sized<perseid_matmul_reduce_desc>();
    desc.dtype = PERSEID_F32;
    desc.m = desc.n = desc.k = 4;
    desc.deadline_ns = 5'000'000'000;
    const perseid_matmul_reduce_desc right = desc;
    if (group.rank() == 1) desc.struct_size = 4;
    perseid_plan_t plan = nullptr;
    const auto make = [&](perseid_context_t of, const perseid_matmul_reduce_desc* from) {
      return perseid_matmul_reduce_plan_create(of, group.get(), from, &plan);
    };
    EXPECT_EQ(make(context.get(), &desc), PERSEID_INVALID_ARGUMENT);
    sentences[static_cast<size_t>(group.rank())] = perseid_last_error();
    EXPECT_EQ(make(group.rank() == 1 ? nullptr : context.get(), &right), PERSEID_INVALID_ARGUMENT);
    EXPECT_EQ(make(context.get(), group.rank() == 1 ? nullptr : &right), PERSEID_INVALID_ARGUMENT);
    EXPECT_EQ(plan, nullptr);
    EXPECT_EQ(make(context.get(), &right), PERSEID_OK) << perseid_last_error();
    perseid_plan_destroy(plan);
  });
  EXPECT_EQ(sentences[0], sentences[1]);
  EXPECT_NE(sentences[0].find("rank 1: "), std::string::npos) << sentences[0];
}

// ---- Ranks that are missing

TEST(Deadlines, NameTheRankThatDoesNotTakePart) {
  std::vector<Ended> ends(3);
  on_threads(3, [&](const Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    group.barrier();
    if (rank != 2) ends[rank] = ended([&] { group.barrier(200ms); });
    if (rank == 2) std::this_thread::sleep_for(600ms);
    // The late one sees that the others have gone on.
    if (rank == 2) ends[rank] = ended([&] { group.barrier(10s); });
    EXPECT_EQ(group.info().failed_rank, 2);
  });
  for (const size_t rank : {0, 1}) {
    EXPECT_EQ(ends[rank].status, PERSEID_TIMEOUT);
    EXPECT_NE(ends[rank].sentence.find("barrier: rank 2 has not taken part within 200 ms"),
              std::string::npos)
        << ends[rank].sentence;
    EXPECT_GT(ends[rank].seconds, 0.19);
    EXPECT_LT(ends[rank].seconds, 1.5);
  }
  EXPECT_EQ(ends[2].status, PERSEID_TIMEOUT);
  EXPECT_NE(ends[2].sentence.find("rank 2, this one, was given up by the others"),
            std::string::npos)
      << ends[2].sentence;
  EXPECT_LT(ends[2].seconds, 1);
}

TEST(Leaving, EndsWhatTheRankHasNoPartIn) {
  std::vector<Group> groups = Group::threads(3);
  std::vector<Ended> ends(3);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      groups[rank].barrier();
      if (rank == 1) {
        Group left = std::move(groups[rank]);
        return;
      }
      ends[rank] = ended([&] {
        groups[rank].barrier();
        groups[rank].barrier();
      });
    });
  for (std::thread& thread : threads) thread.join();
  for (const size_t rank : {0, 2}) {
    EXPECT_EQ(ends[rank].status, PERSEID_PEER_LOST);
    EXPECT_NE(ends[rank].sentence.find("rank 1 has left the group"), std::string::npos)
        << ends[rank].sentence;
    EXPECT_LT(ends[rank].seconds, 1);
  }
}

// A rank that has taken part may leave while the others are still in the operation.
TEST(Leaving, HarmsNoOperationThatTheRankTookPartIn) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::vector<Group> groups = Group::threads(3);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] {
        const Group group = std::move(groups[rank]);
        const Matrix part = Matrix::random({100}, perseid::f32, rank);
        const Matrix sum({100}, perseid::f32);
        const Ended end = ended([&] { group.all_reduce(part.tensor(), sum.tensor()); });
        EXPECT_EQ(end.status, PERSEID_OK) << end.sentence;
      });
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(Shrinking, GoesOnWithTheRanksThatAreLeft) {
  std::vector<Group> groups = Group::threads(5);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 5; ++rank)
    threads.emplace_back([&, rank] {
      Group group = std::move(groups[rank]);
      group.barrier();
      if (rank == 0 || rank == 3) return;
      EXPECT_EQ(ended([&] { group.barrier(); }).status, PERSEID_PEER_LOST);
      const Group survivors = group.shrink(10s);
      const perseid_group_info info = survivors.info();
      EXPECT_EQ(info.size, 3);
      EXPECT_EQ(info.first_rank, static_cast<int32_t>(rank));
      EXPECT_EQ(info.rank, rank == 1 ? 0 : rank == 2 ? 1 : 2);
      EXPECT_GT(info.generation, 0u);
      const Matrix part = Matrix::random({1000}, perseid::f32, rank);
      const Matrix sum({1000}, perseid::f32);
      survivors.all_reduce(part.tensor(), sum.tensor());
      const std::vector<Matrix> parts = {Matrix::random({1000}, perseid::f32, 1),
                                         Matrix::random({1000}, perseid::f32, 2),
                                         Matrix::random({1000}, perseid::f32, 4)};
      for (size_t i = 0; i < 1000; ++i) ASSERT_EQ(sum.value(i), sum_of(parts, i, false));
    });
  for (std::thread& thread : threads) thread.join();
}

// One that is silent is left behind; it learns so, and what it writes late is seen by nobody.
TEST(Shrinking, LeavesASilentRankBehind) {
  std::atomic<bool> finished{false};
  on_threads(3, [&](const Group& group) {
    if (group.rank() == 1) {
      while (!finished.load()) std::this_thread::sleep_for(10ms);
      EXPECT_EQ(ended([&] { group.barrier(5s); }).status, PERSEID_TIMEOUT);
      EXPECT_EQ(ended([&] { (void)group.shrink(5s); }).status, PERSEID_PEER_LOST);
      return;
    }
    const Ended end = ended([&] {
      EXPECT_EQ(ended([&] { group.barrier(100ms); }).status, PERSEID_TIMEOUT);
      const Group survivors = group.shrink(300ms);
      EXPECT_EQ(survivors.size(), 2);
      for (int i = 0; i < 100; ++i) survivors.barrier();
    });
    EXPECT_EQ(end.status, PERSEID_OK) << end.sentence;
    finished = true;
  });
}

// Nobody was lost: all go on, with words that start anew.
TEST(Shrinking, KeepsAllWhereAllCallIt) {
  on_threads(3, [&](const Group& group) {
    if (group.rank() == 2) {
      std::this_thread::sleep_for(300ms);
    } else {
      EXPECT_EQ(ended([&] { group.barrier(100ms); }).status, PERSEID_TIMEOUT);
    }
    const Group once = group.shrink(10s);
    EXPECT_EQ(once.size(), 3);
    once.barrier();
    const Group twice = once.shrink(10s);
    EXPECT_EQ(ended([&] { once.barrier(); }).status, PERSEID_PEER_LOST);
    EXPECT_GT(twice.info().generation, once.info().generation);
    twice.barrier();
  });
}

TEST(Memory, IsSharedByAllRanks) {
  if (are_hosts()) GTEST_SKIP() << "hosts share no memory";
  on_threads(3, [&](const Group& group) {
    const size_t count = static_cast<size_t>(group.rank()) * 5000 + 100;
    const perseid::GroupMemory memory(group, count * sizeof(uint64_t));
    auto* own = static_cast<uint64_t*>(memory.data());
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(own[i], 0u);
      own[i] = static_cast<uint64_t>(group.rank()) << 32 | i;
    }
    group.barrier();
    for (int32_t rank = 0; rank < group.size(); ++rank) {
      const auto* peer = static_cast<const uint64_t*>(memory.peer(rank));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(peer) % 64, 0u);
      for (size_t i = 0; i < static_cast<size_t>(rank) * 5000 + 100; ++i)
        ASSERT_EQ(peer[i], static_cast<uint64_t>(rank) << 32 | i);
    }
    EXPECT_NE(ended([&] { (void)memory.peer(3); }).sentence.find("rank is 3"), std::string::npos);
    group.barrier();
  });
}

TEST(Memory, IsRefusedBetweenHosts) {
  if (!are_hosts()) GTEST_SKIP() << "one host shares memory";
  on_threads(2, [&](const Group& group) {
    const Ended end = ended([&] { const perseid::GroupMemory memory(group, 8); });
    EXPECT_EQ(end.status, PERSEID_UNSUPPORTED);
    EXPECT_NE(end.sentence.find("several hosts"), std::string::npos) << end.sentence;
    group.barrier();
  });
}

TEST(Memory, IsRefusedWhereThereIsNone) {
  if (are_hosts()) GTEST_SKIP() << "hosts share no memory";
  std::vector<Ended> ends(2);
  on_threads(2, [&](const Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    const size_t bytes = rank == 1 ? size_t{1} << 60 : 1;
    ends[rank] = ended([&] { const perseid::GroupMemory memory(group, bytes); });
    group.barrier();
  });
  EXPECT_EQ(ends[0].status, PERSEID_OUT_OF_MEMORY);
  EXPECT_EQ(ends[0].sentence, ends[1].sentence);
  EXPECT_NE(ends[0].sentence.find("rank 1 asks for 1152921504606846976 bytes"), std::string::npos)
      << ends[0].sentence;
}

// ---- The C interface

void expect_refused(perseid_status status, const std::string& part) {
  EXPECT_EQ(status, PERSEID_INVALID_ARGUMENT);
  EXPECT_NE(std::string(perseid_last_error()).find(part), std::string::npos)
      << perseid_last_error();
}

TEST(Interface, NamesWhatIsMissing) {
  expect_refused(perseid_group_create(nullptr, nullptr), "group is NULL");
  perseid_group_t group = nullptr;
  auto options = perseid::detail::sized<perseid_group_options>();
  options.size = 65;
  expect_refused(perseid_group_create(&options, &group), "size is 65, expected 1 to 64");
  options.size = 2;
  options.rank = 2;
  expect_refused(perseid_group_create(&options, &group), "rank is 2, expected 0 to 1");
  options.rank = 0;
  options.reserved = 1;
  expect_refused(perseid_group_create(&options, &group), "reserved is 1");
  expect_refused(perseid_group_barrier(nullptr, 0), "perseid_group_barrier: group is NULL");
  expect_refused(perseid_group_query(nullptr, nullptr), "group is NULL");
  perseid_group_destroy(nullptr);

  const std::vector<Group> groups = Group::threads(1);
  group = groups[0].get();
  expect_refused(perseid_group_query(group, nullptr), "info is NULL");
  expect_refused(perseid_group_shrink(group, 0, nullptr), "survivors is NULL");
  expect_refused(perseid_group_memory_allocate(group, 1, 0, nullptr), "data is NULL");
  void* peer = nullptr;
  int other = 0;
  expect_refused(perseid_group_memory_peer(group, &other, 0, &peer), "no memory of this group");
  // A plan of one rank alone is no plan of a group.
  const perseid::Context context = perseid::Context::cpu(1);
  const perseid::Matmul matmul(context, {.m = 1, .n = 1, .k = 1});
  auto args = perseid::detail::sized<perseid_matmul_reduce_args>();
  expect_refused(perseid_matmul_reduce_execute(matmul.get(), &args, nullptr, 0, nullptr),
                 "the plan is one of matmul, expected one of matmul-reduce-scatter");
  const DLTensor* shard = nullptr;
  expect_refused(perseid_all_gather_matmul_shard(matmul.get(), &shard),
                 "expected one of all-gather-matmul");
  perseid_plan_t plan = nullptr;
  auto desc = perseid::detail::sized<perseid_all_gather_matmul_desc>();
  desc.dtype = PERSEID_F32;
  expect_refused(perseid_all_gather_matmul_plan_create(context.get(), group, &desc, &plan),
                 "product_count is 0, expected 1 to 64");
  desc.product_count = 1;
  expect_refused(perseid_all_gather_matmul_plan_create(context.get(), group, &desc, &plan),
                 "products is NULL");
  desc.dtype = PERSEID_F8E5M2 + 1;
  expect_refused(perseid_all_gather_matmul_plan_create(context.get(), group, &desc, &plan),
                 "PERSEID_F64 (4), PERSEID_F8E4M3 (5) or PERSEID_F8E5M2 (6)");
}

// One rank needs no rendezvous.
TEST(Interface, OpensAGroupOfOne) {
  const Group group({.rank = 0, .size = 1});
  group.barrier();
  const perseid::Context context = perseid::Context::cpu(1);
  const perseid::MatmulReduce plan(context, group, {.m = 1, .n = 1, .k = 1});
  EXPECT_STREQ(plan.info().implementation, are_hosts() ? "cpu:sockets" : "cpu:windows");
  EXPECT_NE(plan.explain().find("in the order of ranks"), std::string::npos) << plan.explain();
}

TEST(Groups, AreRefusedWithAWrongSize) {
  perseid_group_t groups[65] = {};
  EXPECT_EQ(perseid_group_create_threads(0, groups), PERSEID_INVALID_ARGUMENT);
  EXPECT_EQ(perseid_group_create_threads(65, groups), PERSEID_INVALID_ARGUMENT);
  EXPECT_NE(std::string(perseid_last_error()).find("size is 65, expected 1 to 64"),
            std::string::npos);
}

}  // namespace
