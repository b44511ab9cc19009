// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// rank-shards [--turns N] [--cool] [--compile VARIANT | --only VARIANT,...] [M N K RANKS]...
//
// What a rank's kernel of matmul + reduce-scatter costs on one GPU, where all parts of the others
// are there already, over the plain product with results in bf16: the most that fusion can reach.
// A table for each shape: milliseconds of the plain product, then for each variant of the kernel
// and each own rank the ratio to it. With a second GPU also those whose sums go to its memory.
// Launches back to back, in turns; medians of N turns (7). A GPU that has worked for longer is
// slower, as its power is limited: --cool measures 20 ms after 3 ms of rest. --compile: compiles
// the kernels of one variant, by its number, into the cache, for as many processes at a time as
// there are. --only: the variants of these numbers. The plain product, number 0, must be among
// them.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "cuda/runtime/memory.hpp"
#include "cuda/runtime/peer_memory.hpp"
#include "cuda/runtime/stream_times.hpp"
#include "cuda/sm90/matmul.hpp"

namespace perseid::internal::cuda {
namespace {

void check_ok(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.sentence().c_str());
  std::exit(1);
}

// Random numbers of bf16, or of float32.
void* filled(const Gpu& gpu, int64_t bytes) {
  std::vector<uint16_t> block(1 << 20);
  std::mt19937 random(5);
  std::normal_distribution<float> values;
  for (uint16_t& element : block) {
    const float value = values(random);
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    element = static_cast<uint16_t>(bits >> 16);
  }
  void* memory = nullptr;
  check_ok(allocate(gpu, static_cast<size_t>(bytes), &memory));
  for (int64_t at = 0; at < bytes; at += 2 << 20)
    check_ok(copy(gpu, static_cast<std::byte*>(memory) + at, block.data(),
                  static_cast<size_t>(std::min<int64_t>(bytes - at, 2 << 20)), nullptr));
  return memory;
}

Tensor view(void* data, DType dtype, int64_t rows, int64_t columns) {
  return {.data = data,
          .dtype = dtype,
          .rank = 3,
          .shape = {1, rows, columns},
          .stride = {rows * columns, columns, 1}};
}

// Memory of another GPU that this one writes.
struct PeerInboxes {
  std::shared_ptr<Gpu> other;
  std::unique_ptr<PeerMemory> made, mapped;

  // Null where there is no other GPU.
  static std::unique_ptr<PeerInboxes> make(const std::shared_ptr<Gpu>& gpu, size_t bytes) {
    auto inboxes = std::make_unique<PeerInboxes>();
    if (!Gpu::open(1, &inboxes->other).ok()) return nullptr;
    PeerOffer offer;
    check_ok(
        PeerMemory::make(PeerSharing::kVmm, true, inboxes->other, bytes, &inboxes->made, &offer));
    check_ok(
        PeerMemory::map(PeerSharing::kVmm, true, gpu, bytes, std::move(offer), &inboxes->mapped));
    return inboxes;
  }
  std::byte* data() const { return mapped->data(); }
};

// A kernel to measure.
struct Variant {
  const char* name;
  Sm90MatmulConfig tile;  // columns of 0: those that the product chooses
  bool shards = true, to_peer = false, canonical = false;
};
constexpr Sm90MatmulConfig deferred(int columns, int cluster, int out_stages) {
  return {.columns = columns, .cluster = cluster, .out_stages = out_stages, .deferred_parts = true};
}
constexpr Sm90MatmulConfig kChosen{.columns = 0};
constexpr Variant kVariants[] = {
    {"plain", kChosen, false},
    {"plain, results in f32", {.out = DType::kF32, .columns = 0}, false},
    {"plain, 192 columns", {.columns = 192, .out_stages = 4}, false},
    {"plain, 256 columns, 5 stages of results",
     {.columns = 256, .cluster = 2, .out_stages = 5},
     false},
    {"from registers at a tile's end", kChosen},
    {"deferred, 192 columns", deferred(192, 1, 4)},
    {"deferred, 256 columns", deferred(256, 2, 4)},
    {"deferred, 128 columns", deferred(128, 2, 4)},
    {"deferred, 192 columns, to the peer", deferred(192, 1, 4), true, true},
    {"deferred, 256 columns, to the peer", deferred(256, 2, 4), true, true},
    {"canonical, from registers", {.columns = 128, .cluster = 2}, true, false, true},
    {"canonical, deferred, 192 columns", deferred(192, 1, 4), true, false, true},
    {"canonical, deferred, 128 columns", deferred(128, 2, 4), true, false, true},
};
constexpr int kCount = static_cast<int>(std::size(kVariants));

class Bench {
 public:
  Bench(std::shared_ptr<Gpu> gpu, int turns, bool cool, bool compiles, std::vector<int> only)
      : shared_(std::move(gpu)),
        gpu_(*shared_),
        turns_(turns),
        cool_(cool),
        compiles_(compiles),
        only_(std::move(only)) {}

