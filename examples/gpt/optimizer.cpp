// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <vector>

namespace gpt {
namespace {

constexpr int64_t kGrain = 1 << 14;

}  // namespace

template <class R>
double norm_of(Threads& threads, const R* values, int64_t size) {
  std::vector<double> parts(static_cast<size_t>((size + kGrain - 1) / kGrain));
  threads.for_ranges(size, kGrain, [&](int64_t begin, int64_t end) {
    constexpr int64_t kLanes = 16;
    R lanes[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane)
        lanes[lane] += values[i + lane] * values[i + lane];
    }
    double total = 0;
    for (; i < end; ++i) total += static_cast<double>(values[i] * values[i]);
    for (R lane : lanes) total += static_cast<double>(lane);
    parts[static_cast<size_t>(begin / kGrain)] = total;
  });
  return std::sqrt(std::accumulate(parts.begin(), parts.end(), 0.0));
}

template <class R>
void AdamW<R>::update(Threads& threads, int64_t step, double learning_rate, const R* gradient,
                      R* weights) {
  const double length = norm_of(threads, gradient, first_.size());
  const R clip = static_cast<R>(length > kLargestNorm ? kLargestNorm / length : 1.0);
  const auto count = static_cast<double>(step + 1);
  // The means begin at zero; these undo it.
  const double first_scale = 1 / (1 - std::pow(kBeta1, count));
  const R second_scale = static_cast<R>(1 / (1 - std::pow(kBeta2, count)));
  const R keep = static_cast<R>(1 - learning_rate * kDecay);
  constexpr R kB1 = R(kBeta1), kB2 = R(kBeta2), kEps = R(kEpsilon);
  for (const auto& matrix : matrices_) {
    const R rate = static_cast<R>(learning_rate * matrix.rate * first_scale);
    const R* g = gradient + matrix.offset;
    R* w = weights + matrix.offset;
    R* first = first_.data() + matrix.offset;
    R* second = second_.data() + matrix.offset;
    threads.for_ranges(matrix.size(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const R slope = g[i] * clip;
        const R m = kB1 * first[i] + (1 - kB1) * slope;
        const R v = kB2 * second[i] + (1 - kB2) * slope * slope;
        first[i] = m;
        second[i] = v;
        w[i] = keep * w[i] - rate * m / (std::sqrt(second_scale * v) + kEps);
      }
    });
  }
}

double learning_rate_at(int64_t step, int64_t steps, int64_t warm_up, double peak) {
  const double rise = std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(warm_up));
  if (steps <= 0) return peak * rise;
  const double way = std::min(1.0, static_cast<double>(step) / static_cast<double>(steps));
  return peak * rise * (0.55 + 0.45 * std::cos(std::numbers::pi * way));
}

template class AdamW<float>;
template class AdamW<double>;
template double norm_of(Threads&, const float*, int64_t);
template double norm_of(Threads&, const double*, int64_t);

}  // namespace gpt
