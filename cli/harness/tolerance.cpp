// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/tolerance.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace perseid::harness {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Whether the naive error is a maximum over enough elements, and over enough of the largest, whose
// errors are the largest. Equal ones count once.
bool has_many_values(std::vector<double> values) {
  constexpr int64_t kMany = 4096, kManyLarge = 256;
  if (static_cast<int64_t>(values.size()) < kMany) return false;
  std::erase_if(values, [](double value) { return std::isnan(value); });
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  if (static_cast<int64_t>(values.size()) < kMany) return false;
  const double large = std::max(std::fabs(values.front()), std::fabs(values.back())) / 4;
  return std::count_if(values.begin(), values.end(),
                       [&](double value) { return std::fabs(value) >= large; }) >= kManyLarge;
}

// A result may be infinite where values within the limit are beyond the range of its type.
double error_of(double value, double exact, double limit, DType dtype) {
  if (value == exact || (std::isnan(value) && std::isnan(exact))) return 0;
  if (!std::isfinite(exact) || std::isnan(value)) return kInfinity;
  if (std::isinf(value))
    return round_to(dtype, exact + std::copysign(limit, value)) == value ? 0 : kInfinity;
  return std::fabs(value - exact);
}

// Where the naive formula overflows and float64 does not, it is no measure.
double naive_error(const std::vector<double>& values, const std::vector<double>& reference) {
  double most = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double error = std::fabs(values[i] - reference[i]);
    if (std::isfinite(error)) most = std::max(most, error);
  }
  return most;
}

}  // namespace

Deviation deviation(const std::vector<double>& values, const std::vector<double>& reference,
                    const Limit& limit, DType dtype) {
  Deviation worst;
  if (!reference.empty()) worst.limit = limit.at(0);
  for (size_t i = 0; i < reference.size(); ++i) {
    const double allowed = limit.at(i);
    const double error = error_of(values[i], reference[i], allowed, dtype);
    if (error == 0) continue;
    if (!(error <= allowed) || !std::isfinite(allowed)) ++worst.wrong;
    // error / allowed > worst.error / worst.limit, for limits of 0 and infinite errors too.
    if (std::isinf(error) ? std::isinf(worst.error)
                          : error * worst.limit <= worst.error * allowed && worst.error > 0)
      continue;
    worst.error = error;
    worst.limit = allowed;
    worst.element = i;
  }
  return worst;
}

double relative_error(double error, double limit) { return error == 0 ? 0 : error / limit; }

double largest_error(const std::vector<double>& values, const std::vector<double>& reference,
                     DType dtype) {
  double most = 0;
  for (size_t i = 0; i < values.size(); ++i)
    most = std::max(most, error_of(values[i], reference[i], 0, dtype));
  return most;
}

double error_limit(const Estimate& naive, const std::vector<double>& reference, DType dtype,
                   DType working) {
  double rounding = 0, largest = 0;
  const double step = round_to(dtype, 0.3);
  for (double exact : reference) {
    if (!std::isfinite(exact)) continue;
    const double start = round_to(dtype, exact);
    const double back = round_to(dtype, round_to(dtype, start + step) - step);
    if (std::isfinite(back)) rounding = std::max(rounding, std::fabs(back - start));
    largest = std::max(largest, std::fabs(exact));
  }
  // Small outputs are held to their own size.
  const double subnormal = dtype == f16 || is_float8(dtype) ? 8 * smallest_step(dtype) : 0x1p-126;
  rounding = std::min(rounding, std::max(8 * unit_roundoff(dtype) * largest, subnormal));
  const double limit = 2 * naive_error(naive.value, reference) + 2 * rounding;
  const double sums = 4 * unit_roundoff(accumulation_type(working)) * naive.magnitude;
  if (working != f64 && has_many_values(reference)) return std::max(limit, sums);
  const double smallest = working == f16 || dtype == f16 ? 0x1p-22 : 0;
  return std::max(limit, 2 * sums + 2 * unit_roundoff(working) * naive.magnitude +
                             2 * unit_roundoff(dtype) * largest + smallest * (1 + naive.magnitude) +
                             (is_float8(dtype) ? smallest_step(dtype) : 0));
}

Limit limit_of(const Estimate& naive, const std::vector<double>& reference, DType dtype,
               DType working) {
  if (!naive.limit.empty()) return {0, naive.limit};
  return {error_limit(naive, reference, dtype, working), {}};
}

double lse_limit(double score, int64_t depth, int64_t count, DType dtype) {
  const bool in_f64 = dtype == f64;
  const auto terms = static_cast<double>(std::max<int64_t>(count, 1));
  const auto products = static_cast<double>(depth);
  // Errors of the exponential, as docs/reference/numerics.md has them, and of the logarithm.
  const double functions = in_f64 ? 1e-15 : dtype == bf16 ? 4e-6 : 1e-6;
  // The reference adds up one element after another, in float64 too.
  const double sums = in_f64 ? terms : std::min(terms / 8, 16 * std::sqrt(terms));
  const double dots = in_f64 ? products : 2 * std::sqrt(products);
  return unit_roundoff(accumulation_type(dtype)) *
             ((10 + dots) * score + 2 * std::log(terms) + 16 + sums) +
         functions;
}

}  // namespace perseid::harness
