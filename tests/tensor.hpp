// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The tensors of every test of kernels: memory with guard bytes before, behind and between the
// elements, which are read and written as doubles, by row-major index or by coordinates.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <new>
#include <optional>
#include <random>
#include <vector>

#include "cpu/reference/access.hpp"
#include "math/tensor.hpp"

namespace perseid::internal::tests {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

using Shape = std::vector<int64_t>;

// Memory that begins at a multiple of 64 bytes, so that a copy is aligned as its original is.
template <class T>
struct Aligned {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};
  Aligned() = default;
  template <class U>
  Aligned(const Aligned<U>&) {}  // NOLINT: allocators convert
  T* allocate(size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kAlignment));
  }
  void deallocate(T* memory, size_t) { ::operator delete(memory, kAlignment); }
  bool operator==(const Aligned&) const { return true; }
};
using Bytes = std::vector<std::byte, Aligned<std::byte>>;

// ---- Elements of a view ----

inline double get(const Tensor& tensor, int64_t offset) {
  switch (tensor.dtype) {
    case DType::kBool:
      return cpu::reference::load_bool(tensor, offset) ? 1 : 0;
    case DType::kI32:
      return tensor.as<int32_t>()[offset];
    case DType::kI64:
      return static_cast<double>(tensor.as<int64_t>()[offset]);
    default:
      return cpu::reference::load(tensor, offset);
  }
}
inline void put(const Tensor& tensor, int64_t offset, double value) {
  switch (tensor.dtype) {
    case DType::kBool:
      // Any byte but 0 is true.
      tensor.as<uint8_t>()[offset] = value != 0 ? static_cast<uint8_t>(1 + offset % 255) : 0;
      return;
    case DType::kI32:
      tensor.as<int32_t>()[offset] = static_cast<int32_t>(value);
      return;
    case DType::kI64:
      tensor.as<int64_t>()[offset] = static_cast<int64_t>(value);
      return;
    default:
      cpu::reference::store(tensor, offset, value);
  }
}
inline double round_to(DType dtype, double value) {
  double rounded = 0;
  const Tensor one{&rounded, dtype, 1, {1}, {1}};
  put(one, 0, value);
  return get(one, 0);
}
inline int64_t at(const Tensor& tensor, std::initializer_list<int64_t> coordinates) {
  int64_t offset = 0;
  int d = 0;
  for (const int64_t i : coordinates) offset += i * tensor.stride[d++];
  return offset;
}
// body(offset, index) for every element, in row-major order.
template <class Body>
void for_each(const Tensor& tensor, Body&& body) {
  const int64_t count = tensor.elements();
  int64_t position[kMaxDims] = {}, offset = 0;
  for (int64_t i = 0; i < count; ++i) {
    body(offset, i);
    for (int32_t d = tensor.rank; d-- > 0;) {
      offset += tensor.stride[d];
      if (++position[d] < tensor.shape[d]) break;
      offset -= tensor.stride[d] * tensor.shape[d];
      position[d] = 0;
    }
  }
}
inline std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(tensor.elements()));
  for_each(tensor, [&](int64_t offset, int64_t) { values.push_back(get(tensor, offset)); });
  return values;
}
inline void assign(const Tensor& tensor, const std::vector<double>& values) {
  ASSERT_EQ(static_cast<int64_t>(values.size()), tensor.elements());
  for_each(tensor,
           [&](int64_t offset, int64_t i) { put(tensor, offset, values[static_cast<size_t>(i)]); });
}
inline void copy(const Tensor& from, const Tensor& to) { assign(to, values_of(from)); }

struct Random {
  uint64_t state;
  double uniform() {  // in [-1, 1)
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(static_cast<int64_t>(state) >> 11) * 0x1p-52;
  }
};
inline void fill(const Tensor& tensor, Random& random, double magnitude = 1) {
  for_each(tensor,
           [&](int64_t offset, int64_t) { put(tensor, offset, magnitude * random.uniform()); });
}

// ---- Memory of a tensor ----

