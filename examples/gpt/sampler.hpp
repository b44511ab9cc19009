// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Writes text: the model is asked for the next byte, one is drawn, and so on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model.hpp"

namespace gpt {

template <class T>
class Sampler {
 public:
  Sampler(Machine& machine, const Config& config, double temperature);

  // `count` bytes after `prompt` (which must not be empty), drawn as `seed` says.
  std::string sample(const Weights<T>& weights, const std::string& prompt, int64_t count,
                     uint64_t seed);

 private:
  Machine& machine_;
  int64_t context_;
  Model<T> model_;
  Shared<Real<T>> probabilities_;
  perseid::Softmax at_temperature_;  // of one row of log-probabilities
};

// For a terminal: UTF-8 stays as it is. Bytes that are none, control characters but for tabs and
// line breaks, and characters that turn the direction of writing become U+FFFD; a character that is
// cut off at the end is left out.
std::string printable(std::string_view text);

}  // namespace gpt
