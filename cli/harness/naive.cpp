// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "harness/naive.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/naive_attention.hpp"

namespace perseid::harness {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One row of softmax with everything that backward asks of it.
template <class A>
class NaiveSoftmax {
 public:
  // `given`: the `out` of naive().
  NaiveSoftmax(const Problem& problem, const Operands& inputs, const std::vector<double>& given)
      : problem_(problem), given_(given), working_(working_type(problem)) {
    const auto rank = static_cast<int64_t>(problem.shape.size());
    const auto dim = static_cast<size_t>(problem.dim < 0 ? problem.dim + rank : problem.dim);
    length_ = problem.shape[dim];
    for (size_t i = 0; i < dim; ++i) outer_ *= problem.shape[i];
    for (size_t i = dim + 1; i < problem.shape.size(); ++i) inner_ *= problem.shape[i];
    scale_ = problem.scale == 0 ? 1 : problem.scale;
    reach_unit_ = unit_roundoff(accumulation_type(working_)) / unit_roundoff(working_);
    input_ = inputs.find("input")->values();
    if (problem.backward) grad_ = inputs.find("grad_output")->values();
    if (const Array* visible = inputs.find("visible")) {
      const Tensor& mask = visible->tensor();
      Shape strides;
      for (int32_t i = 0; i < mask.ndim(); ++i)
        strides.push_back(mask.size(i) == 1 ? 0 : mask.stride(i));
      visible_ = values_of(
          Tensor(mask.data<const uint8_t>(), mask.dtype(), Dims(problem.shape), Dims(strides)));
    }
  }

  Estimates run() {
    const size_t count = input_.size();
    Estimate& output = results_["output"];
    Estimate& lse = results_["lse"];
    Estimate& grad = results_["grad_input"];
    output.value.resize(count);
    lse.value.resize(static_cast<size_t>(outer_ * inner_));
    grad.value.resize(count);
    for (int64_t o = 0; o < outer_; ++o) {
      for (int64_t i = 0; i < inner_; ++i) {
        first_ = o * length_ * inner_ + i;
        lse.value[static_cast<size_t>(o * inner_ + i)] = forward(output, lse);
        if (problem_.backward) backward(given_.empty() ? output.value : given_, grad);
      }
    }
    return std::move(results_);
  }

 private:
  size_t at(int64_t j) const { return static_cast<size_t>(first_ + j * inner_); }
  bool counts(int64_t j) const { return visible_.empty() || visible_[at(j)] != 0; }

  double forward(Estimate& output, Estimate& lse) {
    A largest = -std::numeric_limits<A>::infinity();
    int64_t count = 0;
    double reach = 0;
    for (int64_t j = 0; j < length_; ++j) {
      if (!counts(j)) continue;
      largest = std::max(largest, static_cast<A>(input_[at(j)] * scale_));
      ++count;
      if (std::isfinite(input_[at(j)])) reach = std::max(reach, std::fabs(input_[at(j)] * scale_));
    }
    A sum = 0;
    for (int64_t j = 0; j < length_; ++j) {
      if (counts(j)) sum += std::exp(static_cast<A>(input_[at(j)] * scale_) - largest);
    }
    const bool any = count > 0;
    reach_ = std::max(reach_, reach_unit_ * reach);
    const A log_sum = std::log(sum);
    const double hidden = problem_.log ? -kInfinity : 0;
    const double nothing = problem_.empty_rows.value == PERSEID_EMPTY_NAN ? std::nan("") : hidden;
    for (int64_t j = 0; j < length_; ++j) {
      double value = any ? hidden : nothing;
      if (counts(j)) {
        const A score = static_cast<A>(input_[at(j)] * scale_) - largest;
        value = problem_.log ? score - log_sum : std::exp(score) / sum;
      }
      output.value[at(j)] = round_to(problem_.result_type(), value);
      const double magnitude = (problem_.log ? 1 : std::fabs(value)) * (1 + reach_) +
                               (problem_.log ? std::fabs(value) : 0);
      if (std::isfinite(magnitude)) output.magnitude = std::max(output.magnitude, magnitude);
    }
    lse.limit.push_back(lse_limit(reach, 0, count, accumulation_type(working_)));
    return any ? static_cast<A>(largest + log_sum) : -kInfinity;
  }

  void backward(const std::vector<double>& output, Estimate& grad) {
    A sum = 0;
    double absolute = 0;
    for (int64_t j = 0; j < length_; ++j) {
      if (!counts(j)) continue;
      const double product = grad_[at(j)] * (problem_.log ? 1 : output[at(j)]);
      sum += static_cast<A>(product);
      absolute += std::fabs(product);
    }
    for (int64_t j = 0; j < length_; ++j) {
      const double y = output[at(j)];
      const A dy = static_cast<A>(grad_[at(j)]);
      const A weight = problem_.log ? std::exp(static_cast<A>(y)) : static_cast<A>(y);
      A value = 0;
      if (counts(j)) {
        value = problem_.log ? dy - weight * sum : weight * (dy - sum);
        const double bound = problem_.log
                                 ? std::fabs(dy) + std::fabs(weight * (1 + std::fabs(y))) * absolute
                                 : std::fabs(weight) * (std::fabs(dy) + absolute);
        const double magnitude = std::fabs(scale_) * (1 + reach_) * bound;
        if (std::isfinite(magnitude)) grad.magnitude = std::max(grad.magnitude, magnitude);
      }
      grad.value[at(j)] = round_to(problem_.type(), static_cast<A>(scale_) * value);
    }
  }