  void run(int64_t m, int64_t n, int64_t k, int32_t ranks) {
    constexpr int64_t kChunks = 2;
    std::vector<int64_t> begin;
    for (int64_t c = 0; c <= ranks * kChunks; ++c) begin.push_back(c * m / (ranks * kChunks));
    std::vector<std::unique_ptr<Sm90Matmul>> made;
    for (int i = 0; i < kCount; ++i) made.push_back(make(kVariants[i], i, m, n, k, ranks, begin));
    if (compiles_) return;

    const int64_t rows = m / ranks;
    void* const c = filled(gpu_, 4 * m * n);
    const Tensor a = view(filled(gpu_, 2 * m * k), DType::kBF16, m, k),
                 b = view(filled(gpu_, 2 * k * n), DType::kBF16, k, n);
    auto* const parts = static_cast<float*>(filled(gpu_, 4 * m * n));
    auto* const partial = static_cast<float*>(filled(gpu_, 4 * m * n));
    void *words = nullptr, *workspace = nullptr;
    check_ok(allocate(gpu_, 8192, &words));
    const std::vector<uint32_t> here(2048, 1);
    check_ok(copy(gpu_, words, here.data(), 8192, nullptr));
    check_ok(allocate(gpu_, 64 << 20, &workspace));
    const auto inboxes = PeerInboxes::make(shared_, static_cast<size_t>(4 * m * n) + 4096);

    const auto launch = [&](int variant, int32_t own) {
      const Sm90Matmul& product = *made[static_cast<size_t>(variant)];
      if (!kVariants[variant].shards) {
        const Tensor out = view(c, variant == 1 ? DType::kF32 : DType::kBF16, m, n);
        return product.run({.a = a, .b = b, .c0 = out, .bias = {}, .c = out}, workspace, nullptr);
      }
      const Tensor out = view(c, DType::kBF16, m, n);
      const MatmulArguments arguments{.a = a,
                                      .b = b,
                                      .c0 = out,
                                      .bias = {},
                                      .c = out,
                                      .departure_c = {.signals = static_cast<uint32_t*>(words),
                                                      .epoch = 1,
                                                      .first = (own + 1) % ranks * kChunks}};
      std::vector<RankTarget> targets;
      for (int32_t rank = 0; rank < ranks && kVariants[variant].to_peer; ++rank)
        if (rank != own)
          targets.push_back(
              {.data = reinterpret_cast<float*>(inboxes->data() + 4096) + rank * rows * n,
               .batch = rows * n,
               .row = n,
               .first = static_cast<int32_t>(rank * rows),
               .last = static_cast<int32_t>((rank + 1) * rows),
               .rank = rank,
               .signals = reinterpret_cast<uint32_t*>(inboxes->data()),
               .first_chunk = static_cast<int32_t>(rank * kChunks)});
      const RankParts shards{.data = parts - own * rows * n,
                             .of_rank = rows * n,
                             .batch = rows * n,
                             .row = n,
                             .ranks = ranks,
                             .own = own,
                             .first = static_cast<int32_t>(own * rows),
                             .last = static_cast<int32_t>((own + 1) * rows),
                             .partial = partial,
                             .partial_batch = m * n,
                             .partial_row = n,
                             .arrival = {.signals = static_cast<uint32_t*>(words) + 1024,
                                         .epoch = 1,
                                         .deadline_ns = 1'000'000'000},
                             .first_chunk = static_cast<int32_t>(own * kChunks),
                             .chunks = kChunks,
                             .targets = targets.empty() ? nullptr : targets.data()};
      return product.run(arguments, workspace, nullptr, shards);
    };

    std::vector<double> times[kCount][kMostOwn];
    const double flops = cool_ ? 14e12 : 8e12;
    const int count = std::max(3, static_cast<int>(flops / (2.0 * static_cast<double>(m * n * k))));
    for (int turn = 0; turn <= turns_; ++turn)
      for (int i = 0; i < kCount; ++i)
        for (int32_t o = 0; o < owns(kVariants[i], ranks) && made[static_cast<size_t>(i)]; ++o) {
          const int32_t own = o == 0 ? 0 : ranks - 1;
          if (kVariants[i].to_peer && inboxes == nullptr) continue;
          StreamTimes clock(shared_);
          std::vector<double> at;
          if (cool_) std::this_thread::sleep_for(std::chrono::milliseconds(3));
          clock.mark(nullptr);
          for (int each = 0; each < count; ++each) check_ok(launch(i, own));
          clock.mark(nullptr);
          check_ok(synchronize(gpu_, nullptr));
          check_ok(clock.seconds(&at));
          if (turn > 0) times[i][o].push_back(at[1] / count);
        }
    const auto median = [](std::vector<double>& each) {
      std::sort(each.begin(), each.end());
      return each[each.size() / 2];
    };
    const double plain = median(times[0][0]);
    std::printf("%lld x %lld x %lld, %d ranks: plain %.4f ms, %.0f TFLOP/s\n",
                static_cast<long long>(m), static_cast<long long>(n), static_cast<long long>(k),
                ranks, 1e3 * plain, 2e-12 * static_cast<double>(m * n * k) / plain);
    for (int i = 1; i < kCount; ++i) {
      if (made[static_cast<size_t>(i)] == nullptr) continue;
      std::printf("  %-42s", kVariants[i].name);
      for (auto& each : times[i])
        if (!each.empty()) std::printf(" %.3f", median(each) / plain);
      std::printf("\n");
    }
    std::fflush(stdout);
    for (const void* each : {a.data, b.data, c, static_cast<void*>(parts),
                             static_cast<void*>(partial), words, workspace})
      release(gpu_, const_cast<void*>(each));
  }

 private:
  // Own ranks that are measured: the first, whose parts all come after it, and the last.
  static constexpr int kMostOwn = 2;
  static int32_t owns(const Variant& variant, int32_t ranks) {
    return variant.shards ? min(ranks, kMostOwn) : 1;
  }

  // Null where there is no such kernel, or another is compiled.
  std::unique_ptr<Sm90Matmul> make(const Variant& variant, int number, int64_t m, int64_t n,
                                   int64_t k, int32_t ranks, const std::vector<int64_t>& begin) {
    if (!only_.empty() && std::find(only_.begin(), only_.end(), number) == only_.end())
      return nullptr;
    MatmulProblem problem{
        .dtype = DType::kBF16, .out_dtype = variant.tile.out, .m = m, .n = n, .k = k};
    if (variant.shards)
      problem.chunks_c = {ChunkDim::kM, begin.data(), static_cast<int64_t>(begin.size()) - 1};
    Sm90MatmulConfig config = choose_sm90_matmul(problem, gpu_.facts().multiprocessors);
    if (variant.tile.columns > 0) {
      config = variant.tile;
      config.async = variant.shards;
    }
    if (variant.canonical) config.leaves = kLeaves / ranks, problem.leaves = config.leaves;
    config.parts = variant.shards ? min(ranks - 1, 4) : 0;
    config.split_k = config.split_k && !variant.shards;
    const int64_t lines = config.rows() * config.cluster;
    if (!config.fits() || (variant.shards && m / ranks % lines != 0)) return nullptr;
    std::unique_ptr<Sm90Matmul> made;
    check_ok(Sm90Matmul::make(problem, config, gpu_, &made));
    return made;
  }

  std::shared_ptr<Gpu> shared_;
  Gpu& gpu_;
  const int turns_;
  const bool cool_, compiles_;
  const std::vector<int> only_;  // empty: all
};

}  // namespace
}  // namespace perseid::internal::cuda

