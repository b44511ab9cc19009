// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Errors of attention in float32 against float64, beside those of the plain float32 formula.
#pragma once

#include "attention_cases.hpp"
#include "cuda/attention/arguments.hpp"

namespace perseid::internal::float32_errors {

using namespace cpu::attention_cases;
using cuda::with_element;

using Rows = std::vector<std::vector<double>>;

inline Rows rows_of(const Tensor& tensor) {
  Rows rows(static_cast<size_t>(tensor.shape[2]));
  for (size_t i = 0; i < rows.size(); ++i)
    for (int64_t d = 0; d < tensor.shape[3]; ++d)
      rows[i].push_back(get(tensor, at(tensor, {0, 0, static_cast<int64_t>(i), d})));
  return rows;
}

struct Results {
  Rows out, grad_query, grad_key, grad_value;
  std::vector<double> lse;
};

// The formula, computed in Real.
template <class Real>
class Formula {
 public:
  explicit Formula(const Fixture& fixture)
      : query_(rows_of(fixture.arguments.query)),
        key_(rows_of(fixture.arguments.key)),
        value_(rows_of(fixture.arguments.value)),
        grad_out_(rows_of(fixture.arguments.grad_out)),
        scale_(static_cast<Real>(fixture.problem.scale)) {}

  Results compute() const {
    Results results;
    results.grad_query = zeros_like(query_);
    results.grad_key = zeros_like(key_);
    results.grad_value = zeros_like(value_);
    results.out = zeros_like(grad_out_);
    for (size_t i = 0; i < query_.size(); ++i) {
      std::vector<Real> weights;
      for (const auto& each : key_) weights.push_back(product(query_[i], each) * scale_);
      const Real most = *std::max_element(weights.begin(), weights.end());
      Real sum = 0;
      for (Real& each : weights) sum += each = std::exp(each - most);
      results.lse.push_back(most + std::log(sum));
      for (size_t j = 0; j < key_.size(); ++j) add(weights[j], value_[j], results.out[i]);
      for (double& each : results.out[i]) each = static_cast<Real>(each) / sum;
      const Real delta = product(results.out[i], grad_out_[i]);
      for (size_t j = 0; j < key_.size(); ++j) {
        const Real weight = weights[j] / sum;
        const Real ds = weight * (product(grad_out_[i], value_[j]) - delta) * scale_;
        add(ds, key_[j], results.grad_query[i]);
        add(ds, query_[i], results.grad_key[j]);
        add(weight, grad_out_[i], results.grad_value[j]);
      }
    }
    return results;
  }

 private:
  static Rows zeros_like(const Rows& rows) {
    return Rows(rows.size(), std::vector<double>(rows[0].size()));
  }
  static Real product(const std::vector<double>& x, const std::vector<double>& y) {
    Real sum = 0;
    for (size_t d = 0; d < x.size(); ++d)
      sum = std::fma(static_cast<Real>(x[d]), static_cast<Real>(y[d]), sum);
    return sum;
  }
  static void add(Real factor, const std::vector<double>& row, std::vector<double>& to) {
    for (size_t d = 0; d < row.size(); ++d)
      to[d] = std::fma(factor, static_cast<Real>(row[d]), static_cast<Real>(to[d]));
  }

