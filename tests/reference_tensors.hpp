// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Tensors of the tests of the reference: memory of exactly the size that the strides reach, with
// every element read and written as a double by its row-major index.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cpu/reference/access.hpp"

namespace perseid::internal::testing_tensors {

struct Array {
  std::vector<std::byte> memory;
  Tensor tensor;

  // strides: row-major if empty. first: the element of the memory that is the tensor's first.
  explicit Array(const std::vector<int64_t>& shape, DType dtype = DType::kF64,
                 std::vector<int64_t> strides = {}, int64_t first = 0) {
    if (strides.empty()) {
      strides.assign(shape.size(), 1);
      for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
    }
    int64_t last = first;
    for (size_t i = 0; i < shape.size(); ++i)
      last += std::max(int64_t{0}, (shape[i] - 1) * strides[i]);
    memory.resize(static_cast<size_t>((last + 1) * size_of(dtype)));
    tensor.data = memory.data() + first * size_of(dtype);
    tensor.dtype = dtype;
    tensor.rank = static_cast<int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), tensor.shape);
    std::copy(strides.begin(), strides.end(), tensor.stride);
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  int64_t count() const { return tensor.elements(); }
  int64_t offset(int64_t index) const {
    int64_t result = 0;
    for (int32_t i = tensor.rank - 1; i >= 0; --i) {
      result += index % tensor.shape[i] * tensor.stride[i];
      index /= tensor.shape[i];
    }
    return result;
  }
  double get(int64_t index) const {
    if (tensor.dtype == DType::kBool)
      return cpu::reference::load_bool(tensor, offset(index)) ? 1 : 0;
    return cpu::reference::load(tensor, offset(index));
  }
  void set(int64_t index, double value) {
    if (tensor.dtype == DType::kBool)
      tensor.as<uint8_t>()[offset(index)] = value != 0 ? 1 : 0;
    else
      cpu::reference::store(tensor, offset(index), value);
  }
  void fill(const std::vector<double>& values) {
    ASSERT_EQ(static_cast<int64_t>(values.size()), count());
    for (size_t i = 0; i < values.size(); ++i) set(static_cast<int64_t>(i), values[i]);
  }
  void fill_all(double value) {
    for (int64_t i = 0; i < count(); ++i) set(i, value);
  }
  // Uniform in [-size, size); masks: true three times in four.
  void randomise(uint32_t seed, double size = 1) {
    std::mt19937 random(seed);
    const bool mask = tensor.dtype == DType::kBool;
    for (int64_t i = 0; i < count(); ++i) {
      const double drawn = static_cast<double>(random()) / 4294967296.0;
      set(i, mask ? (drawn < 0.75 ? 1 : 0) : (2 * drawn - 1) * size);
    }
  }
  // NaN stands for any NaN.
  void expect(const std::vector<double>& values) const {
    ASSERT_EQ(static_cast<int64_t>(values.size()), count());
    for (size_t i = 0; i < values.size(); ++i) {
      const double value = get(static_cast<int64_t>(i));
      if (std::isnan(values[i]))
        EXPECT_TRUE(std::isnan(value)) << "element " << i << " is " << value;
      else if (std::isinf(values[i]))
        EXPECT_EQ(value, values[i]) << "element " << i;
      else
        EXPECT_NEAR(value, values[i], 1e-14) << "element " << i;
    }
  }
  // The derivative of loss() by an element of this float64 array.
  template <class Loss>
  double central_difference(int64_t index, const Loss& loss) {
    constexpr double kStep = 1e-5;
    const double value = get(index);
    set(index, value + kStep);
    const double above = loss();
    set(index, value - kStep);
    const double below = loss();
    set(index, value);
    return (above - below) / (2 * kStep);
  }
};

inline void expect_same_bytes(const Array& a, const Array& b) {
  ASSERT_EQ(a.memory.size(), b.memory.size());
  EXPECT_EQ(std::memcmp(a.memory.data(), b.memory.data(), a.memory.size()), 0);
}

}  // namespace perseid::internal::testing_tensors
