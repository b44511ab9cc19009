// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Attention with its score matrix, one head after another. A: the type of sums.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "harness/naive.hpp"

namespace perseid::harness {

template <class A>
class NaiveAttention {
 public:
  // `keep`, `given_out`: of naive().
  NaiveAttention(const Problem& problem, const Operands& inputs, const std::vector<double>& keep,
                 const std::vector<double>& given_out)
      : p_(problem), keep_(keep), given_out_(given_out) {
    scale_ = p_.scale != 0 ? p_.scale : 1 / std::sqrt(static_cast<double>(p_.head_dim));
    bias_shape_ = in_four_dims(p_.bias);
    visible_shape_ = in_four_dims(p_.visible);
    const double kept = std::floor(256 * (1 - p_.dropout) + 0.5);
    rescale_ = 256 / std::clamp(kept, 1.0, 256.0);
    const DType working = working_type(p_);
    reach_unit_ = unit_roundoff(accumulation_type(working)) / unit_roundoff(working);
    for (const OperandSpec& spec : operands_of(p_)) {
      if (spec.output) {
        Sum& sum = *sum_of(spec.name);
        sum.value.assign(static_cast<size_t>(elements_of(spec.shape)), 0);
        sum.magnitude.assign(sum.value.size(), 0);
        if (&sum == &lse_) sum.limit.assign(sum.value.size(), 0);
      } else {
        if (std::vector<double>* input = input_of(spec.name))
          *input = inputs.find(spec.name)->values();
      }
    }
  }

  Estimates run() {
    for (int64_t b = 0; b < p_.batch; ++b) {
      span_ = span_of(p_, b);
      for (int64_t h = 0; h < p_.heads; ++h) {
        forward(b, h);
        if (p_.wanted_gradients() != 0) backward(b, h);
      }
    }
    Estimates results;
    for (const OperandSpec& spec : operands_of(p_)) {
      if (!spec.output) continue;
      const Sum& sum = *sum_of(spec.name);
      Estimate& result = results[spec.name];
      result.limit = sum.limit;
      for (A value : sum.value) result.value.push_back(round_to(spec.dtype, value));
      for (double magnitude : sum.magnitude) {
        if (std::isfinite(magnitude)) result.magnitude = std::max(result.magnitude, magnitude);
      }
    }
    return results;
  }

 private:
  struct Sum {
    std::vector<A> value;
    std::vector<double> magnitude;
    std::vector<double> limit;  // of lse alone
    void add(size_t index, double term, double absolute) {
      value[index] += static_cast<A>(term);
      magnitude[index] += absolute;
    }
    // factor * row, whose absolute value counts `bound` times.
    void add_row(size_t first, int64_t count, double factor, double bound, const double* row) {
      A* to = value.data() + first;
      double* size = magnitude.data() + first;
      for (int64_t d = 0; d < count; ++d) to[d] += static_cast<A>(factor * row[d]);
      for (int64_t d = 0; d < count; ++d) size[d] += bound * std::fabs(row[d]);
    }
  };

  // By the operand's name; null for what is not read element by element.
  std::vector<double>* input_of(std::string_view name) {
    if (name == "query") return &query_;
    if (name == "key") return &key_;
    if (name == "value") return &value_;
    if (name == "bias") return &bias_;
    if (name == "visible") return &visible_;
    if (name == "grad_out") return &grad_out_;
    return name == "grad_lse" ? &grad_lse_ : nullptr;
  }
  Sum* sum_of(std::string_view name) {
    if (name == "out") return &out_;
    if (name == "lse") return &lse_;
    if (name == "grad_query") return &grad_query_;
    if (name == "grad_key") return &grad_key_;
    return name == "grad_value" ? &grad_value_ : &grad_bias_;
  }