inline Shape row_major(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// Guards and elements begin as kGuard, which is NaN in every floating-point type: an element that
// is never written shows, and a guard that is read.
struct Array {
  static constexpr std::byte kGuard{0xff};
  Bytes memory;
  Tensor tensor;

  Array() = default;
  // strides: row-major if empty. shift: elements that the first lies behind a multiple of 64 bytes.
  explicit Array(const Shape& shape, DType dtype = DType::kF64, Shape strides = {},
                 int64_t shift = 0) {
    if (strides.empty()) strides = row_major(shape);
    tensor.dtype = dtype;
    tensor.rank = static_cast<int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), tensor.shape);
    std::copy(strides.begin(), strides.end(), tensor.stride);
    int64_t lowest = 0, highest = 0;
    for (size_t d = 0; d < shape.size(); ++d) {
      const int64_t reach = std::max(int64_t{0}, shape[d] - 1) * strides[d];
      (reach < 0 ? lowest : highest) += reach;
    }
    const int64_t first = shift - lowest, bytes = size_of(dtype);
    memory.assign(static_cast<size_t>((first + highest + 1) * bytes) + 2 * kZone, kGuard);
    tensor.data = memory.data() + kZone + first * bytes;
  }
  Array(const Array& other) : memory(other.memory), tensor(other.tensor) { rebase(other); }
  Array& operator=(const Array& other) {
    memory = other.memory;
    tensor = other.tensor;
    rebase(other);
    return *this;
  }

  int64_t count() const { return tensor.elements(); }
  int64_t offset(int64_t index) const {
    int64_t result = 0;
    for (int32_t d = tensor.rank; d-- > 0; index /= tensor.shape[d])
      result += index % tensor.shape[d] * tensor.stride[d];
    return result;
  }
  double get(int64_t index) const { return tests::get(tensor, offset(index)); }
  void set(int64_t index, double value) { put(tensor, offset(index), value); }
  double get(std::initializer_list<int64_t> coordinates) const {
    return tests::get(tensor, at(tensor, coordinates));
  }
  std::vector<double> values() const { return values_of(tensor); }
  void fill(const std::vector<double>& values) { assign(tensor, values); }
  void fill_all(double value) {
    for_each(tensor, [&](int64_t offset, int64_t) { put(tensor, offset, value); });
  }
  void copy_from(const Array& other) { copy(other.tensor, tensor); }
  // As it began: nothing of use is in it.
  void blank() { std::fill(memory.begin(), memory.end(), kGuard); }
  // Uniform in [-size, size); masks: true three times in four.
  void randomise(uint32_t seed, double size = 1) {
    std::mt19937 random(seed);
    const bool mask = tensor.dtype == DType::kBool;
    for_each(tensor, [&](int64_t offset, int64_t) {
      const double drawn = static_cast<double>(random()) / 4294967296.0;
      put(tensor, offset, mask ? (drawn < 0.75 ? 1 : 0) : (2 * drawn - 1) * size);
    });
  }
  // Normally distributed around `centre`; masks as above.
  void randomise_normal(uint32_t seed, double centre, double spread) {
    if (tensor.dtype == DType::kBool) return randomise(seed);
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(centre, spread);
    for_each(tensor, [&](int64_t offset, int64_t) { put(tensor, offset, normal(random)); });
  }
  // The first byte that is written though it is of no element, counted from the first element; null
  // if there is none.
  std::optional<int64_t> damage() const {
    if (memory.empty()) return {};
    const int64_t size = size_of(tensor.dtype), first = tensor.as<std::byte>() - memory.data();
    // The last dimensions lie without gaps: `run` elements at once.
    int64_t run = 1;
    Tensor runs = tensor;
    while (runs.rank > 0 && tensor.stride[runs.rank - 1] == run) run *= tensor.shape[--runs.rank];
    const auto search = [&](const Bytes& bytes, int64_t begin, int64_t end) {
      const auto found = std::find_if(bytes.begin() + begin, bytes.begin() + end,
                                      [](std::byte byte) { return byte != kGuard; });
      return found == bytes.begin() + end ? std::optional<int64_t>()
                                          : found - bytes.begin() - first;
    };
    const auto bytes = static_cast<int64_t>(memory.size());
    if (runs.rank == 0) {  // a large workspace need not be copied
      const std::optional<int64_t> before = search(memory, 0, first);
      return before ? before : search(memory, first + run * size, bytes);
    }
    Bytes rest = memory;
    for_each(runs, [&](int64_t offset, int64_t) {
      std::fill_n(rest.begin() + first + offset * size, run * size, kGuard);
    });
    return search(rest, 0, bytes);
  }
  // Nothing but elements has been written.
  void expect_guards() const {
    const std::optional<int64_t> written = damage();
    ASSERT_FALSE(written) << "byte " << *written << " from the first element was written";
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

 private:
  // A memory checker sees what is read behind the elements, if nothing of this program lies there.
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t kZone = 0;
#else
  static constexpr size_t kZone = 256;
#endif
  void rebase(const Array& other) {
    if (tensor.data != nullptr)
      tensor.data = memory.data() + (other.tensor.as<std::byte>() - other.memory.data());
  }
};

// A part of the batch: entry b of dimension 0, as a tensor of its own.
inline Tensor entry_of(Tensor tensor, int64_t b) {
  tensor.data = tensor.as<std::byte>() + b * tensor.stride[0] * size_of(tensor.dtype);
  tensor.shape[0] = 1;
  return tensor;
}

inline void expect_same_bytes(const Array& a, const Array& b) {
  ASSERT_EQ(a.memory.size(), b.memory.size());
  EXPECT_TRUE(a.memory == b.memory);
}

// Element by element, wherever they lie.
inline void expect_same_bits(const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.elements(), b.elements());
  ASSERT_EQ(a.dtype, b.dtype);
  const int64_t size = size_of(a.dtype);
  std::vector<int64_t> offsets;
  for_each(b, [&](int64_t offset, int64_t) { offsets.push_back(offset); });
  int64_t wrong = 0, first = -1;
  for_each(a, [&](int64_t offset, int64_t i) {
    const std::byte* other = b.as<std::byte>() + offsets[static_cast<size_t>(i)] * size;
    if (std::memcmp(a.as<std::byte>() + offset * size, other, static_cast<size_t>(size)) == 0)
      return;
    if (wrong++ == 0) first = i;
  });
  EXPECT_EQ(wrong, 0) << "of " << a.elements() << " elements differ; first " << first;
}
inline void expect_same_bits(const Array& a, const Array& b) {
  expect_same_bits(a.tensor, b.tensor);
}

}  // namespace perseid::internal::tests
