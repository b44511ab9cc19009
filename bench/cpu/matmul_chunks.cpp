// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// matmul-chunks [ROUNDS]
//
// What chunks cost on the CPU where all of them are present: 2048^3 in f32 and bf16, the plain
// product and the same with 8 chunks of a, of b and of k in turns. Prints the fastest round of each
// in ms, and the plain time over it: below 1 the chunks cost time.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <perseid/perseid.hpp>
#include <random>
#include <vector>

namespace {

constexpr int64_t kSize = 2048, kChunks = 8;

double milliseconds(const perseid::Matmul& matmul, const perseid::MatmulArguments& arguments,
                    perseid::Workspace& workspace) {
  const auto begin = std::chrono::steady_clock::now();
  matmul.execute(nullptr, arguments, workspace);
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

void measure(const perseid::Context& context, perseid::DType dtype, const char* name, int rounds) {
  const size_t bytes = dtype == perseid::f32 ? 4 : 2;
  std::mt19937 random(1);
  // Random bits of numbers near 1, of either sign, in both types.
  const auto draw = [&] {
    std::vector<uint16_t> words(kSize * kSize * bytes / 2);
    for (uint16_t& word : words) word = static_cast<uint16_t>(0x3f80 | (random() & 0x807f));
    return words;
  };
  const std::vector<uint16_t> a = draw(), b = draw();
  std::vector<uint16_t> c(a.size());
  const perseid::Dims shape = {kSize, kSize};
  perseid::MatmulArguments plain_arguments{.a = perseid::Tensor(a.data(), dtype, shape),
                                           .b = perseid::Tensor(b.data(), dtype, shape),
                                           .c = perseid::Tensor(c.data(), dtype, shape)};
  const perseid::MatmulOptions options{.dtype = dtype, .m = kSize, .n = kSize, .k = kSize};
  const perseid::Chunks m = perseid::Chunks::even(kSize, kChunks);
  const perseid::Chunks k = perseid::Chunks::even(kSize, kChunks, perseid::ChunkDim::kK);
  perseid::MatmulOptions of_a = options, of_b = options, of_k = options;
  of_a.async_a = m;
  of_b.async_b = m;
  of_k.async_a = k;
  const std::vector<uint32_t> signals(kChunks, 1);
  const perseid::Arrival arrival{.signals = signals.data(), .epoch = 1};
  struct Contender {
    const char* name;
    perseid::Matmul matmul;
    perseid::MatmulArguments arguments;
    double best = 1e30;
  };
  Contender contenders[] = {{"plain", {context, options}, plain_arguments},
                            {"8 chunks of m", {context, of_a}, plain_arguments},
                            {"8 chunks of n", {context, of_b}, plain_arguments},
                            {"8 chunks of k", {context, of_k}, plain_arguments}};
  contenders[1].arguments.arrival_a = arrival;
  contenders[2].arguments.arrival_b = arrival;
  contenders[3].arguments.arrival_a = arrival;
  perseid::Workspace workspace;
  for (Contender& contender : contenders) contender.matmul.reserve(workspace);
  for (int round = 0; round < rounds; ++round)
    for (Contender& contender : contenders)
      contender.best =
          std::min(contender.best, milliseconds(contender.matmul, contender.arguments, workspace));
  for (const Contender& contender : contenders)
    std::printf("%-5s %-14s %8.2f ms  %.3f\n", name, contender.name, contender.best,
                contenders[0].best / contender.best);
}

}  // namespace

int main(int argc, char** argv) try {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  const auto context = perseid::Context::cpu();
  measure(context, perseid::f32, "f32", rounds);
  measure(context, perseid::bf16, "bf16", rounds);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
