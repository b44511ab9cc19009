// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What random problems are drawn with; inside of fuzzing alone.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "harness/data.hpp"

namespace perseid::harness {

class Dice {
 public:
  Dice(uint64_t seed, uint64_t index) : seed_(random_bits(seed, index)) {}

  uint64_t bits() { return random_bits(seed_, next_++); }
  // In [low, high].
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  bool one_in(int64_t count) { return between(1, count) == 1; }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[bits() % choices.size()];
  }
  // Mostly small, now and then around the sizes of tiles.
  int64_t extent(int64_t most) {
    if (one_in(30)) return 0;
    if (one_in(8)) return 1;
    if (one_in(6)) return std::min(most, pick<int64_t>({15, 16, 17, 31, 32, 33, 63, 64, 65, 129}));
    return one_in(3) ? between(1, most) : between(1, std::min<int64_t>(most, 12));
  }

 private:
  uint64_t seed_;
  uint64_t next_ = 0;
};

// Makes a valid problem wrong in one way, of the descriptor or of the call.
void spoil(Dice& dice, Problem& problem);

}  // namespace perseid::harness
