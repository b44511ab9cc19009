// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Puts of ranks through MPI, without MPI: the functions of a plug-in that carries bytes from thread
// to thread, as many at a time as it likes. Where the real ones are, mpi_ranks runs with them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "collective/mpi.hpp"
#include "collective/puts.hpp"

namespace {

using namespace perseid::internal;
using namespace perseid::internal::collective;
using namespace std::chrono_literals;

constexpr int kRanks = 3;
constexpr size_t kMostQueued = 40'000;

// What is under way from rank to rank.
struct Pipe {
  std::vector<char> bytes;
  bool ended = false;
};
std::mutex fake_mutex;
Pipe pipes[kRanks][kRanks];
uint64_t broken = 0;  // ranks that every other one has lost
std::mt19937_64 engine(1);
const char* thread_level = "";
int disconnected = 0;

}  // namespace

struct perseid_mpi_links {
  int rank = 0;
};

namespace {

// As many of the bytes of the parts as `most`, by move(begin, bytes).
template <class Move>
ssize_t move_bytes(const iovec* parts, size_t count, size_t most, const Move& move) {
  size_t moved = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t bytes = std::min(parts[i].iov_len, most - moved);
    move(static_cast<char*>(parts[i].iov_base), static_cast<std::ptrdiff_t>(bytes));
    moved += bytes;
  }
  return static_cast<ssize_t>(moved);
}

const perseid_mpi_functions kFake{
    .version = kPerseidMpiVersion,
    .open = nullptr,
    .all_gather = nullptr,
    .allows_threads =
        [](const char** level) {
          *level = thread_level;
          return std::string_view(thread_level) == "MPI_THREAD_MULTIPLE" ? 1 : 0;
        },
    .connect = [](uint32_t number) { return new perseid_mpi_links{static_cast<int>(number)}; },
    .disconnect =
        [](perseid_mpi_links* links, uint64_t) {
          const std::lock_guard lock(fake_mutex);
          ++disconnected;
          delete links;
        },
    .send =
        [](perseid_mpi_links* links, int rank, const iovec* parts, size_t count) {
          const std::lock_guard lock(fake_mutex);
          Pipe& pipe = pipes[links->rank][rank];
          const size_t free = kMostQueued - std::min(kMostQueued, pipe.bytes.size());
          return move_bytes(parts, count, std::min<size_t>(free, engine() % 9000),
                            [&](const char* begin, std::ptrdiff_t bytes) {
                              pipe.bytes.insert(pipe.bytes.end(), begin, begin + bytes);
                            });
        },
    .receive = [](perseid_mpi_links* links, int rank, const iovec* parts, size_t count) -> ssize_t {
      const std::lock_guard lock(fake_mutex);
      Pipe& pipe = pipes[rank][links->rank];
      if (pipe.bytes.empty() && pipe.ended) {
        pipes[links->rank][rank].ended = true;
        return -1;
      }
      return move_bytes(parts, count, std::min<size_t>(pipe.bytes.size(), 1 + engine() % 9000),
                        [&](char* begin, std::ptrdiff_t bytes) {
                          std::copy_n(pipe.bytes.begin(), bytes, begin);
                          pipe.bytes.erase(pipe.bytes.begin(), pipe.bytes.begin() + bytes);
                        });
    },
    .finish =
        [](perseid_mpi_links* links, int rank) {
          const std::lock_guard lock(fake_mutex);
          pipes[links->rank][rank].ended = true;
        },
    .progress =
        [](perseid_mpi_links* links, uint64_t* readable, uint64_t* writable, uint64_t* lost) {
          const std::lock_guard lock(fake_mutex);
          *readable = *writable = 0;
          *lost = broken & ~(uint64_t{1} << links->rank);
          for (int rank = 0; rank < kRanks; ++rank) {
            const Pipe &in = pipes[rank][links->rank], &out = pipes[links->rank][rank];
            if (rank == links->rank) continue;
            if (!in.bytes.empty() || in.ended) *readable |= uint64_t{1} << rank;
            if (out.bytes.size() < kMostQueued) *writable |= uint64_t{1} << rank;
          }
        },
};

constexpr size_t kRows = 50, kRowBytes = 3000, kStride = 4096, kBytes = 1 << 20;

// A rank: its engine and the segment that others write.
struct Rank {
  std::shared_ptr<Segment> segment;
  std::atomic<uint64_t> lost{0};
  std::unique_ptr<PutEngine> puts;