  A rounded(A value) const { return static_cast<A>(round_to(p_.type(), value)); }
  size_t score(int64_t i, int64_t j) const { return static_cast<size_t>(i * span_.kv_len + j); }
  // Where the vector of a row begins in the caller's layout.
  size_t row(int64_t b, int64_t h, int64_t i, bool of_query, int64_t dim) const {
    const int64_t heads = of_query ? p_.heads : p_.key_heads();
    const int64_t length = p_.ragged() ? (of_query ? p_.rows_q() : p_.rows_kv())
                                       : (of_query ? p_.longest_q() : p_.longest_kv());
    const int64_t batch = p_.ragged() ? 0 : of_query ? b : span_.kv_entry;
    i += of_query ? span_.q_begin : span_.kv_begin;
    return static_cast<size_t>((p_.layout.value == PERSEID_BSHD
                                    ? (batch * length + i) * heads + h
                                    : (batch * heads + h) * length + i) *
                               dim);
  }
  size_t query_at(int64_t b, int64_t h, int64_t i) const { return row(b, h, i, true, p_.head_dim); }
  size_t out_at(int64_t b, int64_t h, int64_t i) const {
    return row(b, h, i, true, p_.value_size());
  }
  size_t key_at(int64_t b, int64_t h, int64_t j) const {
    return row(b, h / (p_.heads / p_.key_heads()), j, false, p_.head_dim);
  }
  size_t value_at(int64_t b, int64_t h, int64_t j) const {
    return row(b, h / (p_.heads / p_.key_heads()), j, false, p_.value_size());
  }
  size_t lse_at(int64_t b, int64_t h, int64_t i) const {
    return static_cast<size_t>(p_.ragged() ? h * p_.rows_q() + span_.q_begin + i
                                           : (b * p_.heads + h) * p_.longest_q() + i);
  }
  bool counts(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (!sees(p_, span_, i, j)) return false;
    return p_.visible.empty() ||
           visible_[static_cast<size_t>(broadcast_index(visible_shape_, b, h, i, j))] != 0;
  }
  double kept(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (keep_.empty()) return 1;
    const int64_t index = ((b * p_.heads + h) * p_.longest_q() + i) * p_.longest_kv() + j;
    return keep_[static_cast<size_t>(index)] * rescale_;
  }

  // Scores, probabilities, out and lse. A probability's relative error grows with the size of the
  // scores, which magnitude_ accounts for; and with the number of keys in float64, where the
  // reference sums as this formula does: n equal terms are off by n / 4 roundings.
  void forward(int64_t b, int64_t h) {
    const auto cells = static_cast<size_t>(span_.q_len * span_.kv_len);
    probability_.assign(cells, 0);
    magnitude_.assign(cells, 0);
    for (int64_t i = span_.q_len; i < span_.q_rows && !lse_.value.empty(); ++i)
      lse_.value[lse_at(b, h, i)] = -std::numeric_limits<A>::infinity();
    for (int64_t i = 0; i < span_.q_len; ++i) {
      A largest = -std::numeric_limits<A>::infinity();
      double reach = 0;
      std::vector<A> scores(static_cast<size_t>(span_.kv_len), largest);
      int64_t count = 0;
      bool any = false;
      for (int64_t j = 0; j < span_.kv_len; ++j) {
        if (!counts(b, h, i, j)) continue;
        A dot = 0;
        double absolute = 0;
        const double* q = query_.data() + query_at(b, h, i);
        const double* k = key_.data() + key_at(b, h, j);
        for (int64_t d = 0; d < p_.head_dim; ++d) {
          const double product = q[d] * k[d];
          dot += static_cast<A>(product);
          absolute += std::fabs(product);
        }
        absolute *= std::fabs(scale_) * reach_unit_;
        A each = static_cast<A>(scale_) * dot;
        if (!p_.bias.empty()) {
          const double added = bias_[static_cast<size_t>(broadcast_index(bias_shape_, b, h, i, j))];
          each += static_cast<A>(added);
          if (std::isfinite(added)) absolute += reach_unit_ * std::fabs(added);
        }
        scores[static_cast<size_t>(j)] = each;
        largest = std::max(largest, each);
        ++count;
        any = any || each != -std::numeric_limits<A>::infinity();
        if (std::isfinite(absolute)) reach = std::max(reach, absolute);
      }
      const double sum_unit = sizeof(A) == sizeof(double) ? 1.0 / 32 : 0;
      // In f32 a weight may be off by 2^-40 of the row's largest, even where that one is dropped
      // (docs/reference/numerics.md).
      const double smallest = p_.type() == f32 ? 0x1p-16 : 0;
      // Products of bf16 may drop weights below 2^-126, which is 2^-104 roundings of a sum of 1.
      const double flushed = p_.type() == bf16 ? 0x1p-104 : 0;
      // As in the contract, a row whose keys all have the score -inf sees nothing.
      A sum = 0;
      for (A each : scores) sum += any ? std::exp(each - largest) : 0;
      for (int64_t j = 0; any && j < span_.kv_len; ++j) {
        const A probability = rounded(std::exp(scores[static_cast<size_t>(j)] - largest) / sum);
        probability_[score(i, j)] = probability;
        magnitude_[score(i, j)] = probability * (1 + reach + sum_unit * static_cast<double>(count));
        if (probability == 0) continue;
        magnitude_[score(i, j)] += flushed;
        const double weight = rounded(probability * static_cast<A>(kept(b, h, i, j)));
        const double bound =
            magnitude_[score(i, j)] * std::max(kept(b, h, i, j), smallest * rescale_);
        out_.add_row(out_at(b, h, i), p_.value_size(), weight, bound,
                     value_.data() + value_at(b, h, j));
      }
      if (!lse_.value.empty()) {
        const A lse = any ? largest + std::log(sum) : -std::numeric_limits<A>::infinity();
        lse_.value[lse_at(b, h, i)] = lse;
        lse_.limit[lse_at(b, h, i)] = lse_limit(reach / reach_unit_, p_.head_dim, count, p_.type());
      }
    }
  }

