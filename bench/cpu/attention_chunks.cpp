// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// attention-chunks [ROUNDS]
//
// What chunks of keys cost attention forward on the CPU: without chunks, with 8 chunks that are all
// present, and with 8 of which the c-th arrives at 0.9 c / 8 of the time without chunks, in turns.
// Prints the fastest round of each in ms, and the time without chunks over it: below 1 the chunks
// cost time.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <perseid/perseid.hpp>
#include <random>
#include <thread>
#include <vector>

namespace {

using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr int64_t kChunks = 8;

struct Case {
  const char* name;
  perseid::DType dtype;
  int64_t heads, kv_heads, q_len, kv_len;
  perseid::Mask mask = {};
};

void measure(const perseid::Context& context, const Case& given, int rounds) {
  constexpr int64_t kDim = 128;
  const size_t bytes = given.dtype == perseid::f32 ? 4 : 2;
  std::mt19937 random(1);
  // Random bits of numbers near 1, of either sign, in both types.
  const auto draw = [&](int64_t heads, int64_t rows) {
    std::vector<uint16_t> words(static_cast<size_t>(heads * rows * kDim) * bytes / 2);
    for (uint16_t& word : words) word = static_cast<uint16_t>(0x3f80 | (random() & 0x807f));
    return words;
  };
  const std::vector<uint16_t> q = draw(given.heads, given.q_len),
                              k = draw(given.kv_heads, given.kv_len),
                              v = draw(given.kv_heads, given.kv_len);
  std::vector<uint16_t> out(q.size());
  const perseid::Dims queries = {1, given.q_len, given.heads, kDim};
  const perseid::Dims keys = {1, given.kv_len, given.kv_heads, kDim};
  perseid::AttentionForward with{.query = perseid::Tensor(q.data(), given.dtype, queries),
                                 .key = perseid::Tensor(k.data(), given.dtype, keys),
                                 .value = perseid::Tensor(v.data(), given.dtype, keys),
                                 .out = perseid::Tensor(out.data(), given.dtype, queries)};
  perseid::AttentionOptions options{.dtype = given.dtype,
                                    .heads = given.heads,
                                    .kv_heads = given.kv_heads,
                                    .q_len = given.q_len,
                                    .kv_len = given.kv_len,
                                    .head_dim = kDim,
                                    .mask = given.mask};
  const perseid::Attention plain(context, options);
  const perseid::Chunks chunks = perseid::Chunks::even(given.kv_len, kChunks);
  options.async_kv = chunks;
  const perseid::Attention chunked(context, options);
  perseid::Workspace workspace;
  plain.reserve(workspace);
  chunked.reserve(workspace);
  std::vector<uint32_t> signals(kChunks, 0);
  uint32_t epoch = 0;
  const auto time = [&](const perseid::Attention& attention) {
    const auto begin = std::chrono::steady_clock::now();
    attention.forward(nullptr, with, workspace);
    return Milliseconds(std::chrono::steady_clock::now() - begin).count();
  };
  double best[3] = {1e30, 1e30, 1e30};
  for (int round = 0; round < rounds; ++round) {
    with.arrival_kv = {};
    best[0] = std::min(best[0], time(plain));
    with.arrival_kv = {.signals = signals.data(), .epoch = ++epoch};
    std::fill(signals.begin(), signals.end(), epoch);
    best[1] = std::min(best[1], time(chunked));
    with.arrival_kv.epoch = ++epoch;
    perseid::set_signal(&signals[0], epoch);
    const auto begin = std::chrono::steady_clock::now();
    std::thread producer([&] {
      for (int64_t c = 1; c < kChunks; ++c) {
        std::this_thread::sleep_until(
            begin + std::chrono::duration_cast<std::chrono::nanoseconds>(
                        Milliseconds(0.9 * static_cast<double>(c) / kChunks * best[0])));
        perseid::set_signal(&signals[static_cast<size_t>(c)], epoch);
      }
    });
    best[2] = std::min(best[2], time(chunked));
    producer.join();
  }
  constexpr const char* kNames[] = {"no chunks", "present", "arriving"};
  for (int i = 0; i < 3; ++i)
    std::printf("%-22s %-10s %9.2f ms  %.3f\n", given.name, kNames[i], best[i], best[0] / best[i]);
}

}  // namespace

int main(int argc, char** argv) try {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  const auto context = perseid::Context::cpu();
  const perseid::Mask causal = perseid::causal_bottom_right();
  const Case cases[] = {{"f32, 2048, full", perseid::f32, 4, 4, 2048, 2048},
                        {"f32, 2048, causal", perseid::f32, 4, 4, 2048, 2048, causal},
                        {"bf16, 2048, full", perseid::bf16, 4, 1, 2048, 2048},
                        {"bf16, 2048, causal", perseid::bf16, 4, 1, 2048, 2048, causal},
                        {"f32, decode 32768", perseid::f32, 8, 8, 1, 32768}};
  for (const Case& each : cases) measure(context, each, rounds);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