  explicit Rank(int rank) {
    Descriptor unused;
    EXPECT_TRUE(Segment::make(kBytes, &segment, &unused).ok());
    puts = std::make_unique<PutEngine>(
        rank, links_of_mpi(kFake, static_cast<uint32_t>(rank), rank, kRanks),
        [this](int32_t other) { lost |= uint64_t{1} << other; });
    puts->expose(0, 1, segment);
  }
  uint32_t* word(size_t number) const {
    return reinterpret_cast<uint32_t*>(segment->data()) + number;
  }
};

struct Ranks {
  std::vector<std::unique_ptr<Rank>> all;

  Ranks() {
    {
      const std::lock_guard lock(fake_mutex);
      for (auto& of_rank : pipes)
        for (Pipe& pipe : of_rank) pipe = {};
      broken = 0;
      disconnected = 0;
    }
    for (int rank = 0; rank < kRanks; ++rank) all.push_back(std::make_unique<Rank>(rank));
  }
};

bool wait_for_word(const uint32_t* word, uint32_t value) {
  const uint32_t no_abort = 0;
  return cpu::wait_for_signal(word, value, Clock::now() + 10s, &no_abort) == WaitEnd::kArrived;
}

TEST(MpiLinks, CarryRowsBeforeTheirSignal) {
  Ranks ranks;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      const Rank& self = *ranks.all[static_cast<size_t>(rank)];
      for (uint32_t epoch = 1; epoch <= 10; ++epoch) {
        // To each other one: rows, then rows once they are complete, each before its word.
        const auto own = static_cast<size_t>(rank);
        auto memory = std::make_shared<std::vector<std::byte>>(
            kRows * kRowBytes + 4, static_cast<std::byte>(16 * epoch + own));
        auto* const ready = reinterpret_cast<uint32_t*>(memory->data() + kRows * kRowBytes);
        *ready = epoch - 1;
        for (int other = 0; other < kRanks; ++other) {
          if (other == rank) continue;
          const uint64_t at = 4096 + own * kRows * kStride;
          const ByteRows rows{.bytes = kRowBytes, .count = kRows / 2, .stride = kStride};
          self.puts->put(other, {0, 1, at}, rows, {memory->data(), kRowBytes, memory});
          self.puts->signal(other, {0, 1, 4 * (8 + own)}, epoch);
          self.puts->put_when(ready, epoch, other, {0, 1, at + kRows / 2 * kStride}, rows,
                              {memory->data() + kRows / 2 * kRowBytes, kRowBytes, memory},
                              {0, 1, 4 * (16 + own)});
        }
        cpu::set_signal(ready, epoch);
        self.puts->look();
        for (size_t other = 0; other < kRanks; ++other) {
          if (other == own) continue;
          for (const size_t half : {0, 1}) {
            ASSERT_TRUE(wait_for_word(self.word(8 + 8 * half + other), epoch));
            const std::byte* const rows =
                self.segment->data() + 4096 + (other * kRows + half * kRows / 2) * kStride;
            for (size_t row = 0; row < kRows / 2; ++row)
              ASSERT_TRUE(std::all_of(rows + row * kStride, rows + row * kStride + kRowBytes,
                                      [&](std::byte byte) {
                                        return byte == static_cast<std::byte>(16 * epoch + other);
                                      }))
                  << "rank " << rank << " from " << other << " row " << row;
          }
        }
        // Nobody writes again before all have read.
        for (int other = 0; other < kRanks; ++other)
          if (other != rank) self.puts->signal(other, {0, 1, 4 * (24 + own)}, epoch);
        for (size_t other = 0; other < kRanks; ++other) {
          const bool read = other == own || wait_for_word(self.word(24 + other), epoch);
          ASSERT_TRUE(read);
        }
      }
      // Words of another rank's memory.
      uint32_t words[kRanks] = {};
      const int next = (rank + 1) % kRanks;
      ASSERT_TRUE(self.puts->get(next, {0, 1, 4 * 8}, sizeof words, Clock::now() + 5s, words));
      for (int other = 0; other < kRanks; ++other)
        EXPECT_EQ(words[other], other == next ? 0u : 10u);
    });
  for (std::thread& thread : threads) thread.join();
  // All end together, as each finds the others' ends.
  const auto start = Clock::now();
  for (auto& rank : ranks.all) threads.emplace_back([&rank] { rank->puts.reset(); });
  for (size_t i = kRanks; i < threads.size(); ++i) threads[i].join();
  EXPECT_LT(Clock::now() - start, 900ms);
  EXPECT_EQ(disconnected, kRanks);
}