  // One row of queries at a time: dP, then dS, then what they add to every gradient. The sum of
  // P dP is that of out grad_out, with the rounded out that the caller hands to backward.
  void backward(int64_t b, int64_t h) {
    for (int64_t i = 0; i < span_.q_len; ++i) {
      std::vector<A> grad_probability(static_cast<size_t>(span_.kv_len));
      std::vector<double> bound(grad_probability.size());
      A delta = 0;
      double delta_bound = 0;
      for (int64_t j = 0; j < span_.kv_len; ++j) {
        if (magnitude_[score(i, j)] == 0) continue;
        A dot = 0;
        double absolute = 0;
        const double* grad = grad_out_.data() + out_at(b, h, i);
        const double* element = value_.data() + value_at(b, h, j);
        for (int64_t d = 0; d < p_.value_size(); ++d) {
          const double product = grad[d] * element[d];
          dot += static_cast<A>(product);
          absolute += std::fabs(product);
        }
        const auto index = static_cast<size_t>(j);
        const double keep = kept(b, h, i, j);
        grad_probability[index] = dot * static_cast<A>(keep);
        bound[index] = absolute * keep;
        delta_bound += probability_[score(i, j)] * bound[index];
      }
      for (int64_t d = 0; d < p_.value_size(); ++d) {
        const size_t index = out_at(b, h, i) + static_cast<size_t>(d);
        const A out =
            given_out_.empty() ? rounded(out_.value[index]) : static_cast<A>(given_out_[index]);
        delta += out * static_cast<A>(grad_out_[index]);
        delta_bound += smallest_normal(p_.type()) * std::fabs(grad_out_[index]);
      }
      const double grad_lse = p_.grad_lse ? grad_lse_[lse_at(b, h, i)] : 0;
      for (int64_t j = 0; j < span_.kv_len; ++j) {
        if (magnitude_[score(i, j)] == 0) continue;
        const auto index = static_cast<size_t>(j);
        const A grad_score = rounded(probability_[score(i, j)] *
                                     (grad_probability[index] - delta + static_cast<A>(grad_lse)));
        add_gradients(b, h, i, j, grad_score,
                      magnitude_[score(i, j)] * (bound[index] + delta_bound + std::fabs(grad_lse)));
      }
    }
  }

  void add_gradients(int64_t b, int64_t h, int64_t i, int64_t j, A grad_score, double bound) {
    const uint32_t wanted = p_.wanted_gradients();
    const size_t q = query_at(b, h, i), k = key_at(b, h, j);
    const double factor = scale_ * grad_score, size = std::fabs(scale_) * bound;
    if ((wanted & PERSEID_GRAD_QUERY) != 0)
      grad_query_.add_row(q, p_.head_dim, factor, size, key_.data() + k);
    if ((wanted & PERSEID_GRAD_KEY) != 0)
      grad_key_.add_row(k, p_.head_dim, factor, size, query_.data() + q);
    if ((wanted & PERSEID_GRAD_VALUE) != 0) {
      const double keep = kept(b, h, i, j);
      const double weight = rounded(probability_[score(i, j)] * static_cast<A>(keep));
      grad_value_.add_row(value_at(b, h, j), p_.value_size(), weight,
                          magnitude_[score(i, j)] * keep, grad_out_.data() + out_at(b, h, i));
    }
    if ((wanted & PERSEID_GRAD_BIAS) != 0 && !p_.bias.empty())
      grad_bias_.add(static_cast<size_t>(broadcast_index(bias_shape_, b, h, i, j)), grad_score,
                     bound);
  }

  const Problem& p_;
  const std::vector<double>& keep_;
  const std::vector<double>& given_out_;
  Shape bias_shape_, visible_shape_;
  double scale_ = 1, rescale_ = 1, reach_unit_ = 1;
  Span span_{};
  std::vector<A> probability_;
  std::vector<double> magnitude_;  // of the probabilities; 0: not visible, or underflown
  std::vector<double> query_, key_, value_, bias_, visible_, grad_out_, grad_lse_;
  Sum out_, lse_, grad_query_, grad_key_, grad_value_, grad_bias_;
};

}  // namespace perseid::harness
