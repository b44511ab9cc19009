// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Tools of the softmax tests: tensors with guard zones, the float64 reference, the same formula in
// the precision of the computation, and the rule that holds a kernel's error against both.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cpu/kernel_table.hpp"
#include "cpu/reference/access.hpp"
#include "cpu/reference/reference.hpp"

namespace perseid::internal::softmax_tests {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr std::byte kGuard{0xa5};

using Shape = std::vector<int64_t>;

inline Shape row_major(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// Memory with a guard zone before, after and between the elements.
class Array {
 public:
  Array(const Shape& shape, DType dtype, Shape strides = {}, int64_t shift = 0)
      : row_major_(strides.empty() || strides == row_major(shape)) {
    if (strides.empty()) strides = row_major(shape);
    tensor_.dtype = dtype;
    tensor_.rank = static_cast<int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), tensor_.shape);
    std::copy(strides.begin(), strides.end(), tensor_.stride);
    int64_t lowest = 0, highest = 0;
    for (size_t d = 0; d < shape.size(); ++d) {
      const int64_t reach = std::max(int64_t{0}, shape[d] - 1) * strides[d];
      (reach < 0 ? lowest : highest) += reach;
    }
    const int64_t bytes = size_of(dtype);
    memory_.assign(static_cast<size_t>((highest - lowest + 1 + shift) * bytes) + 2 * kZone + 64,
                   kGuard);
    const size_t misaligned = reinterpret_cast<uintptr_t>(memory_.data()) % 64;
    first_ = kZone + (64 - misaligned) + static_cast<size_t>((shift - lowest) * bytes);
    tensor_.data = memory_.data() + first_;
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  const Tensor& tensor() const { return tensor_; }
  int64_t count() const { return tensor_.elements(); }
  int64_t offset(int64_t index) const {
    if (row_major_) return index;
    int64_t result = 0;
    for (int32_t d = tensor_.rank - 1; d >= 0; --d) {
      result += index % tensor_.shape[d] * tensor_.stride[d];
      index /= tensor_.shape[d];
    }
    return result;
  }
  double get(int64_t index) const {
    if (tensor_.dtype == DType::kBool)
      return cpu::reference::load_bool(tensor_, offset(index)) ? 1 : 0;
    return cpu::reference::load(tensor_, offset(index));
  }
  void set(int64_t index, double value) {
    if (tensor_.dtype == DType::kBool) {
      // Any byte but 0 is true.
      tensor_.as<uint8_t>()[offset(index)] = value != 0 ? static_cast<uint8_t>(1 + index % 255) : 0;
    } else {
      cpu::reference::store(tensor_, offset(index), value);
    }
  }
  // Normally distributed around `centre`; masks: true with probability 0.7.
  void randomise(uint32_t seed, double centre = 0, double spread = 2) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(centre, spread);
    for (int64_t i = 0; i < count(); ++i)
      set(i, tensor_.dtype == DType::kBool ? (random() % 10 < 7 ? 1.0 : 0.0) : normal(random));
  }
  void copy_from(const Array& other) {
    for (int64_t i = 0; i < count(); ++i) set(i, other.get(i));
  }
  // Nothing but elements has been written.
  void expect_guards() const {
    std::vector<bool> element(memory_.size(), false);
    for (int64_t i = 0; i < count(); ++i) {
      const auto at =
          static_cast<size_t>(static_cast<int64_t>(first_) + offset(i) * size_of(tensor_.dtype));
      for (size_t b = 0; b < static_cast<size_t>(size_of(tensor_.dtype)); ++b)
        element[at + b] = true;
    }
    for (size_t i = 0; i < memory_.size(); ++i)
      if (!element[i] && memory_[i] != kGuard) {
        ADD_FAILURE() << "byte " << static_cast<int64_t>(i) - static_cast<int64_t>(first_)
                      << " from the first element was written";
        return;
      }
  }

 private:
  static constexpr size_t kZone = 256;
  bool row_major_;
  std::vector<std::byte> memory_;
  size_t first_ = 0;
  Tensor tensor_;
};

inline void expect_same_bits(const Array& a, const Array& b) {
  ASSERT_EQ(a.count(), b.count());
  const size_t bytes = static_cast<size_t>(size_of(a.tensor().dtype));
  for (int64_t i = 0; i < a.count(); ++i)
    ASSERT_EQ(
        std::memcmp(a.tensor().as<std::byte>() + a.offset(i) * static_cast<int64_t>(bytes),
                    b.tensor().as<std::byte>() + b.offset(i) * static_cast<int64_t>(bytes), bytes),
        0)
        << "element " << i << ": " << a.get(i) << " and " << b.get(i);
}

inline double round_to(DType dtype, double value) {
  double rounded = 0;
  Tensor one{&rounded, dtype, 1, {1}, {1}};
  cpu::reference::store(one, 0, value);
  return cpu::reference::load(one, 0);
}

// Exactly the workspace that was asked for, with a guard zone behind it.
class Workspace {
 public:
  explicit Workspace(size_t bytes) : bytes_(bytes), memory_(bytes + 128, kGuard) {
    const size_t misaligned =
        reinterpret_cast<uintptr_t>(memory_.data()) % cpu::kWorkspaceAlignment;
    first_ = (cpu::kWorkspaceAlignment - misaligned) % cpu::kWorkspaceAlignment;
  }
  std::byte* data() { return memory_.data() + first_; }
  void expect_guard() const {
    for (size_t i = first_ + bytes_; i < memory_.size(); ++i)
      ASSERT_EQ(memory_[i], kGuard) << "written behind the workspace of " << bytes_ << " bytes";
  }

