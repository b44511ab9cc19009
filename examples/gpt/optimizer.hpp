// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// AdamW (Loshchilov and Hutter, arXiv:1711.05101) with the gradient's norm clipped.
#pragma once

#include <cstdint>
#include <vector>

#include "parameters.hpp"
#include "threads.hpp"
#include "types.hpp"

namespace gpt {

template <class R>
class AdamW {
 public:
  explicit AdamW(const Cut& cut) : matrices_(cut.all()), first_(cut.size), second_(cut.size) {}

  // The step-th update, counted from 0.
  void update(Threads& threads, int64_t step, double learning_rate, const R* gradient, R* weights);

  // Running means of the gradient and of its square.
  R* first() const { return first_.data(); }
  R* second() const { return second_.data(); }

 private:
  static constexpr double kBeta1 = 0.9;
  static constexpr double kBeta2 = 0.98;
  static constexpr double kEpsilon = 1e-9;
  static constexpr double kDecay = 0.1;
  static constexpr double kLargestNorm = 1.0;

  std::vector<Matrix> matrices_;
  Buffer<R> first_, second_;
};

// The Euclidean norm, summed in an order that does not depend on the number of threads.
template <class R>
double norm_of(Threads& threads, const R* values, int64_t size);

// Rises for `warm_up` steps, then falls along a cosine to a tenth; `steps` 0: not known yet.
double learning_rate_at(int64_t step, int64_t steps, int64_t warm_up, double peak);

}  // namespace gpt
