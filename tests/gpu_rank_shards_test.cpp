// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The kernel of matmul over ranks, as one rank runs it: the others' shards leave as sums in
// float32, chunk by chunk, and the own shard has the others' parts added in the order of ranks, or
// in canonical order in pairs of them, also where these arrive while it runs. Skipped where there
// is no GPU of compute capability 9.0.
#include <algorithm>
#include <chrono>
#include <thread>

#include "cuda/sm90/matmul.hpp"
#include "gpu_tools.hpp"

namespace perseid::internal {
namespace {

using namespace std::chrono_literals;
using testing_gpu::expect_ok;

struct Case {
  int32_t ranks, own;
  bool along_n;
  int64_t batch, m, n, k;
  cuda::Sm90MatmulConfig config;
  bool canonical = false;
  bool direct = false;  // the others' sums go to memory and signals of their own
};

constexpr uint32_t kEpoch = 7, kBegun = 3;
constexpr float kPoison = -77777;

// Memory of the GPU.
template <class T>
class Buffer {
 public:
  Buffer(const cuda::Gpu& gpu, const std::vector<T>& values) : gpu_(gpu), count_(values.size()) {
    expect_ok(cuda::allocate(gpu_, bytes() + 16, &memory_));
    set(values);
  }
  ~Buffer() { cuda::release(gpu_, memory_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() const { return static_cast<T*>(memory_); }
  void set(const std::vector<T>& values, void* stream = nullptr) const {
    expect_ok(cuda::copy(gpu_, memory_, values.data(), bytes(), stream));
  }
  std::vector<T> get(void* stream = nullptr) const {
    std::vector<T> values(count_);
    expect_ok(cuda::copy(gpu_, values.data(), memory_, bytes(), stream));
    return values;
  }

 private:
  size_t bytes() const { return count_ * sizeof(T); }
  const cuda::Gpu& gpu_;
  size_t count_;
  void* memory_ = nullptr;
};

// In their order, or in pairs of neighbours.
float sum_of(std::vector<float> parts, bool in_pairs) {
  if (!in_pairs) {
    float sum = parts[0];
    for (size_t rank = 1; rank < parts.size(); ++rank) sum += parts[rank];
    return sum;
  }
  for (; parts.size() > 1; parts.resize(parts.size() / 2))
    for (size_t i = 0; i < parts.size() / 2; ++i) parts[i] = parts[2 * i] + parts[2 * i + 1];
  return parts[0];
}

uint16_t bf16_of(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

class GpuRankShards : public testing_gpu::GpuTest {
 protected:
  GpuRankShards() : GpuTest(9) {}

  template <class T, class Draw>
  static std::vector<T> drawn(int64_t count, const Draw& draw) {
    std::vector<T> values(static_cast<size_t>(count));
    for (T& value : values) value = draw();
    return values;
  }
  static Tensor view(void* data, DType dtype, int64_t batch, int64_t rows, int64_t columns) {
    return {.data = data,
            .dtype = dtype,
            .rank = 3,
            .shape = {batch, rows, columns},
            .stride = {rows * columns, columns, 1}};
  }

  // `late`: parts and signals of the last rank arrive while the kernel runs.
  void check(const Case& given, bool late) {
    SCOPED_TRACE(testing::Message()
                 << given.ranks << " ranks, own " << given.own << ", of "
                 << (given.along_n ? "columns" : "rows") << ", batch " << given.batch << ", "
                 << given.m << " x " << given.n << " x " << given.k << ", tiles of "
                 << config_name(given.config) << (given.config.deferred_parts ? ", deferred" : "")
                 << (given.direct ? ", direct" : "") << (late ? ", late" : ""));
    std::mt19937 random(static_cast<unsigned>(given.own + 10 * given.ranks));
    std::normal_distribution<float> values;
    const auto normal = [&] { return values(random); };
    const auto [ranks, own, along_n, batch, m, n, k, shape, canonical, direct] = given;
    const int64_t extent = along_n ? n : m;
    const int32_t others = ranks - 1;
    constexpr int64_t kChunks = 2;  // of a shard
    std::vector<int64_t> begin;
    for (int64_t c = 0; c <= ranks * kChunks; ++c) begin.push_back(c * extent / (ranks * kChunks));
    const auto begin_of = [&](int64_t rank) { return begin[static_cast<size_t>(rank * kChunks)]; };
    const int64_t from = begin_of(own), to = begin_of(own + 1);
    const int64_t own_m = along_n ? m : to - from, own_n = along_n ? to - from : n;

    const Buffer<uint16_t> a(*gpu_,
                             drawn<uint16_t>(batch * m * k, [&] { return bf16_of(normal()); }));
    const Buffer<uint16_t> b(*gpu_,
                             drawn<uint16_t>(batch * k * n, [&] { return bf16_of(normal()); }));
    const Buffer<uint16_t> bias(*gpu_, drawn<uint16_t>(n, [&] { return bf16_of(normal()); }));
    const int64_t of_rank = batch * own_m * own_n;
    const std::vector<float> given_parts = drawn<float>(ranks * of_rank, normal);
    std::vector<float> first_parts = given_parts;
    const int64_t last = own == ranks - 1 ? ranks - 2 : ranks - 1;
    if (late) std::fill_n(first_parts.begin() + last * of_rank, of_rank, kPoison);
    const Buffer<float> parts(*gpu_, first_parts);
    const Buffer<float> partial(*gpu_,
                                std::vector<float>(static_cast<size_t>(batch * m * n), kPoison));
    const Buffer<uint16_t> c(*gpu_, std::vector<uint16_t>(static_cast<size_t>(of_rank), 0x7fc1));
    const std::vector<uint32_t> here(static_cast<size_t>(kChunks * others), kEpoch);
    std::vector<uint32_t> arriving = here;
    for (int64_t chunk = 0; late && chunk < kChunks; ++chunk)
      arriving[static_cast<size_t>((chunk + 1) * others - 1)] = kEpoch - 1;
    const Buffer<uint32_t> signals(*gpu_, arriving);
    const Buffer<uint32_t> leaving(
        *gpu_, std::vector<uint32_t>(static_cast<size_t>(ranks * kChunks), kEpoch - 1));

    // Of each other rank, its shard: row-major, one after the other.
    const Buffer<float> inboxes(
        *gpu_, std::vector<float>(static_cast<size_t>(direct ? batch * m * n : 0), kPoison));
    const auto shard_at = [&](int64_t rank) { return batch * m * n / extent * begin_of(rank); };
    const Buffer<uint32_t> inbox_signals(
        *gpu_, std::vector<uint32_t>(static_cast<size_t>(ranks * kChunks * others), kEpoch - 1));
    std::vector<uint32_t> has_begun(static_cast<size_t>(ranks), kBegun);
    has_begun[static_cast<size_t>(own)] = 0;  // nobody writes the own one
    std::vector<uint32_t> begins = has_begun;
    if (late) begins[static_cast<size_t>((own + 1) % ranks)] = kBegun - 1;
    const Buffer<uint32_t> begun(*gpu_, begins);
    std::vector<RankTarget> targets;
    for (int32_t rank = 0; direct && rank < ranks; ++rank) {
      const int64_t first = begin_of(rank), end = begin_of(rank + 1);
      const int64_t row = along_n ? end - first : n;
      if (rank != own)
        targets.push_back({.data = inboxes.data() + shard_at(rank),
                           .batch = (along_n ? m : end - first) * row,
                           .row = row,
                           .first = static_cast<int32_t>(first),
                           .last = static_cast<int32_t>(end),
                           .rank = rank,
                           .signals = inbox_signals.data() + rank * kChunks * others + 1 % others,
                           .first_chunk = static_cast<int32_t>(rank * kChunks),
                           .signal_stride = others});
    }

    MatmulProblem problem{.dtype = DType::kBF16,
                          .out_dtype = DType::kBF16,
                          .batch = batch,
                          .m = m,
                          .n = n,
                          .k = k,
                          .alpha = 0.5,
                          .bias = true,
                          .leaves = canonical ? shape.leaves : 0};
    problem.chunks_c = {along_n ? ChunkDim::kN : ChunkDim::kM, begin.data(), ranks * kChunks};
    cuda::Sm90MatmulConfig config = shape;
    config.async = true;
    config.parts = canonical ? ranks - 1 : min(ranks - 1, 4);
    std::unique_ptr<cuda::Sm90Matmul> matmul;
    expect_ok(cuda::Sm90Matmul::make(problem, config, *gpu_, &matmul));
    const Buffer<uint64_t> workspace(*gpu_,
                                     std::vector<uint64_t>(matmul->workspace() / 8 + 2, ~0ull));
    Tensor result = view(c.data(), DType::kBF16, batch, own_m, own_n);
    result.data = result.as<std::byte>() - 2 * from * (along_n ? 1 : own_n);
    result.shape[along_n ? 2 : 1] = extent;
    Tensor of_bias{
        .data = bias.data(), .dtype = DType::kBF16, .rank = 1, .shape = {n}, .stride = {1}};
    const MatmulArguments arguments{
        .a = view(a.data(), DType::kBF16, batch, m, k),
        .b = view(b.data(), DType::kBF16, batch, k, n),
        .c0 = result,
        .bias = of_bias,
        .c = result,
        .departure_c = {
            .signals = leaving.data(), .epoch = kEpoch, .first = (own + 1) % ranks * kChunks}};
    const RankParts shards{
        .data = parts.data() - from * (along_n ? 1 : own_n),
        .of_rank = of_rank,
        .batch = own_m * own_n,
        .row = own_n,
        .ranks = ranks,
        .own = own,
        .first = static_cast<int32_t>(from),
        .last = static_cast<int32_t>(to),
        .partial = partial.data(),
        .partial_batch = m * n,
        .partial_row = n,
        .arrival = {.signals = signals.data(), .epoch = kEpoch, .deadline_ns = 10'000'000'000},
        .first_chunk = static_cast<int32_t>(own * kChunks),
        .chunks = kChunks,
        .targets = direct ? targets.data() : nullptr,
        .begun = {.signals = direct ? begun.data() : nullptr,
                  .epoch = kBegun,
                  .deadline_ns = 10'000'000'000}};
    const testing_gpu::Stream stream(*gpu_), beside(*gpu_);
    expect_ok(matmul->run(arguments, workspace.data(), stream.handle(), shards));
    if (late) {
      std::this_thread::sleep_for(20ms);
      // Nothing was stored to a rank that has not begun.
      if (direct) {
        const int64_t next = (own + 1) % ranks;
        const std::vector<float> stored = inboxes.get(beside.handle());
        EXPECT_TRUE(std::all_of(stored.begin() + shard_at(next),
                                stored.begin() + shard_at(next + 1),
                                [](float value) { return value == kPoison; }));
      }
      begun.set(has_begun, beside.handle());
      parts.set(given_parts, beside.handle());
      signals.set(here, beside.handle());
    }
    {
      const cuda::Gpu::Current current(*gpu_);
      expect_ok(cuda::check(
          gpu_->driver(),
          gpu_->driver().stream_synchronize(static_cast<cuda::StreamHandle>(stream.handle())),
          "the kernel", ""));
    }

    // The product alone, in float32, by the same tiles.
    MatmulProblem whole = problem;
    whole.out_dtype = DType::kF32;
    whole.alpha = 1;
    whole.bias = false;
    whole.chunks_c = {};
    cuda::Sm90MatmulConfig plain = shape;
    plain.out = DType::kF32;
    plain.deferred_parts = false;
    if (plain.leaves > 1) plain.columns = 128;  // of the same bits
    std::unique_ptr<cuda::Sm90Matmul> alone;
    expect_ok(cuda::Sm90Matmul::make(whole, plain, *gpu_, &alone));
    const Buffer<float> sums(*gpu_,
                             std::vector<float>(static_cast<size_t>(batch * m * n), kPoison));
    const Tensor of_sums = view(sums.data(), DType::kF32, batch, m, n);
    expect_ok(
        alone->run({.a = arguments.a, .b = arguments.b, .c0 = of_sums, .bias = {}, .c = of_sums},
                   workspace.data(), nullptr));
    const std::vector<float> expected = sums.get();
    std::vector<float> found = partial.get();
    if (direct) {
      EXPECT_TRUE(std::all_of(found.begin(), found.end(), [](float at) { return at == kPoison; }));
      const std::vector<float> stored = inboxes.get();
      for (int64_t i = 0; i < batch * m * n; ++i) {
        const int64_t column = i % n, row = i / n % m, line = along_n ? column : row;
        int64_t rank = 0;
        while (begin_of(rank + 1) <= line) ++rank;
        const int64_t first = begin_of(rank), size = begin_of(rank + 1) - first;
        const int64_t rows = along_n ? m : size, columns = along_n ? size : n;
        const int64_t in_shard = (i / n / m * rows + row - (along_n ? 0 : first)) * columns +
                                 column - (along_n ? first : 0);
        found[static_cast<size_t>(i)] = stored[static_cast<size_t>(shard_at(rank) + in_shard)];
      }
    }
    const std::vector<uint16_t> own_found = c.get(), of_columns = bias.get();
    int64_t wrong = 0, wrong_own = 0;
    for (int64_t i = 0; i < batch * m * n; ++i) {
      const int64_t column = i % n, row = i / n % m, entry = i / n / m;
      const int64_t line = along_n ? column : row;
      const auto at = static_cast<size_t>(i);
      if (line < from || to <= line) {
        wrong += std::memcmp(&found[at], &expected[at], sizeof(float)) != 0;
        continue;
      }
      wrong += found[at] != kPoison;
      const int64_t element =
          (entry * own_m + row - (along_n ? 0 : from)) * own_n + column - (along_n ? from : 0);
      std::vector<float> of_ranks;
      for (int64_t rank = 0; rank < ranks; ++rank)
        of_ranks.push_back(rank == own
                               ? expected[at]
                               : given_parts[static_cast<size_t>(rank * of_rank + element)]);
      const float sum = sum_of(of_ranks, canonical);
      uint32_t bits = uint32_t{of_columns[static_cast<size_t>(column)]} << 16;
      float added = 0;
      std::memcpy(&added, &bits, sizeof added);
      wrong_own += own_found[static_cast<size_t>(element)] != bf16_of(std::fma(0.5f, sum, added));
    }
    EXPECT_EQ(wrong, 0) << "of the others' sums";
    EXPECT_EQ(wrong_own, 0) << "of the own shard";
    const std::vector<uint32_t> left = leaving.get(), signalled = inbox_signals.get();
    for (int64_t chunk = 0; chunk < ranks * kChunks; ++chunk) {
      EXPECT_EQ(left[static_cast<size_t>(chunk)],
                direct || chunk / kChunks == own ? kEpoch - 1 : kEpoch)
          << "chunk " << chunk;
      for (int32_t i = 0; i < others; ++i)
        EXPECT_EQ(signalled[static_cast<size_t>(chunk * others + i)],
                  direct && chunk / kChunks != own && i == 1 % others ? kEpoch : kEpoch - 1)
            << "chunk " << chunk << " of the inboxes, word " << i;
    }
  }
};

constexpr cuda::Sm90MatmulConfig kPairs{.columns = 256, .cluster = 2}, kSingle{.columns = 128};

TEST_F(GpuRankShards, OfTwoRanks) {
  for (const int32_t own : {0, 1})
    for (const bool late : {false, true}) check({2, own, false, 1, 1024, 520, 192, kPairs}, late);
}
TEST_F(GpuRankShards, OfFourRanks) {
  for (const int32_t own : {0, 1, 2, 3}) check({4, own, false, 1, 2048, 256, 128, kPairs}, false);
  check({4, 2, false, 1, 2048, 776, 448, kPairs}, true);
}
TEST_F(GpuRankShards, OfColumnsAndBatches) {
  for (const int32_t own : {0, 2}) check({3, own, true, 2, 200, 768, 64, kSingle}, false);
  check({2, 1, false, 3, 512, 136, 72, kSingle}, true);
}
TEST_F(GpuRankShards, OfManyRanks) {
  for (const int32_t own : {0, 3, 5}) check({6, own, false, 1, 1536, 128, 64, kSingle}, false);
}
// Ranks of 2, 4 and 8, which hold 4, 2 and 1 of eight leaves.
TEST_F(GpuRankShards, OfLeaves) {
  cuda::Sm90MatmulConfig leaves{.columns = 128, .cluster = 2, .leaves = 4};
  for (const int32_t own : {0, 1})
    check({2, own, false, 1, 1024, 520, 256, leaves, true}, own == 0);
  leaves.leaves = 2;
  for (const int32_t own : {0, 1, 2, 3})
    check({4, own, false, 1, 2048, 264, 384, leaves, true}, own == 3);
  leaves = {.columns = 128, .leaves = 2};
  check({4, 2, true, 2, 200, 1024, 128, leaves, true}, false);
  for (const int32_t own : {0, 3, 6})
    check({8, own, false, 1, 4096, 520, 192, kPairs, true}, own == 0);
}
// Sums leave, and parts are added, under the next tile's mainloop: of all columns, or of half of
// them. Depths of few steps have no mainloop to hide under.
constexpr cuda::Sm90MatmulConfig kWide{.columns = 192, .out_stages = 4, .deferred_parts = true},
    kWhole{.columns = 256, .cluster = 2, .out_stages = 4, .deferred_parts = true},
    kNarrow{.columns = 128, .cluster = 2, .out_stages = 4, .deferred_parts = true};

TEST_F(GpuRankShards, DeferredOfTwoRanks) {
  for (const bool direct : {false, true})
    for (const int32_t own : {0, 1})
      check({2, own, false, 1, 1024, 520, 704, kWide, false, direct}, own == 1);
  check({2, 1, false, 1, 1024, 520, 128, kWide, false, true}, false);
}
TEST_F(GpuRankShards, DeferredOfFourRanks) {
  for (const int32_t own : {0, 1, 2, 3})
    check({4, own, false, 1, 2048, 400, 1024, kWide, false, true}, own == 2);
  for (const int32_t own : {1, 3})
    check({4, own, false, 1, 2048, 776, 832, kWhole, false, own == 3}, own == 3);
  check({4, 0, false, 1, 2048, 264, 704, kNarrow, false, true}, true);
}
// Tiles of 256 columns: half of an own tile's sums wait in the workspace, but for a block's last
// tile. With more than 16 steps they come back between steps.
TEST_F(GpuRankShards, WideOfTwoRanks) {
  for (const bool direct : {false, true})
    for (const int32_t own : {0, 1})
      check({2, own, false, 1, 1024, 520, 1280, kWhole, false, direct}, own == 1);
  for (const int64_t k : {64, 704, 1280}) check({2, 1, false, 2, 8192, 520, k, kWhole}, false);
}
TEST_F(GpuRankShards, WideOfFourRanks) {
  for (const int32_t own : {0, 1, 2, 3})
    check({4, own, false, 1, 2048, 776, 1152, kWhole, false, own == 1}, own == 2);
  for (const int32_t own : {0, 2})
    check({4, own, false, 1, 8192, 3080, 1152, kWhole, false, own == 2}, own == 0);
}
TEST_F(GpuRankShards, WideOfColumnsAndBatches) {
  for (const int32_t own : {0, 2})
    check({3, own, true, 2, 4160, 1536, 1216, kWhole, false, own == 0}, own == 0);
}
// Two ranks have four of eight leaves each, four have two. Leaves of one step, of fewer than there
// are chunks, and of more.
TEST_F(GpuRankShards, DeferredOfLeaves) {
  cuda::Sm90MatmulConfig leaves = kWide;
  leaves.leaves = 4;
  for (const int32_t own : {0, 1})
    check({2, own, false, 1, 1024, 520, 2048, leaves, true, own == 1}, own == 0);
  for (const int64_t k : {256, 1024}) check({2, 1, false, 1, 1024, 520, k, leaves, true}, false);
  check({2, 0, true, 2, 200, 1152, 1792, leaves, true, true}, true);
  check({2, 1, false, 1, 8192, 1552, 2048, leaves, true}, false);
  leaves.leaves = 2;
  for (const int32_t own : {0, 1, 2, 3})
    check({4, own, false, 1, 2048, 264, 1152, leaves, true, own == 2}, own == 3);
  for (const int64_t k : {128, 640}) check({4, 1, false, 1, 2048, 264, k, leaves, true}, false);
  check({4, 2, false, 1, 8192, 1536, 896, leaves, true}, true);
}
TEST_F(GpuRankShards, DeferredOfColumnsAndBatches) {
  for (const int32_t own : {0, 2})
    check({3, own, true, 2, 200, 1536, 576, kWhole, false, own == 0}, own == 0);
  check({2, 1, false, 3, 512, 136, 72, kWide, false, true}, true);
  check({3, 1, true, 1, 328, 1152, 640, kWide, false, true}, false);
}
// Of two tiles of a block the second is of another kind than the first.
TEST_F(GpuRankShards, DeferredOfManyTiles) {
  for (const int32_t own : {0, 3})
    check({4, own, false, 1, 8192, 1536, 448, kWide, false, own == 3}, own == 3);
  check({2, 1, false, 1, 8192, 1032, 1280, kWhole, false, true}, true);
}
// More tiles than the GPU has multiprocessors, and a last tile of a block of either kind.
TEST_F(GpuRankShards, OfManyTiles) {
  for (const int32_t own : {0, 3}) check({4, own, false, 1, 8192, 1536, 64, kPairs}, own == 3);
}

}  // namespace
}  // namespace perseid::internal
