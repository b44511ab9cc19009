// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the tests of the GPT example share: a text with something to learn, and a small run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer.hpp"

namespace gpt {

inline std::vector<uint8_t> rhyme() {
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text += std::to_string(i % 7) + " green bottles hanging on the wall, ";
  }
  return {text.begin(), text.end()};
}

inline Recipe tiny_recipe() {
  return {
      .model = {.layers = 2, .width = 48, .heads = 3, .context = 32, .batch = 4, .dropout = 0.1},
      .learning_rate = 3e-3,
      .warm_up = 5,
      .steps = 24,
      .seed = 9};
}

}  // namespace gpt