TEST(MpiLinks, AnswerThreadsThatAskAtATime) {
  const Ranks ranks;
  for (uint32_t word = 0; word < 64; ++word) cpu::set_signal(ranks.all[1]->word(word), 100 + word);
  std::vector<std::thread> threads;
  for (uint32_t first : {0, 16, 32})
    threads.emplace_back([&, first] {
      for (uint32_t i = 0; i < 200; ++i) {
        uint32_t got[2] = {};
        const uint32_t word = first + i % 16;
        ASSERT_TRUE(
            ranks.all[0]->puts->get(1, {0, 1, 4 * word}, sizeof got, Clock::now() + 5s, got));
        ASSERT_EQ(got[0], 100 + word);
        ASSERT_EQ(got[1], 101 + word);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(MpiLinks, ReportARankThatMpiHasLost) {
  Ranks ranks;
  {
    const std::lock_guard lock(fake_mutex);
    broken = uint64_t{1} << 2;
  }
  const auto end = Clock::now() + 5s;
  for (const size_t rank : {0, 1})
    while (ranks.all[rank]->lost.load() == 0 && Clock::now() < end)
      std::this_thread::sleep_for(1ms);
  EXPECT_EQ(ranks.all[0]->lost.load(), 4u);
  EXPECT_EQ(ranks.all[1]->lost.load(), 4u);
  // The two others go on.
  ranks.all[0]->puts->signal(1, {0, 1, 0}, 7);
  EXPECT_TRUE(wait_for_word(ranks.all[1]->word(0), 7));
  std::vector<std::thread> threads;
  for (auto& rank : ranks.all) threads.emplace_back([&rank] { rank->puts.reset(); });
  for (std::thread& thread : threads) thread.join();
}

// Sets the variable, and what it was before at the end.
class Transport {
 public:
  explicit Transport(const char* value) { setenv("PERSEID_TRANSPORT", value, 1); }
  ~Transport() { unsetenv("PERSEID_TRANSPORT"); }
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
};

TEST(MpiOffer, FollowsTheEnvironment) {
  MpiOffer offer;
  thread_level = "MPI_THREAD_MULTIPLE";
  EXPECT_TRUE(offer_mpi(&kFake, &offer).ok() && offer.usable);
  EXPECT_TRUE(offer_mpi(nullptr, &offer).ok() && !offer.usable);
  {
    const Transport sockets("sockets");
    EXPECT_TRUE(offer_mpi(&kFake, &offer).ok() && !offer.usable);
  }
  const auto refused = [&](const perseid_mpi_functions* mpi) {
    return offer_mpi(mpi, &offer).sentence();
  };
  {
    const Transport wrong("tcp");
    EXPECT_EQ(refused(&kFake), "PERSEID_TRANSPORT is \"tcp\", expected mpi, sockets or nccl");
  }
  const Transport mpi("mpi");
  EXPECT_TRUE(offer_mpi(&kFake, &offer).ok() && offer.usable);
  EXPECT_NE(refused(nullptr).find("the ranks have not met by MPI"), std::string::npos);
  thread_level = "MPI_THREAD_FUNNELED";
  EXPECT_NE(refused(&kFake).find("initialised MPI with MPI_THREAD_FUNNELED"), std::string::npos);
}

TEST(MpiOffer, HoldsWhereAllRanksMakeIt) {
  const std::string few = MpiOffer{true, 3}.encode(), more = MpiOffer{true, 40}.encode();
  uint32_t number = 0;
  EXPECT_TRUE(agree_on_mpi({few, more, few}, &number));
  EXPECT_EQ(number, 40u);
  // The next links have another number.
  MpiOffer next;
  EXPECT_TRUE(offer_mpi(nullptr, &next).ok());
  EXPECT_EQ(next.number, 41u);
  EXPECT_FALSE(agree_on_mpi({few, MpiOffer{false, 50}.encode()}, &number));
  EXPECT_FALSE(agree_on_mpi({few, "x"}, &number));
}

}  // namespace