 private:
  size_t bytes_, first_ = 0;
  std::vector<std::byte> memory_;
};

inline const cpu::KernelTable& table() {
  std::string error;
  static const cpu::KernelTable* const selected = cpu::select_kernel_table(error);
  EXPECT_NE(selected, nullptr) << error;
  return *selected;
}

inline void forward(const SoftmaxProblem& problem, const SoftmaxForward& arguments,
                    int32_t threads = 2) {
  const auto pool = cpu::make_thread_pool(threads);
  Workspace workspace(table().softmax_workspace(problem, threads, false));
  table().softmax_forward(problem, arguments, {*pool, workspace.data()});
  workspace.expect_guard();
}
inline void backward(const SoftmaxProblem& problem, const SoftmaxBackward& arguments,
                     int32_t threads = 2) {
  const auto pool = cpu::make_thread_pool(threads);
  Workspace workspace(table().softmax_workspace(problem, threads, true));
  table().softmax_backward(problem, arguments, {*pool, workspace.data()});
  workspace.expect_guard();
}

inline SoftmaxProblem make_problem(const Shape& shape, int32_t dim, DType dtype = DType::kF32,
                                   DType out_dtype = DType::kNone) {
  SoftmaxProblem problem;
  problem.dtype = dtype;
  problem.out_dtype = out_dtype == DType::kNone ? dtype : out_dtype;
  problem.rank = static_cast<int32_t>(shape.size());
  problem.dim = dim;
  std::copy(shape.begin(), shape.end(), problem.shape);
  return problem;
}

// The same problem in float64, for the reference.
inline SoftmaxProblem exact(SoftmaxProblem problem) {
  problem.dtype = problem.out_dtype = DType::kF64;
  return problem;
}

// Largest errors of results in `dtype` against float64. What is not finite has to be the same.
struct Errors {
  double largest = 0;
  double rounding = 0;  // max |(ref + 0.3 - 0.3) - ref| in dtype
  double size = 0;      // max |ref|
  std::string odd;      // a result that is not finite and should be, or the other way about

  void add(DType dtype, double expected, double got) {
    const double rounded = round_to(dtype, expected);
    if (!std::isfinite(rounded) || !std::isfinite(got)) {
      if (!(std::isnan(rounded) ? std::isnan(got) : rounded == got)) {
        largest = kInfinity;
        odd = "expected " + std::to_string(rounded) + ", got " + std::to_string(got);
      }
      return;
    }
    largest = std::max(largest, std::abs(got - expected));
    size = std::max(size, std::abs(expected));
    const double there = round_to(dtype, rounded + 0.3);
    rounding = std::max(rounding, std::abs(round_to(dtype, there - 0.3) - rounded));
  }
};

// The formula as one would write it, in the type T of the computation.
template <class T>
std::vector<double> naive_forward(bool log, T scale, const std::vector<double>& x,
                                  const std::vector<bool>& seen, double* lse) {
  T maximum = -std::numeric_limits<T>::infinity(), sum = 0;
  for (size_t j = 0; j < x.size(); ++j)
    if (seen[j]) maximum = std::max(maximum, scale * static_cast<T>(x[j]));
  for (size_t j = 0; j < x.size(); ++j)
    if (seen[j]) sum += std::exp(scale * static_cast<T>(x[j]) - maximum);
  *lse = maximum + std::log(sum);
  std::vector<double> y(x.size(), log ? -kInfinity : 0);
  for (size_t j = 0; j < x.size(); ++j) {
    const T shifted = scale * static_cast<T>(x[j]) - maximum;
    if (seen[j]) y[j] = log ? shifted - std::log(sum) : std::exp(shifted) / sum;
  }
  return y;
}
template <class T>
std::vector<double> naive_backward(bool log, T scale, const std::vector<double>& dy,
                                   const std::vector<double>& y, const std::vector<bool>& seen) {
  T sum = 0;
  const auto as = [](double value) { return static_cast<T>(value); };
  for (size_t j = 0; j < y.size(); ++j)
    if (seen[j]) sum += log ? as(dy[j]) : as(dy[j]) * as(y[j]);
  std::vector<double> dx(y.size(), 0);
  for (size_t j = 0; j < y.size(); ++j)
    if (seen[j])
      dx[j] = scale * (log ? as(dy[j]) - std::exp(as(y[j])) * sum : as(y[j]) * (as(dy[j]) - sum));
  return dx;
}

// Elements of the row-th row along dim, as row-major indices.
inline std::vector<int64_t> row_indices(const SoftmaxProblem& problem, int64_t row) {
  int64_t inner = 1;
  for (int32_t d = problem.dim + 1; d < problem.rank; ++d) inner *= problem.shape[d];
  std::vector<int64_t> indices;
  for (int64_t j = 0; j < problem.length(); ++j)
    indices.push_back((row / inner * problem.length() + j) * inner + row % inner);
  return indices;
}

inline std::string text_of(const SoftmaxProblem& problem) {
  std::string text = std::string(problem.log ? "log-" : "") + "softmax " + name_of(problem.dtype) +
                     " to " + name_of(problem.out_dtype) + " [";
  for (int32_t d = 0; d < problem.rank; ++d) text += std::to_string(problem.shape[d]) + " ";
  return text + "] dim " + std::to_string(problem.dim) + (problem.visible ? " masked" : "");
}

}  // namespace perseid::internal::softmax_tests
