// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// rank-shards [M N K RANKS]...
//
// What a rank's kernel of matmul + reduce-scatter costs on one GPU, where all parts of the others
// are there already, over the plain product with results in bf16: the most that fusion can reach.
// Each line: milliseconds of the plain product, of the one with results in float32, and for each
// own rank the ratio to the first. Launches back to back, in turns; medians.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/runtime/memory.hpp"
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

class Bench {
 public:
  explicit Bench(std::shared_ptr<Gpu> gpu) : shared_(std::move(gpu)), gpu_(*shared_) {}

  void run(int64_t m, int64_t n, int64_t k, int32_t ranks) {
    constexpr int64_t kChunks = 2;
    std::vector<int64_t> begin;
    for (int64_t c = 0; c <= ranks * kChunks; ++c) begin.push_back(c * m / (ranks * kChunks));
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

    MatmulProblem problem{.dtype = DType::kBF16, .out_dtype = DType::kBF16, .m = m, .n = n, .k = k};
    const auto make = [&](const MatmulProblem& of, int others) {
      Sm90MatmulConfig config = choose_sm90_matmul(of, gpu_.facts().multiprocessors);
      config.parts = others;
      config.split_k = config.split_k && others == 0;
      std::unique_ptr<Sm90Matmul> made;
      check_ok(Sm90Matmul::make(of, config, gpu_, &made));
      return made;
    };
    const auto plain = make(problem, 0);
    MatmulProblem wide = problem;
    wide.out_dtype = DType::kF32;
    const auto wider = make(wide, 0);
    problem.chunks_c = {ChunkDim::kM, begin.data(), ranks * kChunks};
    const auto sharded = make(problem, min(ranks - 1, 4));

    std::vector<std::vector<double>> times(2 + static_cast<size_t>(ranks));
    constexpr int kTurns = 7;
    for (int turn = 0; turn <= kTurns; ++turn)
      for (size_t i = 0; i < times.size(); ++i) {
        const auto launch = [&] {
          if (i < 2) {
            const Tensor out = view(c, i == 0 ? DType::kBF16 : DType::kF32, m, n);
            return (i == 0 ? plain : wider)
                ->run({.a = a, .b = b, .c0 = out, .bias = {}, .c = out}, workspace, nullptr);
          }
          const auto own = static_cast<int32_t>(i - 2);
          Tensor out = view(c, DType::kBF16, m, n);
          const MatmulArguments arguments{.a = a,
                                          .b = b,
                                          .c0 = out,
                                          .bias = {},
                                          .c = out,
                                          .departure_c = {.signals = static_cast<uint32_t*>(words),
                                                          .epoch = 1,
                                                          .first = (own + 1) % ranks * kChunks}};
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
                                 .chunks = kChunks};
          return sharded->run(arguments, workspace, nullptr, shards);
        };
        const int count =
            std::max(3, static_cast<int>(8e12 / (2.0 * static_cast<double>(m * n * k))));
        StreamTimes clock(shared_);
        std::vector<double> at;
        clock.mark(nullptr);
        for (int each = 0; each < count; ++each) check_ok(launch());
        clock.mark(nullptr);
        check_ok(synchronize(gpu_, nullptr));
        check_ok(clock.seconds(&at));
        if (turn > 0) times[i].push_back(at[1] / count);
      }
    std::vector<double> medians;
    for (auto& each : times) {
      std::sort(each.begin(), each.end());
      medians.push_back(each[each.size() / 2]);
    }
    std::printf("%lld x %lld x %lld, %d ranks: %.4f ms, f32 %.3f, own", static_cast<long long>(m),
                static_cast<long long>(n), static_cast<long long>(k), ranks, 1e3 * medians[0],
                medians[1] / medians[0]);
    for (size_t i = 2; i < medians.size(); ++i) std::printf(" %.3f", medians[i] / medians[0]);
    std::printf("\n");
    std::fflush(stdout);
    for (const void* each : {a.data, b.data, c, static_cast<void*>(parts),
                             static_cast<void*>(partial), words, workspace})
      release(gpu_, const_cast<void*>(each));
  }

 private:
  std::shared_ptr<Gpu> shared_;
  Gpu& gpu_;
};

}  // namespace
}  // namespace perseid::internal::cuda

int main(int argc, char** argv) {
  using namespace perseid::internal;
  std::shared_ptr<cuda::Gpu> gpu;
  cuda::check_ok(cuda::Gpu::open(0, &gpu));
  cuda::Bench bench(gpu);
  std::vector<int64_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoll(argv[i]));
  if (sizes.empty())
    sizes = {8192, 8192, 7168, 4,    4096,  8192, 7168, 4,    2048, 8192,
             7168, 4,    8192, 8192, 14336, 2,    8192, 8192, 4096, 2};
  for (size_t i = 0; i + 3 < sizes.size(); i += 4)
    bench.run(sizes[i], sizes[i + 1], sizes[i + 2], static_cast<int32_t>(sizes[i + 3]));
}