int main(int argc, char** argv) {
  using namespace perseid::internal;
  std::shared_ptr<cuda::Gpu> gpu;
  cuda::check_ok(cuda::Gpu::open(0, &gpu));
  int turns = 7;
  bool cool = false, compiles = false;
  std::vector<int> only;
  std::vector<int64_t> sizes;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--turns") == 0 && i + 1 < argc)
      turns = std::atoi(argv[++i]);
    else if (std::strcmp(argv[i], "--cool") == 0)
      cool = true;
    else if (std::strcmp(argv[i], "--compile") == 0 && i + 1 < argc)
      compiles = true, only = {std::atoi(argv[++i])};
    else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc)
      for (std::istringstream list(argv[++i]); list.good(); list.ignore())
        list >> only.emplace_back(0);
    else
      sizes.push_back(std::atoll(argv[i]));
  }
  if (sizes.empty())
    sizes = {8192, 8192, 7168, 4,    4096,  8192, 7168, 4,    2048, 8192,
             7168, 4,    8192, 8192, 14336, 2,    8192, 8192, 4096, 2};
  cuda::Bench bench(gpu, turns, cool, compiles, only);
  for (size_t i = 0; i + 3 < sizes.size(); i += 4)
    bench.run(sizes[i], sizes[i + 1], sizes[i + 2], static_cast<int32_t>(sizes[i + 3]));
}
