// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target without libFuzzer: every seed, every beginning of it, and a fixed number of
// mutations that are the same in every run. With an argument it writes the seeds into that folder
// instead, where libFuzzer finds them.
#include "driver.hpp"

#include <algorithm>
#include <fstream>
#include <memory>
#include <random>

namespace {

constexpr int kMutationsPerSeed = 5000;
constexpr size_t kLongestPrefixes = 512;  // seeds beyond this are cut in steps
constexpr const char* kTokens[] = {"0",
                                   "-1",
                                   "1e9",
                                   "18446744073709551615",
                                   "9223372036854775807",
                                   "{",
                                   "}",
                                   "[",
                                   "]",
                                   "(",
                                   ")",
                                   "\"",
                                   "'",
                                   ",",
                                   ":",
                                   "\\u0000"};

// In memory of exactly its size, so that a sanitizer sees one byte too far.
void run(const std::string& input) {
  const auto exact = std::make_unique<uint8_t[]>(input.size());
  std::copy(input.begin(), input.end(), exact.get());
  LLVMFuzzerTestOneInput(exact.get(), input.size());
}

std::string mutated(std::string text, const std::string& other, std::mt19937& random) {
  const auto below = [&random](size_t limit) { return random() % std::max<size_t>(limit, 1); };
  for (size_t edits = 1 + below(4); edits-- > 0;) {
    const size_t at = below(text.size() + 1);
    const size_t length = below(std::min<size_t>(text.size() - at, 16) + 1);
    switch (below(6)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random());
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(at, text.substr(at, length));
        break;
      case 4:
        text.replace(at, length, kTokens[below(std::size(kTokens))]);
        break;
      default:
        text.replace(at, length, other.substr(std::min(at, other.size()), below(64)));
        break;
    }
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> seeds = perseid_fuzz::seeds();
  if (argc > 1) {
    for (size_t i = 0; i < seeds.size(); ++i) {
      std::ofstream file(std::string(argv[1]) + "/seed-" + std::to_string(i), std::ios::binary);
      if (!(file << seeds[i])) return 1;
    }
    return 0;
  }
  std::mt19937 random(1);
  size_t inputs = 0;
  for (const std::string& seed : seeds) {
    const size_t step = seed.size() / kLongestPrefixes + 1;
    for (size_t length = 0; length < seed.size(); length += step, ++inputs)
      run(seed.substr(0, length));
    run(seed);
    for (int i = 0; i < kMutationsPerSeed; ++i)
      run(mutated(seed, seeds[random() % seeds.size()], random));
    inputs += 1 + kMutationsPerSeed;
  }
  std::printf("%zu inputs from %zu seeds\n", inputs, seeds.size());
  return 0;
}
