// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Softmax over the visible elements x of a row, with z = scale * x:
//
//   lse = max z + log(sum exp(z - max z))      softmax = exp(z - max z) / sum exp(z - max z)
//   log-softmax = z - max z - log(sum exp(z - max z))
//
// and its gradient, with y the output and dy its gradient:
//
//   softmax:      dx = scale * y * (dy - sum(y * dy))
//   log-softmax:  dx = scale * (dy - exp(y) * sum(dy))
#include <cmath>
#include <limits>

#include "cpu/reference/access.hpp"
#include "cpu/reference/reference.hpp"

namespace perseid::internal::cpu::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kElementsPerTask = 16384;

// A row of a tensor: its offset and the stride of its elements.
struct Row {
  int64_t offset = 0, stride = 0;
  int64_t at(int64_t column) const { return offset + column * stride; }
};

Row row_of(const SoftmaxProblem& problem, const Tensor& tensor, int64_t row) {
  if (!tensor.present()) return {};
  Row result{0, tensor.stride[problem.dim]};
  for (int32_t i = problem.rank - 1; i >= 0; --i) {
    if (i == problem.dim) continue;
    result.offset += row % problem.shape[i] * tensor.stride[i];
    row /= problem.shape[i];
  }
  return result;
}

// A sum with what each addition lost (Neumaier): long rows would else be known no better than they
// are computed.
class Sum {
 public:
  void add(double x) {
    const double sum = sum_ + x;
    if (std::isfinite(sum))
      lost_ += std::abs(sum_) >= std::abs(x) ? (sum_ - sum) + x : (x - sum) + sum_;
    sum_ = sum;
  }
  double value() const { return std::isfinite(sum_) ? sum_ + lost_ : sum_; }

 private:
  double sum_ = 0, lost_ = 0;
};

template <class Body>  // body(row)
void for_each_row(const SoftmaxProblem& problem, const Execution& execution, const Body& body) {
  const int64_t rows = problem.rows();
  const int64_t rows_per_task =
      max(int64_t{1}, kElementsPerTask / max(int64_t{1}, problem.length()));
  for_each_task(execution.executor, ceil_div(rows, rows_per_task), [&](int64_t task, int32_t) {
    const int64_t end = min(rows, (task + 1) * rows_per_task);
    for (int64_t row = task * rows_per_task; row < end; ++row) body(row);
  });
}

}  // namespace

void softmax_forward(const SoftmaxProblem& problem, const SoftmaxForward& arguments,
                     const Execution& execution) {
  if (arguments.output.empty() && arguments.lse.empty()) return;
  for_each_row(problem, execution, [&](int64_t row) {
    const Row input = row_of(problem, arguments.input, row);
    const Row output = row_of(problem, arguments.output, row);
    const Row visible = row_of(problem, arguments.visible, row);
    const int64_t length = problem.length();
    const auto counts = [&](int64_t j) {
      return !problem.visible || load_bool(arguments.visible, visible.at(j));
    };
    const auto scaled = [&](int64_t j) {
      return problem.scale * load(arguments.input, input.at(j));
    };

    int64_t counted = 0;
    double maximum = -kInfinity;
    for (int64_t j = 0; j < length; ++j) {
      if (!counts(j)) continue;
      ++counted;
      const double z = scaled(j);
      if (z > maximum || std::isnan(z)) maximum = z;  // once NaN, it stays NaN
    }
    Sum weights;
    for (int64_t j = 0; j < length; ++j)
      if (counts(j)) weights.add(std::exp(scaled(j) - maximum));
    const double sum = weights.value();

    if (arguments.lse.present()) {
      // An infinite maximum is its own logsumexp, though its exponentials are not numbers.
      const double lse = std::isinf(maximum) ? maximum : maximum + std::log(sum);
      store(arguments.lse, row_of(problem, arguments.lse, row).offset, lse);
    }
    const double nothing = problem.log ? -kInfinity : 0.0;
    const double masked = counted == 0 && problem.empty_rows_nan ? kNaN : nothing;
    const double log_sum = std::log(sum);
    for (int64_t j = 0; j < length; ++j) {
      double y = masked;
      if (counts(j)) {
        const double shifted = scaled(j) - maximum;
        y = problem.log ? shifted - log_sum : std::exp(shifted) / sum;
      }
      store(arguments.output, output.at(j), y);
    }
  });
}

void softmax_backward(const SoftmaxProblem& problem, const SoftmaxBackward& arguments,
                      const Execution& execution) {
  if (arguments.grad_input.empty()) return;
  for_each_row(problem, execution, [&](int64_t row) {
    const Row grad_output = row_of(problem, arguments.grad_output, row);
    const Row output = row_of(problem, arguments.output, row);
    const Row visible = row_of(problem, arguments.visible, row);
    const Row grad_input = row_of(problem, arguments.grad_input, row);
    const int64_t length = problem.length();
    const auto counts = [&](int64_t j) {
      return !problem.visible || load_bool(arguments.visible, visible.at(j));
    };

    Sum products;
    for (int64_t j = 0; j < length; ++j) {
      if (!counts(j)) continue;
      const double dy = load(arguments.grad_output, grad_output.at(j));
      products.add(problem.log ? dy : dy * load(arguments.output, output.at(j)));
    }
    const double sum = products.value();
    for (int64_t j = 0; j < length; ++j) {
      double dx = 0;
      if (counts(j)) {
        const double dy = load(arguments.grad_output, grad_output.at(j));
        const double y = load(arguments.output, output.at(j));
        dx = problem.scale * (problem.log ? dy - std::exp(y) * sum : y * (dy - sum));
      }
      store(arguments.grad_input, grad_input.at(j), dx);
    }
  });
}

}  // namespace perseid::internal::cpu::reference