  const Rows query_, key_, value_, grad_out_;
  const Real scale_;
};

// The norms of errors: of all rows, of the worst row, and of the worst one relative to its norm.
struct Errors {
  double all = 0, row = 0, relative = 0;
};
inline Errors errors_of(const Rows& rows, const Rows& exact) {
  Errors found;
  for (size_t i = 0; i < rows.size(); ++i) {
    double of_row = 0, norm_of_row = 0;
    for (size_t d = 0; d < rows[i].size(); ++d) {
      of_row += std::pow(rows[i][d] - exact[i][d], 2);
      norm_of_row += exact[i][d] * exact[i][d];
    }
    found.all = std::hypot(found.all, std::sqrt(of_row));
    found.row = std::max(found.row, std::sqrt(of_row));
    found.relative = std::max(found.relative, std::sqrt(of_row / norm_of_row));
  }
  return found;
}
inline double largest_error(const std::vector<double>& found, const std::vector<double>& exact) {
  double most = 0;
  for (size_t i = 0; i < found.size(); ++i) most = std::max(most, std::fabs(found[i] - exact[i]));
  return most;
}

// Inputs by the number of the element, from a normal number x and a uniform one of [-1, 1].
struct Inputs {
  const char* name;
  std::function<double(int64_t row, int64_t d, double x, double u)> query, key, value;
};

inline void fill_inputs(const Inputs& inputs, const Fixture& fixture) {
  Random random{7};
  const auto normal = [&] {
    double sum = 0;
    for (int i = 0; i < 12; ++i) sum += random.uniform() / 2;
    return sum;
  };
  const auto fill_with = [&](const Tensor& tensor, const auto& value_of) {
    for (int64_t i = 0; i < tensor.shape[2]; ++i)
      for (int64_t d = 0; d < tensor.shape[3]; ++d) {
        const double x = normal(), u = random.uniform();
        put(tensor, at(tensor, {0, 0, i, d}), value_of(i, d, x, u));
      }
  };
  fill_with(fixture.arguments.query, inputs.query);
  fill_with(fixture.arguments.key, inputs.key);
  fill_with(fixture.arguments.value, inputs.value);
  fill_with(fixture.arguments.grad_out, [](int64_t, int64_t, double x, double) { return x; });
}

inline double plain_input(int64_t, int64_t, double x, double) { return x; }
inline const Inputs kNormal{"normal", plain_input, plain_input, plain_input};

inline std::vector<Inputs> all_inputs() {
  const auto large = [](int64_t, int64_t, double x, double) { return 4 * x; };
  const auto power = [](double most) {
    return
        [=](int64_t, int64_t, double x, double u) { return x * std::exp2(std::round(most * u)); };
  };
  const auto along = [](double most) {
    return [=](int64_t, int64_t d, double x, double) {
      return x * std::exp2(std::round(most * (static_cast<double>(d) / 32 - 1)));
    };
  };
  return {
      kNormal,
      {"large", large, large, plain_input},
      {"offset", plain_input, plain_input,
       [](int64_t, int64_t, double x, double) { return 1 + 0.1 * x; }},
      {"wide", power(8),
       [=](int64_t row, int64_t d, double x, double u) { return 0x1p-11 * power(8)(row, d, x, u); },
       power(20)},
      {"cross", along(9), along(-9), plain_input},
      {"rows", plain_input, plain_input,
       [](int64_t row, int64_t, double x, double) { return row % 3 == 0 ? 0x1p24 * x : x; }}};
}

// Results beside those of the float32 formula.
inline void compare_errors(const Fixture& fixture, const Results& exact) {
  const Results plain = Formula<float>(fixture).compute();
  std::vector<double> lse;
  for (const auto& row : rows_of(with_element(fixture.lse.tensor))) lse.push_back(row[0]);
  EXPECT_LE(largest_error(lse, exact.lse), 1.5 * largest_error(plain.lse, exact.lse));
  const auto compare = [&](const char* name, const Tensor& tensor, const Rows& exactly,
                           const Rows& plainly, double factor) {
    const Errors own = errors_of(rows_of(tensor), exactly), formula = errors_of(plainly, exactly);
    EXPECT_LE(own.all, factor * formula.all) << name;
    EXPECT_LE(own.row, 3 * formula.row) << name;
    // Gradients of peaked rows are differences of numbers that are nearly equal.
    if (&tensor == &fixture.out.tensor) {
      EXPECT_LE(own.relative, 3 * formula.relative);
    }
  };
  compare("out", fixture.out.tensor, exact.out, plain.out, 1);
  compare("grad_query", fixture.grad_query.tensor, exact.grad_query, plain.grad_query, 1.5);
  compare("grad_key", fixture.grad_key.tensor, exact.grad_key, plain.grad_key, 1.5);
  compare("grad_value", fixture.grad_value.tensor, exact.grad_value, plain.grad_value, 1.5);
}

// What rows have too much of the exact ones, as a share.
inline double gain_of(const Rows& rows, const Rows& exact) {
  double products = 0, squares = 0;
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t d = 0; d < rows[i].size(); ++d) {
      products += (rows[i][d] - exact[i][d]) * exact[i][d];
      squares += exact[i][d] * exact[i][d];
    }
  return products / squares;
}

// Tensor cores truncate, which the kernels give back: `most` is the share that may be left, and
// `most_of_gradients`, whose weights also have the errors of exponents. run: forward, and backward
// from its results.
template <class Run>
void expect_no_loss(int64_t dim, double most, double most_of_gradients, const Run& run) {
  SCOPED_TRACE(concatenate("dim ", dim));
  // lse of one key is its score.
  Fixture scores(make_case(DType::kF32, 1, 1, 1, 640, 1, dim, dim));
  fill_inputs(kNormal, scores);
  run(scores);
  Rows exact_lse;
  for (const double each : Formula<double>(scores).compute().lse) exact_lse.push_back({each});
  EXPECT_NEAR(gain_of(rows_of(with_element(scores.lse.tensor)), exact_lse), 0, most);
  Fixture fixture(make_case(DType::kF32, 1, 1, 1, 128, 192, dim, dim));
  fill_inputs(kNormal, fixture);
  run(fixture);
  const Results exact = Formula<double>(fixture).compute();
  EXPECT_NEAR(gain_of(rows_of(fixture.out.tensor), exact.out), 0, most);
  EXPECT_NEAR(gain_of(rows_of(fixture.grad_query.tensor), exact.grad_query), 0, most_of_gradients);
  EXPECT_NEAR(gain_of(rows_of(fixture.grad_key.tensor), exact.grad_key), 0, most_of_gradients);
  EXPECT_NEAR(gain_of(rows_of(fixture.grad_value.tensor), exact.grad_value), 0, most_of_gradients);
}

}  // namespace perseid::internal::float32_errors
