// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// What the tests of groups share: matrices with random elements, ranks as threads or processes.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "perseid/collective.hpp"

namespace collective_tools {

using namespace std::chrono_literals;
using perseid::Dims;
using perseid::DType;
using perseid::Group;
using perseid::Tensor;

inline int64_t bytes_of(DType dtype) {
  switch (dtype) {
    case perseid::f64:
      return 8;
    case perseid::f32:
      return 4;
    case perseid::u8:
    case perseid::f8e4m3:
    case perseid::f8e5m2:
      return 1;
    default:
      return 2;
  }
}

// Whether ranks behave as if each were on a host of its own.
inline bool are_hosts() {
  const char* value = std::getenv("PERSEID_SHARED_MEMORY");
  return value != nullptr && std::string_view(value) == "0";
}

// A tensor with its memory.
struct Matrix {
  std::vector<int64_t> shape;
  DType dtype = perseid::f32;
  std::vector<std::byte> bytes;

  Matrix(std::vector<int64_t> of_shape, DType of_dtype, int fill = 0xff)
      : shape(std::move(of_shape)), dtype(of_dtype) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    bytes.assign(static_cast<size_t>(count * bytes_of(dtype)), static_cast<std::byte>(fill));
  }
  // From -1 to 1, by the seed.
  static Matrix random(std::vector<int64_t> shape, DType dtype, uint64_t seed) {
    Matrix matrix(std::move(shape), dtype);
    std::mt19937_64 engine(seed);
    const size_t count = matrix.bytes.size() / static_cast<size_t>(bytes_of(dtype));
    for (size_t i = 0; i < count; ++i) {
      // The upper half of a float is a bf16; f16 takes small whole numbers over 8.
      const double value = std::uniform_real_distribution<double>(-1, 1)(engine);
      const auto single = static_cast<float>(value);
      uint32_t bits = 0;
      std::memcpy(&bits, &single, sizeof bits);
      if (dtype == perseid::f64) {
        std::memcpy(matrix.at(i), &value, sizeof value);
      } else if (dtype == perseid::f32) {
        std::memcpy(matrix.at(i), &single, sizeof single);
      } else if (dtype == perseid::bf16) {
        const auto half = static_cast<uint16_t>(bits >> 16);
        std::memcpy(matrix.at(i), &half, sizeof half);
      } else if (bytes_of(dtype) == 1) {
        // Any sign and mantissa, an exponent from 2^-4 to 2^3.
        const uint64_t exponent = engine() % 8 + (dtype == perseid::f8e4m3 ? 3 : 11);
        const int mantissa = dtype == perseid::f8e4m3 ? 3 : 2;
        *matrix.at(i) = static_cast<std::byte>((engine() & 1) << 7 | exponent << mantissa |
                                               (engine() & ((1 << mantissa) - 1)));
      } else {
        // Sign, exponent 2^-1 to 2^-8 and mantissa.
        const auto half = static_cast<uint16_t>((bits >> 16 & 0x8000) | ((engine() % 8 + 7) << 10) |
                                                (engine() & 0x3ff));
        std::memcpy(matrix.at(i), &half, sizeof half);
      }
    }
    return matrix;
  }

  std::byte* at(size_t element) {
    return bytes.data() + element * static_cast<size_t>(bytes_of(dtype));
  }
  Tensor tensor() const { return Tensor(bytes.data(), dtype, Dims(std::span(shape))); }
  float value(size_t element) const {
    float value = 0;
    std::memcpy(&value, bytes.data() + element * sizeof value, sizeof value);
    return value;
  }
};

// float32 from 0.5 to 2, each another one.
inline Matrix random_scales(std::vector<int64_t> shape, uint64_t seed) {
  Matrix scales(std::move(shape), perseid::f32);
  std::mt19937_64 engine(seed);
  for (size_t i = 0; i < scales.bytes.size() / sizeof(float); ++i) {
    const float scale = std::uniform_real_distribution<float>(0.5, 2)(engine);
    std::memcpy(scales.at(i), &scale, sizeof scale);
  }
  return scales;
}

// Copies a part of a matrix into another.
inline Matrix copy_of(const Tensor& part, DType dtype) {
  std::vector<int64_t> shape;
  for (int32_t d = 0; d < part.ndim(); ++d) shape.push_back(part.size(d));
  Matrix copy(shape, dtype);
  const auto size = static_cast<size_t>(bytes_of(dtype));
  std::byte* to = copy.bytes.data();
  const std::function<void(const Tensor&)> walk = [&](const Tensor& tensor) {
    if (tensor.ndim() == 0 || (tensor.ndim() == 1 && tensor.stride(0) == 1)) {
      const size_t run = tensor.ndim() == 0 ? size : size * static_cast<size_t>(tensor.size(0));
      if (run > 0) std::memcpy(to, tensor.data(), run);
      to += run;
      return;
    }
    for (int64_t i = 0; i < tensor.size(0); ++i) walk(tensor.select(0, i));
  };
  walk(part);
  return copy;
}

// c = a b + bias by the plain product.
inline Matrix product(const Tensor& a, const Tensor& b, DType dtype, DType out_dtype,
                      const Tensor& bias = {}) {
  const perseid::Context context = perseid::Context::cpu(1);
  const bool batched = a.ndim() == 3;
  const int64_t batch = batched ? a.size(0) : 1, m = a.size(-2), n = b.size(-1);
  const perseid::Matmul matmul(context, {.dtype = dtype,
                                         .out_dtype = out_dtype,
                                         .batch = batch,
                                         .m = m,
                                         .n = n,
                                         .k = a.size(-1),
                                         .bias = bias.present()});
  Matrix c(batched ? std::vector<int64_t>{batch, m, n} : std::vector<int64_t>{m, n}, out_dtype);
  perseid::Workspace workspace;
  matmul.reserve(workspace);
  matmul.execute(nullptr, {.a = a, .b = b, .bias = bias, .c = c.tensor()}, workspace);
  return c;
}

// Runs body(group) for every rank on a thread of its own. What one throws ends the test.
inline void on_threads(const std::vector<Group>& groups,
                       const std::function<void(const Group&)>& body) {
  std::vector<std::string> failures(groups.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < groups.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(groups[rank]);
      } catch (const std::exception& error) {
        failures[rank] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (size_t rank = 0; rank < groups.size(); ++rank)
    EXPECT_EQ(failures[rank], "") << "rank " << rank;
}
inline void on_threads(int32_t size, const std::function<void(const Group&)>& body) {
  on_threads(Group::threads(size), body);
}

// How a call ended.
struct Ended {
  perseid_status status = PERSEID_OK;
  std::string sentence;
  double seconds = 0;
};
template <class Body>
Ended ended(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  Ended ended;
  try {
    body();
  } catch (const perseid::Error& error) {
    ended = {error.status(), error.what(), 0};
  }
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return ended;
}

}  // namespace collective_tools