  const Problem& problem_;
  const std::vector<double>& given_;
  DType working_;
  int64_t outer_ = 1, length_ = 0, inner_ = 1, first_ = 0;
  double scale_ = 1;
  double reach_unit_ = 1;
  double reach_ = 0;  // the largest score, in units of reach_unit_
  std::vector<double> input_, grad_, visible_;
  Estimates results_;
};

template <class A>
A activated(uint32_t activation, A y) {
  switch (activation) {
    case PERSEID_ACTIVATION_GELU_TANH: {
      const A inner =
          static_cast<A>(0.79788456080286535588) * (y + static_cast<A>(0.044715) * y * y * y);
      return static_cast<A>(0.5) * y * (1 + std::tanh(inner));
    }
    case PERSEID_ACTIVATION_GELU_ERF:
      return static_cast<A>(0.5) * y * (1 + std::erf(y * static_cast<A>(0.70710678118654752440)));
    case PERSEID_ACTIVATION_SILU:
      return y / (1 + std::exp(-y));
    default:
      return y;
  }
}

template <class A>
Estimates naive_matmul(const Problem& p, const Operands& inputs) {
  const std::vector<double> a = inputs.find("a")->values();
  const std::vector<double> b = inputs.find("b")->values();
  const std::vector<double> c0 = p.beta == 0 ? std::vector<double>() : inputs.find("c0")->values();
  const std::vector<double> bias =
      p.bias.empty() ? std::vector<double>() : inputs.find("bias")->values();
  Estimates results;
  Estimate& c = results["c"];
  const A scale = p.scale_result ? static_cast<A>(inputs.find("scale_result")->values()[0]) : A{1};
  A amax = 0;
  c.value.reserve(static_cast<size_t>(p.batch * p.m * p.n));
  const int64_t a_row = p.transpose_a ? 1 : p.k, a_column = p.transpose_a ? p.m : 1;
  const int64_t b_row = p.transpose_b ? 1 : p.n, b_column = p.transpose_b ? p.k : 1;
  for (int64_t e = 0; e < p.batch; ++e) {
    const int64_t a_first = p.shared_a ? 0 : e * p.m * p.k;
    const int64_t b_first = p.shared_b ? 0 : e * p.k * p.n;
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        A sum = 0;
        double absolute = 0;
        for (int64_t x = 0; x < p.k; ++x) {
          const double product = a[static_cast<size_t>(a_first + i * a_row + x * a_column)] *
                                 b[static_cast<size_t>(b_first + x * b_row + j * b_column)];
          sum += static_cast<A>(product);
          absolute += std::fabs(product);
        }
        A value = static_cast<A>(p.alpha) * sum;
        double magnitude = std::fabs(p.alpha) * absolute;
        if (!c0.empty()) {
          const double added = p.beta * c0[c.value.size()];
          value += static_cast<A>(added);
          magnitude += std::fabs(added);
        }
        if (!bias.empty()) {
          value += static_cast<A>(bias[static_cast<size_t>(j)]);
          magnitude += std::fabs(bias[static_cast<size_t>(j)]);
        }
        value = activated(p.activation.value, value);
        amax = std::isnan(amax) || amax >= std::fabs(value) ? amax : std::fabs(value);
        c.value.push_back(round_to(p.result_type(), value * scale));
        if (std::isfinite(magnitude)) c.magnitude = std::max(c.magnitude, magnitude);
      }
    }
  }
  // Factors of 11 bits: each has an error of 2^-11, which is 2^13 units of float32.
  if (p.precision.value == PERSEID_PRECISION_TF32 && p.type() == f32) c.magnitude *= 0x1p12;
  // No activation is steeper than 1.13.
  if (p.activation.value != PERSEID_ACTIVATION_NONE) c.magnitude *= 1.13;
  if (p.amax) {
    Estimate& most = results["amax"];
    most.value = {amax};
    most.magnitude = c.magnitude;
  }
  c.magnitude *= scale;
  return results;
}

}  // namespace

DType working_type(const Problem& problem) {
  const DType in = problem.type(), out = problem.result_type();
  if (in == f64 || out == f64) return f64;
  return in == f32 || is_float8(in) ? f32 : out;
}

double smallest_normal(DType dtype) {
  return dtype == f16 ? 0x1p-14 : dtype == f64 ? 0x1p-1022 : 0x1p-126;
}

DType accumulation_type(DType working) { return working == f64 ? f64 : f32; }

Estimates naive(const Problem& problem, const Operands& inputs, const std::vector<double>& keep,
                const std::vector<double>& out) {
  // Beside a size of 0 others may be enormous: then there is nothing to go through.
  const std::vector<OperandSpec> specs = operands_of(problem);
  if (std::none_of(specs.begin(), specs.end(), [](const OperandSpec& spec) {
        return spec.output && elements_of(spec.shape) > 0;
      })) {
    Estimates nothing;
    for (const OperandSpec& spec : specs)
      if (spec.output) nothing[spec.name] = {};
    return nothing;
  }
  const bool in_f64 = working_type(problem) == f64;
  switch (problem.op) {
    case Op::kSoftmax:
      return in_f64 ? NaiveSoftmax<double>(problem, inputs, out).run()
                    : NaiveSoftmax<float>(problem, inputs, out).run();
    case Op::kAttention:
      return in_f64 ? NaiveAttention<double>(problem, inputs, keep, out).run()
                    : NaiveAttention<float>(problem, inputs, keep, out).run();
    case Op::kMatmul:
      return in_f64 ? naive_matmul<double>(problem, inputs) : naive_matmul<float>(problem, inputs);
    case Op::kDropoutMask:
      break;
  }
  return {};
}

}  // namespace perseid::harness
